#!/bin/sh
# Shows all of evalq on one machine with real data. It takes less than two minutes after the build.
# Two programs train, one after the other: an MLP on MNIST digits, and a small GPT on the bytes of tiny
# Shakespeare. Two CPU workers evaluate each checkpoint meanwhile. The metrics go to TensorBoard event
# files, JSONL and a `best` link. Ctrl-C stops everything; the results stay in build/demo.
set -eu

cd "$(dirname "$0")/.."
source=$(pwd)
bin=$source/build/default/bin
data=$source/tests/data/mnist
demo=$source/build/demo

sh deploy/bootstrap.sh build
cmake --preset default
cmake --build --preset default

rm -rf "$demo"
mkdir -p "$demo"
cat >"$demo/evalq.yaml" <<YAML
roots:
  demo: .
  data: $data

suites:
  heldout: # The 2,000 images that are not trained on. The training program writes them.
    tasks:
      - name: digits
        type: classification
        model: {activation: relu}
        data:
          format: idx
          inputs: checkpoints/heldout-images-idx3-ubyte
          labels: checkpoints/heldout-labels-idx1-ubyte
          scale: 1/255
  text: # The last 16 KiB of the text, which are not trained on.
    tasks:
      - name: shakespeare
        type: perplexity
        mode: blocks
        data: {format: text, text: gpt/heldout.txt}
  mnist: # All 10,000 test images.
    tasks:
      - name: mnist
        type: classification
        model: {activation: relu}
        data:
          format: idx
          inputs: $data/t10k-images-idx3-ubyte.gz
          labels: $data/t10k-labels-idx1-ubyte.gz
          scale: 1/255

logger:
  directory: results
YAML

cat >"$demo/train.sh" <<SH
"$bin/train_mnist" --data "$data" --out checkpoints --run digits --suites heldout &&
    "$bin/train_gpt" --text "$source/tests/data/tinyshakespeare.txt" --out gpt --run shakespeare --suites text
SH

cd "$demo"
mkdir checkpoints gpt
started=$(date +%s)
"$bin/evalq" up --workers 2 -- sh train.sh

echo
echo "A real trained checkpoint on all 10,000 test images (published: accuracy 0.9849, cross-entropy 0.39055169):"
"$bin/evalq-worker" eval "$data/mlp_784_512_128_32_10.safetensors" --suite mnist

echo
echo "The demo took $(($(date +%s) - started)) seconds after the build."
