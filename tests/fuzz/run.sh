#!/bin/sh
# Builds tests/fuzz/fuzz_NAME.c with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs all or those named.
#   sh tests/fuzz/run.sh [NAME...]               each for 30 seconds, from seeds/NAME and what earlier runs found
#   sh tests/fuzz/run.sh --seeds [NAME...]       the seeds alone: what CI does
#   sh tests/fuzz/run.sh --minutes N [NAME...]   by turns, a minute each, until each has had N minutes of processor time in all
#   sh tests/fuzz/run.sh --ledger                what each had so far
#   sh tests/fuzz/run.sh --keep                  moves the sums of this build into tests/fuzz/ledger.tsv, to be committed
# Each turn is a line of build/fuzz/ledger.tsv; tests/fuzz/ledger.tsv holds what was run before, anywhere. A finding is kept in
# build/fuzz/findings/; give it to build/fuzz/fuzz_NAME to see it again.
set -eu

case ${1:-} in
-h | --help)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
cd "$(dirname "$0")/../.."
root=$(pwd)
build=build/fuzz
ledger=$build/ledger.tsv
kept=tests/fuzz/ledger.tsv
mode=turn
minutes=0
seconds=30
case ${1:-} in
--seeds | --ledger | --keep)
    mode=${1#--}
    shift
    ;;
--minutes)
    mode=minutes
    minutes=${2:?--minutes takes a number}
    seconds=60
    shift 2
    ;;
esac

# A line of a ledger: date, commit, harness, processor seconds, inputs, edges, features, findings.
ledgers() {
    cat "$kept" "$ledger" 2>/dev/null || true
}

if [ "$mode" = keep ]; then
    [ -f "$ledger" ] || { echo "fuzz: no $ledger: nothing was run since" >&2; exit 1; }
    awk -F '\t' -v OFS='\t' '{ d[$3] = $1; c[$3] = $2; s[$3] += $4; n[$3] += $5; f[$3] += $8
            if ($6 > e[$3]) e[$3] = $6
            if ($7 > t[$3]) t[$3] = $7 }
        END { for (h in s) print d[h], c[h], h, s[h], n[h] + 0, e[h] + 0, t[h] + 0, f[h] }' "$ledger" | sort -k 3 >>"$kept"
    rm "$ledger"
    exit 0
fi
if [ "$mode" = ledger ]; then
    printf '| harness | processor minutes | inputs | edges | features | findings |\n| --- | --- | --- | --- | --- | --- |\n'
    ledgers | awk -F '\t' '{ s[$3] += $4; n[$3] += $5; f[$3] += $8
            if ($6 > e[$3]) e[$3] = $6
            if ($7 > t[$3]) t[$3] = $7 }
        END { for (h in s) printf "| %s | %.1f | %d | %d | %d | %d |\n", h, s[h] / 60, n[h], e[h], t[h], f[h] }' | sort
    exit 0
fi

sh deploy/bootstrap.sh test
if ! command -v clang-14 >/dev/null 2>&1; then
    echo "fuzz: skipped, this distribution has no clang-14"
    exit 0
fi
mkdir -p "$build/findings"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
trap 'rm -f "$build"/*.$$' EXIT
sanitize=address,undefined
libraries="$(pkg-config --libs hiredis yaml-0.1 jansson libxxhash zlib) -lpthread -ldl -lm"
libraries="$libraries $(pkg-config --libs msgpack-c 2>/dev/null || pkg-config --libs msgpack)"

quietly() {
    "$@" >"$build/log" 2>&1 || { cat "$build/log" >&2; exit 1; }
}

quietly cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang-14 -DEVQ_SANITIZE=$sanitize -DEVQ_CUDA=OFF -DEVQ_WERROR=OFF \
    -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link
[ $# -gt 0 ] || set -- $(ls tests/fuzz/fuzz_*.c | sed 's:.*/fuzz_::; s:\.c$::')

# built LIBRARY: the path of its archive, which the build of a library that needs it has made.
built() {
    find "$build" -name "libevq_$1.a"
}

# compile NAME: what it needs beside shared/ stands in its comment "fuzz: LIBRARY...". 1: it needs what is not installed.
compile() {
    source=tests/fuzz/fuzz_$1.c
    [ -f "$source" ] || { echo "fuzz: no harness '$1' in tests/fuzz" >&2; exit 1; }
    needs="$(sed -n 's:^// fuzz\: ::p' "$source") shared"
    archives=
    for need in $needs; do
        if [ "$need" = gateway ] && ! pkg-config --exists libmicrohttpd; then
            echo "fuzz: $1: skipped, libmicrohttpd is not installed"
            return 1
        fi
        quietly cmake --build "$build" --target "evq_$need"
        archives="$archives $(built "$need")"
        case $need in
        gateway) archives="$archives $(built samples) $(pkg-config --libs libmicrohttpd)" ;;
        engine) archives="$archives $(built samples) $(built kernels_cpu)" ;;
        logger) archives="$archives $(built samples)" ;;
        esac
    done
    # shellcheck disable=SC2086 # Words on purpose.
    quietly clang-14 -std=c11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -Werror -fsanitize=fuzzer,$sanitize -fno-sanitize-recover=all \
        -I"$root" "$source" -Wl,--start-group $archives -Wl,--end-group $libraries -o "$build/fuzz_$1.new"
    mv "$build/fuzz_$1.new" "$build/fuzz_$1" # One that runs keeps its own.
}

# Seconds of user and system time of what this shell ran. A subshell has times of its own: call it with its output in a file.
processor() {
    times >"$build/times.$$"
    awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "[ms]"); sum += 60 * t[1] + t[2] } print sum }' "$build/times.$$"
}

# spent NAME: its processor seconds in the ledger.
spent() {
    ledgers | awk -F '\t' -v name="$1" '$3 == name { s += $4 } END { printf "%d\n", s }'
}

# One turn of a harness, into the ledger.
turn() {
    log=$build/$1.log
    found=$build/corpus/$1
    mkdir -p "$found"
    processor >"$build/before.$$"
    failed=0
    # shellcheck disable=SC2046 # No word where there are no seeds.
    "$build/fuzz_$1" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/findings/$1-" "$found" $([ ! -d "tests/fuzz/seeds/$1" ] || echo "tests/fuzz/seeds/$1") \
        2>"$log" || failed=1
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    reached=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 \2/p' "$log" | tail -n 1)
    processor >"$build/after.$$"
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%Y-%m-%dT%H:%M)" "$commit" "$1" \
        "$(paste "$build/before.$$" "$build/after.$$" | awk '{ print $2 - $1 }')" "${inputs:-0}" "${reached% *}" "${reached#* }" \
        "$failed" >>"$ledger"
    if [ "$failed" = 1 ]; then
        grep -v '^#' "$log" # Without what it says of its progress.
        found_some="$found_some $1"
        return
    fi
    echo "fuzz: $1: clean, ${inputs:-0} inputs"
}

found_some=
names=
for name; do
    ! compile "$name" || names="$names $name"
done
case $mode in
seeds)
    for name in $names; do
        [ ! -d "tests/fuzz/seeds/$name" ] ||
            quietly "$build/fuzz_$name" -runs=0 -artifact_prefix="$build/findings/$name-" "tests/fuzz/seeds/$name"
        echo "fuzz: $name: seeds clean"
    done
    ;;
turn)
    for name in $names; do
        turn "$name"
    done
    ;;
minutes)
    left=$names
    while [ -n "$left" ]; do
        next=
        for name in $left; do
            [ "$(spent "$name")" -lt $((minutes * 60)) ] || continue
            turn "$name"
            case "$found_some " in
            *" $name "*) ;; # It would find the same again.
            *) next="$next $name" ;;
            esac
        done
        left=$next
    done
    ;;
esac
[ -z "$found_some" ] || { echo "fuzz: findings:$found_some" >&2; exit 1; }
