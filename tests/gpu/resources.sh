#!/bin/sh
# What the kernels of the CUDA module take, from ptxas: registers, spilled bytes, stack and shared memory of each for each architecture,
# as a table; and what the module exports.
#   sh tests/gpu/resources.sh [MODULE.so]
# Ends with 1 where a kernel spills more than $EVQ_SPILL_MAX bytes (0), or the module exports more than its one symbol.
set -eu
cd "$(dirname "$0")/../.."
module=${1:-}
spill_max=${EVQ_SPILL_MAX:-0}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

if ! command -v nvcc >/dev/null 2>&1; then
    echo "resources: NOT RUN: nvcc is not installed"
    exit 77
fi
# As kernels/CMakeLists.txt compiles them, but for the PTX, which has no registers.
ls kernels/cuda/*.cu | xargs -P "$(nproc)" -I{} sh -c \
    'nvcc -I. -std=c++17 -O3 -DNDEBUG -Xptxas=-v -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a \
        -c "$1" -o "$2/$(basename "$1").o" 2>"$2/$(basename "$1").txt" || { cat "$2/$(basename "$1").txt" >&2; exit 255; }' sh {} "$out"
cat "$out"/*.txt | c++filt -p | awk -v most="$spill_max" '
    /Compiling entry function/ {
        split($0, quoted, "\047"); name = quoted[2]
        gsub(/\(anonymous namespace\)::|_INTERNAL_[A-Za-z0-9_]*::/, "", name)
        match($0, /sm_[0-9a-z]+/); arch = substr($0, RSTART, RLENGTH)
    }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
        shared = 0
        if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
        if (!count++) printf "%-44s %-8s %9s %7s %6s %7s\n", "KERNEL", "ARCH", "REGISTERS", "SPILLED", "STACK", "SHARED"
        printf "%-44.44s %-8s %9d %7d %6d %7d\n", name, arch, registers, stores + loads, stack, shared
        if (stores + loads > most) { bad = bad name " (" arch ", " stores + loads " bytes) " }
    }
    END {
        if (!count) { print "resources: ptxas said nothing of any kernel" > "/dev/stderr"; exit 1 }
        if (bad != "") { print "resources: kernels that spill more than " most " bytes: " bad > "/dev/stderr"; exit 1 }
    }'
if [ -n "$module" ]; then
    exported=$(nm -D --defined-only "$module" | awk '{ print $NF }' | sed 's/@.*//' | sort | tr '\n' ' ')
    echo "exported: $exported"
    if [ "$exported" != "evq_backend_module_v1 " ]; then
        echo "resources: $module exports '$exported', expected evq_backend_module_v1 alone" >&2
        exit 1
    fi
fi
