#!/bin/sh
# The whole path with a GPU: `evalq up` with workers on the device, small language models of every family submitted, their losses out
# of Redis beside those of `evalq-worker eval` on the CPU.
#   sh tests/gpu/path.sh BIN [DEVICE]      BIN: where evalq, evalq-worker and evalq-logger are
# Ends with 1 where a loss is further than 1e-5 from the CPU's, or was not evaluated on the device. Where $EVQ_GPU_PYTHON has Transformers, it
# also submits two checkpoints of a GPT-2 124M with random weights and as many tokens as WikiText-2's test set has ($EVQ_GPU_TOKENS:
# so many), and says how long the second took from its submit to its metric.
set -eu
cd "$(dirname "$0")/../.."
bin=$(cd "$1" && pwd)
device=${2:-0}
models="$(pwd)/tests/data/models"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# 2000 tokens of a vocabulary of 37, as u16.
tokens=$(awk 'BEGIN { at = 7; for (i = 0; i < 2000; i++) { at = (at * 1103 + 12345) % 32749; printf "\\%03o\\000", at % 37 } }')
printf "$tokens" >"$dir/tokens.bin"
cat >"$dir/evalq.yaml" <<YAML
roots: {models: $models}
suites:
  gpu: {needs: {gpus: 1}, tasks: [{name: file, type: perplexity, data: {format: tokens, tokens: $dir/tokens.bin, dtype: u16}}]}
  cpu: {tasks: [{name: file, type: perplexity, data: {format: tokens, tokens: $dir/tokens.bin, dtype: u16}}]}
YAML
names=$(cd "$models" && for name in */config.json; do dirname "$name"; done)

cat >"$dir/submit.sh" <<'SUBMIT'
set -eu
bin=$1 models=$2
shift 2
for name in "$@"; do
    "$bin/evalq" submit "$models/$name" --run "$name" --step 1 --suite gpu --wait --timeout 120 --json
done
SUBMIT
cd "$dir"
# shellcheck disable=SC2086 # The names are words.
if ! "$bin/evalq" up --dir "$dir/up" --config "$dir/evalq.yaml" --devices "$device" --workers 1 -- \
    sh -c "sh '$dir/submit.sh' '$bin' '$models' $(echo $names) >'$dir/submitted' 2>&1" >"$dir/up.log" 2>&1; then
    echo "FAIL evalq up:"
    cat "$dir/up.log" "$dir/submitted"
    exit 1
fi
first_metric() {
    "$EVQ_GPU_PYTHON" - "$dir" "${EVQ_GPU_TOKENS:-287000}" <<'PYTHON' >"$dir/made" 2>&1 || return 1
import random, struct, sys, torch, transformers as tf
directory, count = sys.argv[1], int(sys.argv[2])
for step in (1, 2):
    torch.manual_seed(step)
    tf.GPT2LMHeadModel(tf.GPT2Config()).to(torch.bfloat16).save_pretrained(f"{directory}/large/checkpoint-{step}")
with open(f"{directory}/large.bin", "wb") as file:
    file.write(struct.pack(f"<{count}H", *(random.Random(1).choices(range(50257), k=count))))
PYTHON
    cat >"$dir/large.yaml" <<YAML
roots: {large: $dir/large}
suites:
  large: {needs: {gpus: 1}, tasks: [{name: file, type: perplexity, compute: bf16, mode: blocks,
          data: {format: tokens, tokens: $dir/large.bin, dtype: u16}}]}
YAML
    cat >"$dir/large.sh" <<'SUBMIT'
set -eu
for step in 1 2; do
    began=$(date +%s%N)
    "$1/evalq" submit "$2/large/checkpoint-$step" --run large --step "$step" --suite large --wait --timeout 120 --json
    echo "milliseconds $(((($(date +%s%N) - began)) / 1000000))"
done
SUBMIT
    "$bin/evalq" up --dir "$dir/up2" --config "$dir/large.yaml" --devices "$device" --workers 1 -- \
        sh -c "sh '$dir/large.sh' '$bin' '$dir' >'$dir/large.out' 2>&1" >"$dir/up2.log" 2>&1 || return 1
    grep -q '"backend": *"cuda"' "$dir/large.out" || return 1
    spent=$(sed -n 's/^milliseconds //p' "$dir/large.out" | tail -1)
    parts=$(sed -n 's/.*"load_us":\([0-9]*\),"compute_us":\([0-9]*\).*"tokens":\([0-9]*\).*/load \1 us, compute \2 us, \3 tokens/p' \
        "$dir/large.out" | tail -1)
    echo "ok   GPT-2 124M, second checkpoint: $spent ms from submit to metric ($parts)"
    echo "json {\"bench\": \"warm checkpoint to first metric, gpt2-124m\", \"milliseconds\": $spent}"
}

faults=0
for name in $names; do
    cpu=$("$bin/evalq-worker" eval "$models/$name" --config "$dir/evalq.yaml" --suite cpu --devices cpu --json |
        tr -d '\n' | sed -n 's/.*"loss": *\([-+0-9.e]*\).*"perplexity".*/\1/p')
    line=$(grep "\"$name/1/regular/gpu#file\"" "$dir/submitted" || true)
    gpu=$(echo "$line" | sed -n 's/.*"metrics": *{"loss": *\([-+0-9.e]*\),.*/\1/p')
    case $line in
    *'"backend": "cuda"'* | *'"backend":"cuda"'*) where=device ;;
    *) where="NOT ON THE DEVICE" ;;
    esac
    if echo "$cpu $gpu" | awk '{ d = $1 - $2; exit !(NF == 2 && d <= 1e-5 && d >= -1e-5) }' && [ "$where" = device ]; then
        said="ok  "
    else
        said=FAIL
        faults=$((faults + 1))
    fi
    echo "$said through Redis, $name: loss $gpu ($where), on the CPU $cpu"
    echo "json {\"test\": \"through Redis, $name\", \"cases\": 1, \"failed\": $([ "$said" = FAIL ] && echo 1 || echo 0)}"
done
if [ -n "${EVQ_GPU_PYTHON:-}" ] && "$EVQ_GPU_PYTHON" -c 'import torch, transformers' 2>/dev/null; then
    if ! first_metric; then
        echo "FAIL GPT-2 124M through Redis:"
        tail -5 "$dir/made" "$dir/up2.log" "$dir/large.out" 2>/dev/null || true
        faults=$((faults + 1))
    fi
else
    echo "NOT RUN: warm checkpoint to first metric: EVQ_GPU_PYTHON names no Python with Transformers"
fi
[ "$faults" -eq 0 ]
