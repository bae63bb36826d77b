#!/bin/sh
# The Python side against the real frameworks: sh tests/peers/run.sh [TEST...], such as test_serve. Packages come from the
# registry into build/peers/venv (or the environment in EVALQ_PEERS_VENV); what cannot be installed is reported as not run.
set -eu

cd "$(dirname "$0")/../.."
source=$(pwd)
build=${EVALQ_TEST_BUILD:-$source/build/default}
venv=${EVALQ_PEERS_VENV:-$source/build/peers/venv}

if [ -z "${EVALQ_TEST_BUILD:-}" ]; then
    cmake --preset default
    cmake --build --preset default # Also what was built of an older tree.
fi
cmake --build "$build" --target encode_text >/dev/null || echo "NOT RUN: test_tokenizer has no encode_text"
cmake --build "$build" --target item_tokens >/dev/null || echo "NOT RUN: test_harness has no item_tokens"
cmake --build "$build" --target dump_tensors >/dev/null || echo "NOT RUN: test_checkpoints has no dump_tensors"
cmake --build "$build" --target lm_scores >/dev/null || echo "NOT RUN: test_models has no lm_scores"
cmake --build "$build" --target publish_results >/dev/null || echo "NOT RUN: the tests of trackers have no publish_results"
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    # By itself: where the second index does not answer, each package would be asked for there.
    "$venv/bin/pip" install --quiet --no-deps --extra-index-url https://download.pytorch.org/whl/cpu \
        "$(grep ^torch== tests/peers/requirements.txt)" || echo "NOT RUN in part: there is no torch for CPUs"
    "$venv/bin/pip" install --quiet -r tests/peers/requirements.txt ||
        echo "NOT RUN in part: the package registry did not answer"
    "$venv/bin/pip" install --quiet mlflow==3.17.2 wandb==0.31.0 tensorboard==2.21.0 ||
        echo "NOT RUN: not every tracker is installed"
    "$venv/bin/pip" install --quiet lm_eval==0.4.13 || echo "NOT RUN: lm_eval is not installed"
    DS_BUILD_OPS=0 "$venv/bin/pip" install --quiet --no-build-isolation --no-deps deepspeed==0.19.8 \
        hjson py-cpuinfo ninja msgpack einops || echo "NOT RUN: deepspeed is not installed"
fi

failed=0
export EVALQ_TEST_BUILD="$build" EVALQ_TEST_WHEEL=full
"$venv/bin/python" -c 'import torch, transformers, lightning; print("torch", torch.__version__, "transformers",
    transformers.__version__, "lightning", lightning.__version__)' || {
    echo "NOT RUN: torch, transformers and lightning are needed"
    exit 0
}
if "$venv/bin/python" -c 'import mypy' 2>/dev/null; then
    echo "== mypy --strict"
    (cd producer/python && "$venv/bin/python" -m mypy --strict evalq build_backend) || failed=1
fi
for test in ${*:-$(cd tests/peers && ls test_*.py | sed 's/\.py$//') ../python/test_wheel}; do
    echo "== $test"
    status=0
    "$venv/bin/python" -W ignore "tests/peers/$test.py" || status=$?
    case $status in 0) ;; 77) echo "NOT RUN: $test" ;; *) failed=1 ;; esac
done
exit $failed
