#!/bin/sh
# Installs missing packages, builds, and runs tests.
#   sh tests/run.sh            runs all tests
#   sh tests/run.sh quick      checks format and layering, and runs the tests that are not in slow.txt;
#                              each of these takes less than two seconds
#   sh tests/run.sh NAME ...   runs the named tests; you may leave out test_ and test_python_
#   sh tests/run.sh -R queue   passes all arguments to ctest if the first one begins with a dash
#   EVQ_PRESET=test|asan|tsan  selects the build (default: test)
set -eu

cd "$(dirname "$0")/.."
preset=${EVQ_PRESET:-test}

# Redis 7.2 and later do not start if the locale is not installed. ssh may pass on such a locale.
LC_ALL=C.UTF-8
export LC_ALL
sh deploy/bootstrap.sh test
cmake --preset "$preset"
cmake --build --preset "$preset"

# run ARGUMENT...: runs ctest with these arguments. Most tests wait more than they compute, so twice as many
# run at a time as there are processors.
run() {
    ctest --test-dir "build/$preset" --output-on-failure -j "$((2 * $(nproc)))" "$@"
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
