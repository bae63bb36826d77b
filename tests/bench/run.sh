#!/bin/sh
# Builds and runs the benchmarks of the evaluation engine (one thread and all), of the queue,
# and of the submit call in the training thread.
#   sh tests/bench/run.sh [mlp | queue | submit]
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
if [ "$only" = all ] || [ "$only" = queue ]; then
    ninja -C "$build" bench_queue >/dev/null
    "$build/bin/bench_queue"
fi
if [ "$only" = all ] || [ "$only" = submit ]; then
    ninja -C "$build" bench_submit >/dev/null
    "$build/bin/bench_submit"
fi
