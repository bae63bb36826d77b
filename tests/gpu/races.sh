#!/bin/sh
# racecheck of compute-sanitizer on the kernels of evalq that use shared memory.
#   sh tests/gpu/races.sh GPU_COMPARE [DEVICE]
# It also reports hazards inside cuBLAS's kernels, which are not counted: their names have nvjet, gemm or cutlass. (They cannot be left out
# with --kernel-name-exclude, with which the tool of CUDA 13.0 failed.) Exit status 1: a hazard in a kernel of ours, or a failure.
set -eu
compare=$1
device=${2:-0}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
faults=0
for part in attentions encoders norms samples models; do
    status=0
    timeout 60 compute-sanitizer --tool racecheck --print-limit 100000 --show-backtrace no \
        "$compare" --device "$device" --small --repeats 1 --part "$part" >"$out" 2>&1 || status=$?
    ours=$(sed -n 's/.* Thread ([0-9,]*) at \(.*\)+0x.*/\1/p' "$out" | grep -v -e nvjet -e gemm -e cutlass | sort | uniq -c || true)
    cublas=$(grep -c -e 'Thread .* at .*\(nvjet\|gemm\|cutlass\)' "$out" || true)
    if [ "$status" -ne 0 ] || [ -n "$ours" ] || ! grep -q 'RACECHECK SUMMARY' "$out"; then
        echo "FAIL racecheck of $part: status $status"
        echo "$ours"
        grep -e '^FAIL' -e Internal "$out" | head -5 || true
        faults=$((faults + 1))
    else
        echo "ok   racecheck of $part: nothing in kernels of evalq ($cublas lines about cuBLAS's)"
    fi
done
[ "$faults" -eq 0 ]
