#!/bin/sh
# Checks the claims of the documents: every test that docs/guarantees.md and docs/trackers.md name exists, every guard that
# tests/mutants removes is still in the code, and every link of the pages leads somewhere.
set -eu

cd "$(dirname "$0")/.."
failed=0
count=0
for name in $({ cat docs/guarantees.md; grep -E '^\| ' docs/trackers.md; } | grep -oE '`[a-z]+_[a-z0-9_]+\*?`' | tr -d '`' | sort -u); do
    count=$((count + 1))
    stem=${name%\*}
    if [ ! -f "tests/unit/$stem.c" ] && ! grep -rqE "(static void|^void|^    def) $stem" tests/unit tests/integration tests/python tests/peers; then
        case $name in
        result_id | evalq_client_submit) continue ;; # A field and a function.
        test_mlflow | test_wandb | test_tensorboard) continue ;; # Files of tests/peers.
        esac
        echo "claims: the documents name '$name', which no test is called" >&2
        failed=1
    fi
done
python3 tests/mutants/mutate.py --texts || failed=1
python3 tests/pages.py || failed=1
[ "$failed" -eq 0 ] && echo "claims: $count tests named, all there"
exit "$failed"
