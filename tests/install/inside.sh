#!/bin/sh
# What run.sh does as an ordinary user inside a bare system.
#   inside.sh pip    makes two environments and installs the wheel: with and without the extra "server"
#   inside.sh use    measures two checkpoints in each of two projects, without a network
set -eu

cd "$HOME/test"
wheel=$(echo "$PWD"/evalq-*.whl)

# expect WHAT COMMAND...: fails with a sentence if the command fails.
expect() {
    what=$1
    shift
    "$@" || { echo "inside: $what: '$*' failed" >&2 && exit 1; }
}

for program in cc gcc clang redis-server valkey-server; do
    if command -v "$program"; then
        echo "inside: this system is not bare: it has $program" >&2
        exit 1
    fi
done
[ "$(id -u)" -ne 0 ]

install_wheel() {
    . ./pip.env
    for name in bare full; do
        python3 -m venv "$name"
    done
    full/bin/pip install --no-cache-dir "$wheel[server]"
    bare/bin/pip install --no-index "$wheel"
    full/bin/pip list
}

# measure PROJECT WORD...: evalq init WORD..., then a training that waits for the metric of each checkpoint and loads the page.
measure() {
    project=$1
    shift
    mkdir "$project"
    cp train.py my_eval.py "$project"
    (
        cd "$project"
        expect "$project" evalq init "$@"
        expect "$project" timeout 300 evalq up --workers 1 -- python train.py
        expect "$project: no metric in the JSONL file" grep -r --include='*.jsonl' '"bytes":300' .
    )
}

use() {
    # Without the extra and without Redis, evalq says what is missing.
    if PATH=$PWD/bare/bin:$PATH timeout 60 evalq up -- true 2>no-server.txt; then
        echo "inside: evalq up started without a server" >&2
        exit 1
    fi
    cat no-server.txt
    expect "the sentence without a server" grep -q "pip install 'evalq\[server\]'" no-server.txt

    PATH=$PWD/full/bin:$PATH
    for program in evalq evalq-worker evalq-logger evalq-gateway; do
        expect "$program" "$program" --version
        expect "the manual page of $program" test -s "full/share/man/man1/$program.1"
    done
    measure function --function my_eval:evaluate
    # The shell expands the text later, for each job.
    # shellcheck disable=SC2016
    measure command --command 'echo "{\"bytes\": $(wc -c <"$EVALQ_CHECKPOINT")}" >"$EVALQ_RESULT"'
    echo "Python $(python3 -c 'import platform; print(platform.python_version())')," \
        "glibc $(python3 -c 'import platform; print(platform.libc_ver()[1])')," \
        "$(full/bin/pip list --format=freeze | grep '^valkey-\?[le]' | tr -s = ' ')" >versions
}

case $1 in
pip) install_wheel ;;
use) use ;;
esac
