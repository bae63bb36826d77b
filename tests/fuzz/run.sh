#!/bin/sh
# Builds every tests/fuzz/fuzz_NAME.c with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each.
#   sh tests/fuzz/run.sh [SECONDS]    each for that long (default 30), from seeds/NAME and what earlier runs found
#   sh tests/fuzz/run.sh --seeds      the seeds alone: what CI does
#   FUZZ=codec sh tests/fuzz/run.sh   one of them
# A finding is kept in build/fuzz/findings/; give it to build/fuzz/fuzz_NAME to see it again.
set -eu

cd "$(dirname "$0")/../.."
root=$(pwd)
seconds=${1:-30}
set --
build=build/fuzz
if ! command -v clang-14 >/dev/null 2>&1; then
    echo "fuzz: skipped, clang-14 is not installed (sh deploy/bootstrap.sh test installs it)"
    exit 0
fi

sanitize=address,undefined
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang-14 -DEVQ_SANITIZE=$sanitize -DEVQ_CUDA=OFF -DEVQ_WERROR=OFF \
    -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" --target evq_shared >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
if grep -qE '^[[:space:]]*// fuzz: engine' tests/fuzz/fuzz_*.c; then
    cmake --build "$build" --target evq_engine >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
fi
mkdir -p "$build/findings"

libraries="$(pkg-config --libs hiredis yaml-0.1 jansson libxxhash zlib) -lpthread -ldl -lm"
libraries="$libraries $(pkg-config --libs msgpack-c 2>/dev/null || pkg-config --libs msgpack)"
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    short=${name#fuzz_}
    [ "${FUZZ:-$short}" = "$short" ] || continue
    archives=$build/shared/libevq_shared.a
    if grep -qE '^[[:space:]]*// fuzz: engine' "$source"; then
        archives="$(find "$build" -name 'libevq_engine.a') $archives"
    fi
    if grep -qE '^[[:space:]]*// fuzz: gateway' "$source"; then
        if ! cmake --build "$build" --target evq_gateway >"$build.log" 2>&1; then
            pkg-config --exists libmicrohttpd && { cat "$build.log"; exit 1; }
            echo "fuzz: $short: skipped, libmicrohttpd is not installed"
            continue
        fi
        archives="$(find "$build" -name 'libevq_gateway.a') $archives"
    fi
    # shellcheck disable=SC2086 # Words on purpose.
    clang-14 -std=c11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -Werror -fsanitize=fuzzer,$sanitize -fno-sanitize-recover=all \
        -I"$root" "$source" $archives $libraries -o "$build/$name"
    seeds=tests/fuzz/seeds/$short
    found=$build/corpus/$short
    mkdir -p "$found"
    if [ "$seconds" = --seeds ]; then
        if [ -d "$seeds" ]; then
            "$build/$name" -runs=0 -artifact_prefix="$build/findings/$short-" "$seeds" 2>"$build.log" ||
                { cat "$build.log"; exit 1; }
        fi
        echo "fuzz: $short: seeds clean"
        continue
    fi
    [ ! -d "$seeds" ] || set -- "$seeds"
    "$build/$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/findings/$short-" "$found" "$@" 2>"$build.log" || { cat "$build.log"; exit 1; }
    echo "fuzz: $short: clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "$build.log") inputs"
    set --
done
