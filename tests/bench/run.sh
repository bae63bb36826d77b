#!/bin/sh
# Builds and runs the benchmarks of the evaluation engine (one thread and all), of the queue, of the submit call in the
# training thread, of fetching a snapshot over loopback, and of the tokenizers beside Hugging Face's (python3 with
# tokenizers, or that of EVALQ_PEERS_VENV).
#   sh tests/bench/run.sh [mlp | lm | load | ahead | tiny | queue | submit | fetch | tokenizer]
set -eu
cd "$(dirname "$0")/../.."
build=build/bench
only=${1:-all}

cmake -S . -B "$build" -G Ninja -DEVQ_TESTS=ON -DEVQ_CUDA=OFF >/dev/null
if [ "$only" = all ] || [ "$only" = mlp ]; then
    ninja -C "$build" bench_mlp >/dev/null
    for threads in 1 0; do
        "$build/bin/bench_mlp" "$threads"
    done
fi
if [ "$only" = all ] || [ "$only" = lm ]; then
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
if [ -n "${EVQ_BENCH_CHECKPOINT:-}" ] && { [ "$only" = all ] || [ "$only" = load ]; }; then
    ninja -C "$build" bench_load >/dev/null # A language model's checkpoint, some hundred MB.
    "$build/bin/bench_load" "$EVQ_BENCH_CHECKPOINT"
fi
if [ "$only" = all ] || [ "$only" = ahead ]; then
    ninja -C "$build" evalq_cli evalq-worker >/dev/null
    EVALQ_TEST_BUILD="$(pwd)/$build" python3 tests/bench/bench_ahead.py
fi
if [ "$only" = all ] || [ "$only" = tiny ]; then
    ninja -C "$build" evalq_cli evalq-worker evalq >/dev/null
    EVALQ_TEST_BUILD="$(pwd)/$build" python3 tests/bench/bench_tiny.py
fi
if [ "$only" = all ] || [ "$only" = queue ]; then
    ninja -C "$build" bench_queue >/dev/null
    "$build/bin/bench_queue"
fi
if [ "$only" = all ] || [ "$only" = submit ]; then
    ninja -C "$build" bench_submit >/dev/null
    "$build/bin/bench_submit"
fi
if [ "$only" = all ] || [ "$only" = tokenizer ]; then
    ninja -C "$build" bench_tokenizer encode_text >/dev/null
    python=${EVALQ_PEERS_VENV:+$EVALQ_PEERS_VENV/bin/}python3
    if "$python" -c 'import tokenizers' 2>/dev/null; then
        EVALQ_TEST_BUILD="$(pwd)/$build" "$python" tests/bench/bench_tokenizers.py ${EVALQ_GPT2:-}
    else
        echo "NOT RUN: tokenizers is not installed for $python"
    fi
fi
if [ "$only" = all ] || [ "$only" = fetch ]; then
    ninja -C "$build" bench_fetch >/dev/null
    "$build/bin/bench_fetch"
fi
