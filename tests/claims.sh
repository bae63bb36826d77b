#!/bin/sh
# Checks that the documents and the code agree: every test that docs/guarantees.md and docs/trackers.md
# name exists, the code contains every guard that tests/mutants removes, and no page has a broken link.
set -eu

cd "$(dirname "$0")/.."
failed=0
count=0
names=$({ cat docs/guarantees.md; grep -E '^\| ' docs/trackers.md; } |
    grep -oE '`[a-z]+_[a-z0-9_]+\*?`' | tr -d '`' | sort -u)
for name in $names; do
    count=$((count + 1))
    stem=${name%\*}
    if [ ! -f "tests/unit/$stem.c" ] && ! grep -rqE "(static void|^void|^    def) $stem" \
        tests/unit tests/integration tests/python tests/peers; then
        case $name in
        result_id | log_id | evalq_client_submit) continue ;; # These are fields and a function.
        test_mlflow | test_wandb | test_trackers | test_tensorboard) continue ;; # These are files in tests/peers.
        esac
        echo "claims: the documents name the test '$name', which does not exist" >&2
        failed=1
    fi
done
python3 tests/mutants/mutate.py --texts || failed=1
python3 tests/pages.py || failed=1
[ "$failed" -eq 0 ] && echo "claims: all $count named tests exist"
exit "$failed"
