#!/bin/sh
# Prints the folder of the cuBLAS that the CUDA module built by this nvcc asks for, where neither the loader nor the module finds one by
# itself: the toolkit's own, or the one that lies beside PyTorch. Nothing: none needs to be told of, or there is none.
#   sh tests/gpu/find_cublas.sh PYTHON
set -eu
name=libcublas.so.$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')

holds() { [ -e "$1/$name" ]; }

in_library_path() {
    IFS=:
    for folder in ${LD_LIBRARY_PATH:-}; do
        ! holds "${folder:-.}" || return 0
    done
    return 1
}

if ldconfig -p 2>/dev/null | grep -qF "$name " || holds /usr/local/cuda/lib64 || (in_library_path); then
    exit 0
fi
# nvcc may be a script elsewhere: it says itself where its toolkit is.
toolkit=$(nvcc --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
for folder in "$toolkit"/targets/*/lib "$toolkit/lib64" "$toolkit/lib"; do
    if [ -n "$toolkit" ] && holds "$folder"; then
        (cd "$folder" && pwd)
        exit 0
    fi
done
"$1" -c 'import glob, os, sys
found = [f for p in sys.path for f in glob.glob(os.path.join(glob.escape(p), "nvidia", "*", "lib", sys.argv[1]))]
print(os.path.abspath(os.path.dirname(found[0])) if found else "")' "$name" 2>/dev/null || true
