#!/bin/sh
# Takes away one fence, dedupe or check after another, in a copy of the tree, and runs the test that must notice.
#   sh tests/mutants/run.sh [WORD...]   only the mutants whose entry holds one of the words; needs what tests/run.sh needs
#   sh tests/mutants/run.sh --texts     only whether the text of each entry is still in the tree
# Ends with 0 when every mutant was noticed by its test. Hours on a busy machine, half an hour on a quiet one.
set -eu
cd "$(dirname "$0")/../.."
exec python3 tests/mutants/mutate.py "$@"
