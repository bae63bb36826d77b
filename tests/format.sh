#!/bin/sh
# Checks that clang-format-14 would change no C file, and that no file is too long: at most 600 lines, and
# 150 for a main.c. Aim for 500.
set -eu

cd "$(dirname "$0")/.."
git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format-14 --dry-run --Werror
long=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs wc -l |
    awk '$2 != "total" && ($1 > 600 || ($2 ~ /main\.c$/ && $1 > 150)) { print $2 ": " $1 " lines" }')
if [ -n "$long" ]; then
    echo "format: these files are too long; split them by subject:" >&2
    echo "$long" >&2
    exit 1
fi
echo "format: clean"
