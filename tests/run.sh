#!/bin/sh
# Installs what is missing, builds, and runs tests.
#   sh tests/run.sh            every test
#   sh tests/run.sh quick      those that take less than two seconds each (not those of tests/slow.txt), format and layering
#   sh tests/run.sh NAME ...   the tests of these names, as ctest -N prints them; test_ and test_python_ may be left out
#   sh tests/run.sh -R queue   arguments that begin with a dash go to ctest
#   EVQ_PRESET=test|asan|tsan  which build (default: test)
set -eu

cd "$(dirname "$0")/.."
preset=${EVQ_PRESET:-test}

# Redis 7.2 and newer do not start in a locale that is not installed, as ssh brings along.
LC_ALL=C.UTF-8
export LC_ALL
sh deploy/bootstrap.sh test
cmake --preset "$preset"
cmake --build --preset "$preset"

# run ARGUMENT...: ctest with these.
run() {
    ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "$@"
}

case ${1:-} in
quick)
    shift
    sh tests/format.sh
    sh tests/layering.sh
    run -E "^($(grep -v '^#' tests/slow.txt | paste -sd '|'))\$" "$@"
    ;;
'' | -*)
    run "$@"
    ;;
*)
    names=$(printf '%s|' "$@")
    run --no-tests=error -R "^(test_|test_python_)?(${names%|})\$"
    ;;
esac
