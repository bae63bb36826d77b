#!/bin/sh
# Faults against real programs and a real Redis. Builds, then runs
#   campaign.py     rounds of kills, pauses and a lying network at random points, each proved by the history checker
#   syscalls.py ... one set of faults a file, one after the other
#
#   sh tests/faults/run.sh [--short | --long] [--seed N] [--rounds N] [--resume FILE] [SET...]
#
# --short (default) took 183 and 249 s of its sets together on two cores, and is part of tests/run.sh. --long goes on where
# it was stopped: what a round found is appended to build/faults.jsonl with its seed and commit; the other sets keep in FILE what is done of them, and leave that out.
# SET: campaign, syscalls, ... alone. docs/faults.md says what is done
# and what it found.
#
#   proxy.c, proxy_*        a proxy between any program and Redis: stalls, cuts (also between what Redis did and its answer), resets, drips,
#                           garbage, one-way blocks; by rule and seed; counts what happened; writes down what Redis answered
#   history.*, history_*    what every process asked and was told, joined with Redis and the sinks; test_history.py doctors histories
#   campaign.*, campaign_*  the rounds, and the programs in C that they use
set -eu

cd "$(dirname "$0")/../.."
form=--short
seed=
rounds=
resume=
sets=
usage="usage: sh tests/faults/run.sh [--short | --long] [--seed N] [--rounds N] [--resume FILE] [SET...]"
while [ $# -gt 0 ]; do
    case $1 in
    --short | --long) form=$1 ;;
    --seed | --rounds | --resume)
        [ $# -gt 1 ] || { echo "faults: $1 wants a value" >&2; exit 2; }
        case $1 in
        --seed) seed=$2 ;;
        --rounds) rounds=$2 ;;
        --resume) resume=$2 ;;
        esac
        shift
        ;;
    -*)
        echo "$usage" >&2
        exit 2
        ;;
    *) sets="$sets $1" ;;
    esac
    shift
done

sh deploy/bootstrap.sh test
cmake --preset test >/dev/null
cmake --build --preset test
EVALQ_TEST_BUILD=$(pwd)/build/test
PYTHONDONTWRITEBYTECODE=1
export EVALQ_TEST_BUILD PYTHONDONTWRITEBYTECODE
failed=0
for name in ${sets:-campaign syscalls allocations redis_states clocks disks descriptors replies planted_secrets samples model_servers}; do
    if [ ! -f "tests/faults/$name.py" ]; then
        [ -z "$sets" ] || { echo "faults: there is no set '$name'" >&2; exit 2; }
        continue
    fi
    set -- "$form"
    [ -z "$seed" ] || set -- "$@" --seed "$seed"
    [ -z "$rounds" ] || [ "$name" != campaign ] || set -- "$@" --rounds "$rounds"
    [ -z "$resume" ] || [ "$name" = campaign ] || set -- "$@" --resume "$resume"
    python3 "tests/faults/$name.py" "$@" || failed=1
done
exit "$failed"
