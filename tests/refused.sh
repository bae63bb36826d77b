#!/bin/sh
# How many bad inputs, made by hand, are refused, each with its own sentence: sh tests/refused.sh [FOLDER], where the tests were
# built (build/test/bin). Tables in C are counted by their tests, which are run; rows of tests/bad/ where they stand: the test that
# names the file fails when one of them is answered otherwise. Fewer than before is a failure: a table lost entries, or its
# test does not run.
set -eu

cd "$(dirname "$0")/.."
folder=${1:-build/test/bin}
least=1700
total=0
for name in test_checkpoint_hostile test_torch_hostile test_pickle test_torch_legacy test_dcp test_layout test_adapter test_datasets test_token_file \
    test_tokenizer_bad test_models test_config_bad; do
    found=$("$folder/$name" 2>&1 | tr -d '\r' | grep -oE '[0-9]+ [a-z._ ]+ refused$') || {
        echo "refused: $name tells nothing" >&2
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
[ "$total" -ge "$least" ] || { echo "refused: expected at least $least" >&2; exit 1; }
