#!/bin/sh
# Checks what may include what. Programs include shared/ and never each other. The folders of shared/ are
# layers, with shared/base/ at the bottom. worker/ also includes
# kernels/backend.h. kernels/ knows neither Redis nor checkpoints. One .c file includes hiredis, and one
# msgpack. CUDA appears only under kernels/cuda/. No two files include each other. An include guard
# follows its path.
set -eu

cd "$(dirname "$0")/.."
failed=0

# refuse WHERE PATTERN WHY [EXCEPT]: fails if a line of a tracked C file in WHERE matches PATTERN and not
# EXCEPT.
refuse() {
    found=$(git ls-files "$1" | grep -E '\.(c|h|cu|cuh)$' |
        xargs -r grep -nE "$2" /dev/null | grep -vE "${4:-^$}" || true)
    if [ -n "$found" ]; then
        echo "layering: $3:" >&2
        echo "$found" >&2
        failed=1
    fi
}

include='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
refuse shared "$include\"(producer|worker|logger|kernels)/" "shared/ includes a program or a backend"
# The folders of shared/, from the bottom up: each may include itself and those named.
for folder in 'base' 'redis base' 'queue redis base' 'remote base' 'config remote queue redis base' 'checkpoint base' \
    'statistics base' 'samples statistics queue base'; do
    name=${folder%% *}
    refuse "shared/$name" "$include\"shared/" "shared/$name/ includes a folder above it" \
        "\"shared/($(echo "$folder" | tr ' ' '|'))/"
done
refuse kernels "$include\"(producer|worker|logger)/" "kernels/ includes a program"
refuse kernels "$include\"shared/" "kernels/ includes more of shared/ than errors" '"shared/base/(error|clock|arena)\.h"'
refuse producer "$include\"(worker|logger|kernels)/" "producer/ includes another program"
refuse logger "$include\"(worker|producer|kernels)/" "logger/ includes another program"
refuse worker "$include\"(producer|logger)/" "worker/ includes another program"
refuse worker "$include\"kernels/" "worker/ includes more of kernels/ than backend.h" '"kernels/backend\.h"'
refuse producer/examples "$include\"[^\"]*/" "examples include more than the public header and their own"
refuse . "$include[<\"]hiredis" "hiredis is included outside the connection" '^(shared/redis/conn_reader|tests/bench/by_hand)\.c:'
refuse . "$include<openssl" "OpenSSL is included outside the connection" '^(shared/redis/conn_(openssl|tls)\.[ch]|tests/[a-z/_]*\.c):'
refuse . "$include<msgpack" "msgpack is included outside the codec" '^(shared/queue/codec[a-z_]*\.[ch]|tests/[a-z/_]*\.c):'
refuse . "$include<cu(da|blas)" "CUDA is included outside kernels/cuda/" '^kernels/cuda/'
refuse . '\b(system|popen|strcpy|strcat|sprintf|vsprintf|strtok|gets|alloca)\(' "a function this project does not use" '^tests/|^[^:]*:[0-9]+: *(/?\*|//)'

count=$(git ls-files 'shared/*.c' | xargs -r grep -lE "$include[<\"]hiredis" | wc -l)
if [ "$count" -gt 1 ]; then
    echo "layering: $count files of shared/ include hiredis, expected one" >&2
    failed=1
fi
# A header's include guard is EVQ_ and its path. evalq.h and the examples are used outside of evalq,
# and the emulator's headers stand in for CUDA's and the kernels'.
wrong=$(git ls-files '*.h' '*.cuh' |
    grep -vE '^(producer/client/evalq\.h|producer/examples/|tests/gpu/emulator/include/)' |
    xargs awk '/^#ifndef / { guard = toupper(FILENAME); gsub(/[^A-Z0-9]/, "_", guard)
        if ($2 != "EVQ_" guard) { print FILENAME ": " $2 ", expected EVQ_" guard }
        nextfile }')
if [ -n "$wrong" ]; then
    echo "layering: include guards that do not follow their path:" >&2
    echo "$wrong" >&2
    failed=1
fi
# Circles are searched in compiled objects, because only the compiler knows which file uses which.
if [ -d build/test ]; then
    python3 tests/circles.py build/test || failed=1
fi
[ "$failed" -eq 0 ] && echo "layering: clean"
exit "$failed"
