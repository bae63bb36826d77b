#!/bin/sh
# Checks the model of the queue with spin: every interleaving holds, and where a guard is left out some do not.
#   sh tests/model/run.sh        installs spin and a C compiler if they are missing
set -eu

cd "$(dirname "$0")"
sh ../../deploy/bootstrap.sh test
command -v spin >/dev/null 2>&1 || {
    echo "NOT RUN: spin is not installed"
    exit 77
}
model=$(pwd)/queue.pml
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

# check GUARD...: builds and runs the verifier for the model without these guards. Its report is in $dir/report.
check() {
    defined=
    for guard in "$@"; do
        defined="$defined -D$guard"
    done
    # shellcheck disable=SC2086 # Words on purpose.
    spin $defined -a "$model" >spin.log 2>&1 || { cat spin.log >&2; exit 1; }
    cc -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o verify pan.c
    ./verify -m200000 -w26 >report 2>&1 || { cat report >&2; exit 1; }
    if grep -q "max search depth too small\|out of memory" report; then
        cat report >&2
        exit 1
    fi
}

# holds WHAT GUARD...
holds() {
    what=$1
    shift
    check "$@"
    grep -q "errors: 0" report || {
        cat report >&2
        echo "model: FAILED: $what" >&2
        exit 1
    }
    echo "model: $what holds in $(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' report) states"
}

# breaks GUARD...: without these some interleaving must fail.
breaks() {
    check "$@"
    if grep -q "errors: 0" report; then
        echo "model: FAILED: without $* it holds all the same" >&2
        exit 1
    fi
    echo "model: without $* it breaks: $(sed -n 's/^pan:[0-9]*: //p' report | head -1)"
}

holds "the queue"
holds "an end that is guarded by its state alone" END_KEEPS_TOKEN
holds "an end that is guarded by its token alone" HOLDS_ENDED
breaks END_KEEPS_TOKEN HOLDS_ENDED
breaks NO_FENCE
breaks NO_SET_IF_ABSENT
breaks NO_RECLAIM
breaks NO_SINK_DEDUP
breaks ACK_FIRST
echo "model: whole"
