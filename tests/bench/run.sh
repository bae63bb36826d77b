#!/bin/sh
# Builds and runs the benchmarks of the evaluation engine: OpenBLAS and our own kernels, one thread and all.
#   sh tests/bench/run.sh
set -eu
cd "$(dirname "$0")/../.."
build=build/bench

cmake -S . -B "$build" -G Ninja -DEVQ_TESTS=ON -DEVQ_CUDA=OFF >/dev/null
ninja -C "$build" bench_mlp >/dev/null
for threads in 1 0; do
    "$build/bin/bench_mlp" "$threads"
    EVALQ_BLAS=openblas "$build/bin/bench_mlp" "$threads"
done
