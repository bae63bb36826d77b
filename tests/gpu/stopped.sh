#!/bin/sh
# That gpu_compare says where it was when something stops it, as a time limit does when a kernel hangs: on the stand-in module, which waits
# at the second batch's gate when the first one's has been opened.
#   sh tests/gpu/stopped.sh GPU_COMPARE
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkfifo "$place/gate"
EVQ_STANDIN=$place timeout 60 "$1" --small --repeats 1 --part ropes >"$place/out" &
: >"$place/gate"
kill $!
wait || true
cat "$place/out"
