#!/bin/sh
# Takes away one fence, dedupe or check after another, in a copy of the tree, and runs the test that must notice.
#   sh tests/mutants/run.sh [--resume] [WORD...]   only the mutants whose entry holds one of the words; installs what is missing
#   sh tests/mutants/run.sh --texts                only whether the text of each entry, and its test, are still in the tree
# Each is tried by its one test case, which is first seen to pass with the guard; build/mutants/tried gets a line for each. --resume
# passes over what that file says was noticed at this commit. Ends with 0 when every mutant was noticed.
set -eu
cd "$(dirname "$0")/../.."
[ "${1:-}" = --texts ] || sh deploy/bootstrap.sh test
exec python3 tests/mutants/mutate.py "$@"
