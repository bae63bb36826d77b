#!/bin/sh
# Every test that docs/guarantees.md and docs/trackers.md name exists, so that no promise stands on a test that was renamed or removed; and
# every guard that tests/mutants takes away is still in the code; and every link of the pages leads somewhere.
set -eu

cd "$(dirname "$0")/.."
failed=0
count=0
for name in $(cat docs/guarantees.md docs/trackers.md | grep -E '^\| ' | grep -oE '`[a-z]+_[a-z0-9_]+\*?`' | tr -d '`' | sort -u); do
    count=$((count + 1))
    stem=${name%\*}
    if [ ! -f "tests/unit/$stem.c" ] && ! grep -rqE "(static void|^void|^    def) $stem" tests/unit tests/integration tests/python tests/peers; then
        case $name in
        result_id | test_mlflow | test_wandb | test_tensorboard) continue ;; # A field, and files of tests/peers.
        esac
        echo "claims: the documents name '$name', which no test is called" >&2
        failed=1
    fi
done
python3 tests/mutants/mutate.py --texts || failed=1
python3 tests/pages.py || failed=1
[ "$failed" -eq 0 ] && echo "claims: $count tests named, all there"
exit "$failed"
