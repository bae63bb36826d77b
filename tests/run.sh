#!/bin/sh
# Installs what is missing, builds, and runs every test. Arguments go to ctest: sh tests/run.sh -R queue
#   EVQ_PRESET=test|asan|tsan   which build (default: test)
set -eu

cd "$(dirname "$0")/.."
preset=${EVQ_PRESET:-test}

sh deploy/bootstrap.sh test
cmake --preset "$preset"
cmake --build --preset "$preset"
exec ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" "$@"
