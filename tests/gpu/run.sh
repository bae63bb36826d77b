#!/bin/sh
# Builds the CUDA module and holds it against the CPU backend, row by row, over awkward shapes.
# Needs nvcc to build, a GPU and cuBLAS to run; without them it says so and ends with 0.
#   sh tests/gpu/run.sh [DEVICE]
set -eu
cd "$(dirname "$0")/../.."
device=${1:-0}
build=build/gpu

if ! command -v nvcc >/dev/null 2>&1; then
    echo "gpu tests: skipped: nvcc is not installed"
    exit 0
fi
cmake -S . -B "$build" -G Ninja -DEVQ_TESTS=ON -DEVQ_CUDA=ON >/dev/null
ninja -C "$build" evalq_cuda gpu_compare test_backend_module
"$build/bin/test_backend_module"
status=0
"$build/bin/gpu_compare" "$device" || status=$?
if [ "$status" -eq 77 ]; then
    exit 0
fi
exit "$status"
