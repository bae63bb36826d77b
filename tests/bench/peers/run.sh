#!/bin/sh
# The queues that people know beside evalq: Celery, RQ, BullMQ (and beanstalkd for speed), with Redis' same settings, in turns.
#   sh tests/bench/peers/run.sh speed [JOBS [ROUNDS [MODE...]]] [--quick] [--awake]     no-op jobs a second
#   sh tests/bench/peers/run.sh cost [JOBS]                         commands and instructions of the server a job; holds on a busy machine
#   sh tests/bench/peers/run.sh faults [JOBS [SEED [CASE...]]]      lost and repeated jobs: pause, kill, cut
# Installs what is missing: beanstalkd (apt), a Python environment in build/peers-bench, BullMQ by npm. Where npm's registry does
# not answer, BullMQ's own port to Python, which runs the same scripts in Redis, stands in for it; or say where a bundle of
# BullMQ and ioredis is: BULLMQ_JS=FILE BULLMQ_VERSION=TEXT.
set -eu
case ${1:-} in
-h | --help)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
cd "$(dirname "$0")/../../.."
home="$(pwd)/build/peers-bench"
what=${1:-speed}
[ $# -gt 0 ] && shift

sh deploy/bootstrap.sh test
if ! command -v beanstalkd >/dev/null; then
    apt-get install -y -q beanstalkd >/dev/null
fi
if [ "$what" = cost ] && ! command -v valgrind >/dev/null; then
    apt-get install -y -q valgrind >/dev/null
fi
if [ ! -e "$home/venv/done" ]; then
    python3 -m venv "$home/venv"
    "$home/venv/bin/pip" install -q -r tests/bench/peers/requirements.txt
    touch "$home/venv/done"
fi
if [ -z "${BULLMQ_JS:-}" ] && command -v npm >/dev/null; then
    if [ ! -e "$home/node_modules/bullmq" ]; then
        timeout 60 npm install --silent --no-fund --prefix "$home" bullmq ioredis >/dev/null 2>&1 || true
    fi
    if [ -e "$home/node_modules/bullmq" ]; then
        export BULLMQ_JS="$home/node_modules/bullmq"
        export BULLMQ_VERSION="$(node -p "require('$BULLMQ_JS/package.json').version")"
    fi
fi
cmake -S . -B build/bench -G Ninja -DEVQ_TESTS=ON -DEVQ_CUDA=OFF >/dev/null
ninja -C build/bench evalq_noop beanstalk_noop noop_evaluator fault_proxy evalq_cli evalq evalq-worker evalq-logger >/dev/null
export EVALQ_TEST_BUILD="$(pwd)/build/bench"
exec "$home/venv/bin/python" "tests/bench/peers/$what.py" "$@"
