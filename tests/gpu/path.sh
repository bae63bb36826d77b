#!/bin/sh
# The whole path with a GPU: `evalq up` with workers on the device, small models of every family submitted, their losses out of Redis
# beside those of `evalq-worker eval` on the CPU. Mixtures of experts may be refused.
#   sh tests/gpu/path.sh BIN [DEVICE]      BIN: where evalq, evalq-worker and evalq-logger are
# Ends with 1 where a loss is further than 1e-5 from the CPU's, or was not evaluated on the device. With Python (no package of it) it
# also submits two checkpoints of a GPT-2 124M with random weights, and says how long the second took from its submit to its metric on the
# text of WikiText-2's test set, beside the bar of one second. Text and tokenizer: $EVQ_GPU_TEXT and $EVQ_GPU_TOKENIZER (a directory), else
# text/wikitext2_test.txt and gpt2/ of shared/data in the repository or beside it; where there are none, as many random tokens, and no bar.
# $EVQ_GPU_SHAPE ("12 768 12 50257 1024": layers, width, heads, vocabulary, positions) and $EVQ_GPU_COMPUTE (bf16) are for tests of this.
set -eu
cd "$(dirname "$0")/../.."
repository=$(pwd)
bin=$(cd "$1" && pwd)
device=${2:-0}
python=${EVQ_GPU_PYTHON:-python3}
models="$repository/tests/data/models"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# 2000 tokens of a vocabulary of 37, as u16.
tokens=$(awk 'BEGIN { at = 7; for (i = 0; i < 2000; i++) { at = (at * 1103 + 12345) % 32749; printf "\\%03o\\000", at % 37 } }')
printf "$tokens" >"$dir/tokens.bin"
names=$(cd "$models" && for name in */config.json; do dirname "$name"; done)

# The task of a model. In fp32, since auto would take bf16 on a GPU for some of the models: another number than the CPU's.
task() {
    place=$models/$1
    case $(tr -d '\n ' <"$place/config.json") in
    *ForSequenceClassification*)
        types=
        [ ! -e "$place/types.npy" ] || types=", types: $place/types.npy"
        echo "{name: file, type: text_classification, compute: fp32, data: {format: tokens, tokens: $place/tokens.npy," \
            "mask: $place/mask.npy, labels: $place/labels.npy$types}}"
        ;;
    *ForImageClassification*)
        echo "{name: file, type: classification, data: {format: npy, inputs: $place/inputs.npy, labels: $place/labels.npy}}"
        ;;
    *) echo "{name: file, type: perplexity, compute: fp32, data: {format: tokens, tokens: $dir/tokens.bin, dtype: u16}}" ;;
    esac
}
{
    echo "roots: {models: $models}"
    echo "suites:"
    for name in $names; do
        echo "  gpu-$name: {needs: {gpus: 1}, tasks: [$(task "$name")]}"
        echo "  cpu-$name: {tasks: [$(task "$name")]}"
    done
} >"$dir/evalq.yaml"

cat >"$dir/submit.sh" <<'SUBMIT'
set -eu
bin=$1 models=$2
shift 2
for name in "$@"; do
    "$bin/evalq" submit "$models/$name" --run "$name" --step 1 --suite "gpu-$name" --wait --timeout 120 --json || true # Judged below.
done
SUBMIT
cd "$dir"
# shellcheck disable=SC2086 # The names are words.
status=0
"$bin/evalq" up --dir "$dir/up" --config "$dir/evalq.yaml" --devices "$device" --workers 1 -- \
    sh -c "sh '$dir/submit.sh' '$bin' '$models' $(echo $names) >'$dir/submitted' 2>&1" >"$dir/up.log" 2>&1 || status=$?
if [ "$status" -ne 0 ] && [ "$status" -ne 4 ]; then # 4: some jobs are dead, which is judged below.
    echo "FAIL evalq up:"
    tail -n 30 "$dir/up.log" "$dir/submitted"
    exit 1
fi
# The suite's data, and in $judged what it is called where the bar counts.
find_text() {
    text=${EVQ_GPU_TEXT:-} tokenizer=${EVQ_GPU_TOKENIZER:-} judged=
    for place in "$repository/shared/data" "$repository/../shared/data"; do
        if [ -z "$text" ] && [ -r "$place/text/wikitext2_test.txt" ] && [ -r "$place/gpt2/vocab.json" ]; then
            text=$place/text/wikitext2_test.txt tokenizer=$dir/gpt2
            "$python" "$repository/tests/gpu/gpt2_tokenizer.py" "$place/gpt2" "$tokenizer"
        fi
    done
    if [ -n "$text" ]; then
        judged=$(basename "$text")
        data="{format: text, text: $text, tokenizer: $tokenizer}"
        return
    fi
    "$python" -c 'import random, struct, sys
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<287000H", *random.Random(1).choices(range(50257), k=287000)))' "$dir/large.bin"
    data="{format: tokens, tokens: $dir/large.bin, dtype: u16}"
}
first_metric() {
    for step in 1 2; do
        # shellcheck disable=SC2086 # Numbers.
        "$python" "$repository/tests/gpu/random_gpt2.py" "$dir/large/checkpoint-$step" "$step" ${EVQ_GPU_SHAPE:-} >"$dir/made" 2>&1 || return 1
    done
    find_text >"$dir/made" 2>&1 || return 1
    cat >"$dir/large.yaml" <<YAML
roots: {large: $dir/large}
suites:
  large: {needs: {gpus: 1}, tasks: [{name: file, type: perplexity, compute: ${EVQ_GPU_COMPUTE:-bf16}, data: $data}]}
YAML
    cat >"$dir/large.sh" <<'SUBMIT'
set -eu
for step in 1 2; do
    began=$(date +%s%N)
    "$1/evalq" submit "$2/large/checkpoint-$step" --run large --step "$step" --suite large --wait --timeout 60 --json
    echo "milliseconds $(((($(date +%s%N) - began)) / 1000000))"
done
SUBMIT
    "$bin/evalq" up --dir "$dir/up2" --config "$dir/large.yaml" --devices "$device" --workers 1 -- \
        sh -c "sh '$dir/large.sh' '$bin' '$dir' >'$dir/large.out' 2>&1" >"$dir/up2.log" 2>&1 || return 1
    [ "$(grep -c '"backend": *"cuda"' "$dir/large.out")" -eq 2 ] || return 1
    spent=$(sed -n 's/^milliseconds //p' "$dir/large.out" | tail -1)
    parts=$(sed -n 's/.*"load_us":\([0-9]*\),"compute_us":\([0-9]*\).*"tokens":\([0-9]*\).*/load \1 us, compute \2 us, \3 tokens/p' \
        "$dir/large.out" | tail -1)
    bar="no text of WikiText-2 is here: random tokens, no bar"
    [ -z "$judged" ] || bar="$judged, bar 1000 ms: $([ "$spent" -le 1000 ] && echo reached || echo missed)"
    echo "ok   GPT-2 124M, second checkpoint: $spent ms from submit to metric ($parts; $bar)"
    echo "json {\"path\": \"warm checkpoint to first metric, gpt2-124m\", \"text\": \"$judged\", \"milliseconds\": $spent, \"bar_ms\": 1000}"
}

loss_of() { sed -n 's/.*"metrics": *{[^}]*"\(loss\|cross_entropy\)": *\([-+0-9.e]*\).*/\2/p'; }

faults=0
for name in $names; do
    cpu=$("$bin/evalq-worker" eval "$models/$name" --config "$dir/evalq.yaml" --suite "cpu-$name" --devices cpu --json |
        tr -d '\n' | loss_of)
    line=$(grep "\"$name/1/regular/gpu-$name#file\"" "$dir/submitted" || true)
    gpu=$(echo "$line" | loss_of)
    if grep -q "^evalq: $name/1/.*has mixtures of experts only on the CPU" "$dir/submitted"; then
        echo "ok   through Redis, $name: refused on the device, as a mixture of experts is"
        continue
    fi
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
if "$python" -c '' 2>/dev/null; then
    if ! first_metric; then
        echo "FAIL GPT-2 124M through Redis:"
        tail -n 5 "$dir/made" "$dir/up2.log" "$dir/large.out" 2>/dev/null || true
        faults=$((faults + 1))
    fi
else
    echo "NOT RUN: warm checkpoint to first metric: there is no $python"
fi
[ "$faults" -eq 0 ]
