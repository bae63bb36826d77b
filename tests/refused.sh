#!/bin/sh
# Counts the bad inputs in the tests that evalq refuses with its own message: sh tests/refused.sh [FOLDER]
# FOLDER has the built tests (default build/test/bin). Tests with a table in C are run and print its count.
# For the tables in tests/bad/, the rows are counted; each is checked by the test that names the file. A
# count below the expected minimum is a failure, because a table lost entries or its test does not run.
set -eu

cd "$(dirname "$0")/.."
folder=${1:-build/test/bin}
minimum=1700
total=0
for name in test_checkpoint_hostile test_torch_hostile test_pickle test_torch_legacy test_dcp \
    test_layout test_adapter test_datasets test_token_file test_tokenizer_bad test_models_refused test_config_bad; do
    found=$("$folder/$name" 2>&1 | tr -d '\r' | grep -oE '[0-9]+ [a-z._ ]+ refused$') || {
        echo "refused: $name prints no count" >&2
        exit 1
    }
    echo "$found"
    total=$((total + $(echo "$found" | awk '{ sum += $1 } END { print sum }')))
done
for file in tests/bad/*.txt; do
    name=$(basename "$file")
    grep -qrF "\"$name\"" tests/unit tests/integration tests/python || {
        echo "refused: no test reads $file" >&2
        exit 1
    }
    count=$(grep -cvE '^(#|$)' "$file")
    echo "$count rows of $name refused"
    total=$((total + count))
done
echo "refused: $total bad inputs in all"
[ "$total" -ge "$minimum" ] || { echo "refused: expected at least $minimum" >&2; exit 1; }
