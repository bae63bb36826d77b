#!/bin/sh
# Installs what is missing, builds, and runs every test. Arguments go to ctest: sh tests/run.sh -R queue
#   EVQ_PRESET=test|asan|tsan   which build (default: test)
set -eu

cd "$(dirname "$0")/.."
preset=${EVQ_PRESET:-test}

# Redis 7.2 and newer do not start in a locale that is not installed, as ssh brings along.
LC_ALL=C.UTF-8
export LC_ALL
sh deploy/bootstrap.sh test
cmake --preset "$preset"
cmake --build --preset "$preset"
exec ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "$@"
