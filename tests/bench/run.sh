#!/bin/sh
# Installs what is missing, builds and runs the benchmarks.
#   sh tests/bench/run.sh [--quick] [GROUP...]  the queue and the programs around it: one table, and build/bench/results.json;
#                                               groups: submit verbs idle depth start noop speedup visible child worker redis logger
#   sh tests/bench/run.sh soak [SECONDS [SEED]] memory of each process under random faults; an hour by default
#   sh tests/bench/run.sh engine                mlp lm load tiny fetch tokenizer, one after another; each also alone:
#     mlp lm        the evaluation engine, one thread and all; load: EVQ_BENCH_CHECKPOINT, a language model's checkpoint
#     tiny          tiny models from submit to result; queue: the verbs alone; fetch: a snapshot over loopback
#     tokenizer     beside Hugging Face's (python3 with tokenizers, or that of EVALQ_PEERS_VENV)
# The queues that people know, beside it: sh tests/bench/peers/run.sh
set -eu
cd "$(dirname "$0")/../.."
build=build/bench
only=${1:-table}

sh deploy/bootstrap.sh test
cmake -S . -B "$build" -G Ninja -DEVQ_TESTS=ON -DEVQ_CUDA=OFF >/dev/null
case $only in
engine | mlp | lm | load | tiny | queue | fetch | tokenizer) ;;
*)
    ninja -C "$build" bench_queue bench_submit bench_idle bench_depth bench_start noop_evaluator evalq_noop publish_results evalq_cli evalq evalq-worker evalq-gateway \
        evalq-logger >/dev/null
    export EVALQ_TEST_BUILD="$(pwd)/$build"
    if [ "$only" = soak ]; then
        shift
        exec python3 tests/bench/soak.py "$@"
    fi
    exec python3 tests/bench/table.py "$@"
    ;;
esac
if [ "$only" = engine ] || [ "$only" = mlp ]; then
    ninja -C "$build" bench_mlp >/dev/null
    for threads in 1 0; do
        "$build/bin/bench_mlp" "$threads"
    done
fi
if [ "$only" = engine ] || [ "$only" = lm ]; then
    ninja -C "$build" bench_lm bench_head >/dev/null
    "$build/bin/bench_head"
    for compute in f32 bf16; do
        for clock in cpu wall; do # One thread by the processor's time, then all by the wall clock.
            threads=$([ "$clock" = cpu ] && echo 1 || echo 0)
            EVQ_BENCH_CLOCK=$clock "$build/bin/bench_lm" gpt2 "$compute" 1 1024 "$threads" || true
            EVQ_BENCH_CLOCK=$clock "$build/bin/bench_lm" gpt2 "$compute" 4 256 "$threads" || true
            EVQ_BENCH_CLOCK=$clock "$build/bin/bench_lm" qwen3 "$compute" 1 1024 "$threads" 3 || true
        done
    done
fi
if [ -n "${EVQ_BENCH_CHECKPOINT:-}" ] && { [ "$only" = engine ] || [ "$only" = load ]; }; then
    ninja -C "$build" bench_load >/dev/null # A language model's checkpoint, some hundred MB.
    "$build/bin/bench_load" "$EVQ_BENCH_CHECKPOINT"
fi
if [ "$only" = engine ] || [ "$only" = tiny ]; then
    ninja -C "$build" evalq_cli evalq-worker evalq >/dev/null
    EVALQ_TEST_BUILD="$(pwd)/$build" python3 tests/bench/bench_tiny.py
fi
if [ "$only" = queue ]; then
    ninja -C "$build" bench_queue >/dev/null
    "$build/bin/bench_queue"
fi
if [ "$only" = engine ] || [ "$only" = tokenizer ]; then
    ninja -C "$build" bench_tokenizer encode_text >/dev/null
    python=${EVALQ_PEERS_VENV:+$EVALQ_PEERS_VENV/bin/}python3
    if "$python" -c 'import tokenizers' 2>/dev/null; then
        EVALQ_TEST_BUILD="$(pwd)/$build" "$python" tests/bench/bench_tokenizers.py ${EVALQ_GPT2:-}
    else
        echo "NOT RUN: tokenizers is not installed for $python"
    fi
fi
if [ "$only" = engine ] || [ "$only" = fetch ]; then
    ninja -C "$build" bench_fetch >/dev/null
    "$build/bin/bench_fetch"
fi
