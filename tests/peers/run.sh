#!/bin/sh
# The Python side against the real frameworks, all of it or some: sh tests/peers/run.sh [--resume] [TEST[:CASE,...]...], such as
# test_serve; see each.py. What is missing is installed and built first; what cannot be had is said in the summary at the end.
#   EVALQ_PEERS_REQUIREMENTS  what goes into the environment (default: tests/peers/requirements.txt, into build/peers/venv)
#   EVALQ_PEERS_VENV          an environment that is there already; nothing is installed into it
#   EVALQ_TEST_BUILD          a build that is there already, with its tests
#   EVALQ_TEST_FAMILY         test_models, test_rope and test_forced_family: only models whose name begins so
set -eu

cd "$(dirname "$0")/../.."
source=$(pwd)
build=${EVALQ_TEST_BUILD:-$source/build/peers/build}
requirements=${EVALQ_PEERS_REQUIREMENTS:-tests/peers/requirements.txt}
kind=$(basename "$requirements" .txt)
kind=${kind#requirements} # -transformers4, say.
venv=${EVALQ_PEERS_VENV:-$source/build/peers/venv$kind}

if [ -z "${EVALQ_TEST_BUILD:-}" ]; then
    sh deploy/bootstrap.sh peers
    cmake -S . -B "$build" -G Ninja -DEVQ_TESTS=ON -DEVQ_CUDA=OFF
    cmake --build "$build" --target evalq evalq_cli evalq-worker evalq-logger evalq-gateway \
        encode_text item_tokens dump_tensors gpu_compare lm_scores publish_results statistics_cases
fi

# install WHAT ARGUMENT...: what cannot be installed stops none of the tests but those that need it.
install() {
    what=$1
    shift
    "$venv/bin/pip" install --quiet "$@" || {
        echo "NOT RUN in part: $what cannot be installed"
        complete=
    }
}
if [ -z "${EVALQ_PEERS_VENV:-}" ] && [ "$(cat "$venv/installed" 2>/dev/null)" != "$(cksum <"$requirements")" ]; then
    complete=yes
    python3 -m venv "$venv"
    # By itself: where the second index does not answer, each package would be asked for there.
    install "torch for CPUs" --no-deps --extra-index-url https://download.pytorch.org/whl/cpu "$(grep ^torch== "$requirements")"
    install "what $requirements names" -r "$requirements"
    if [ -z "$kind" ]; then
        install "a tracker" mlflow==3.17.2 wandb==0.31.0 tensorboard==2.21.0
        install "another tracker" trackio==0.43.0 swanlab==0.10.3 comet_ml==3.58.8
        install lm_eval lm_eval==0.4.13
        install "what the statistics are compared with" scipy==1.17.1 statsmodels==0.15.0
        install schemathesis schemathesis==4.32.5
        install "writers of other formats" orbax-checkpoint==0.12.8 jax==0.10.2 flax==0.12.8 keras==3.15.1 gguf==0.19.0 h5py==3.16.0
        # With what the tests use of it: its full list is of every model and task.
        install lmms_eval --no-deps lmms_eval==0.7.3
        install lmms-engine --no-deps lmms-engine==0.1.4
        install "what lmms_eval needs" fastapi==0.165.0 pydantic==2.14.3 httpx==0.28.1 uvicorn loguru python-dotenv jsonlines \
            pytablewriter sacrebleu evaluate datasets numexpr tenacity einops sympy tqdm-multiprocess latex2sympy2 zstandard pillow \
            nltk openai opencv-python-headless 'av<16' tiktoken scikit-learn 'filelock<4'
        install "remote stores" 'moto[server]==5.2.5' s3fs==2026.9.0 paramiko==5.1.0
        install "Google Cloud Storage" gcsfs==2026.10.1 gcp-storage-emulator==2026.7.19
        DS_BUILD_OPS=0 install deepspeed --no-build-isolation --no-deps deepspeed==0.19.8 hjson py-cpuinfo ninja msgpack einops
        install "trainers" trl==1.16.0 datasets "ray[train]==2.60.0" optax==0.2.8
    fi
    [ -z "$complete" ] || cksum <"$requirements" >"$venv/installed"
fi

export EVALQ_TEST_BUILD="$build" EVALQ_TEST_WHEEL=full EVALQ_TEST_DEADLINE="${EVALQ_TEST_DEADLINE:-1800}"
export TORCH_EXTENSIONS_DIR="$venv/torch-extensions" # DeepSpeed compiles one.
exec "$venv/bin/python" tests/peers/each.py "build/peers/logs$kind" "$@"
