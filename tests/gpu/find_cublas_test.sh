#!/bin/sh
# That tests/gpu/find_cublas.sh finds what it should, with an nvcc and an ldconfig that are scripts, and folders as toolkits and Python
# environments have them.
#   sh tests/gpu/find_cublas_test.sh
set -eu
cd "$(dirname "$0")"
if ls /usr/local/cuda/lib64/libcublas.so.* >/dev/null 2>&1; then
    echo "skipped: this machine's own cuBLAS comes before all others"
    exit 77
fi
place=$(cd "$(mktemp -d)" && pwd)
trap 'rm -rf "$place"' EXIT
unset LD_LIBRARY_PATH
mkdir -p "$place/bin" "$place/a [b]" "$place/toolkit/bin"
for folder in "a [b]/nvidia/cu13/lib" "site/nvidia/cublas/lib" "toolkit/targets/x86_64-linux/lib" old/lib64 own; do
    mkdir -p "$place/$folder"
done
cat >"$place/bin/nvcc" <<END
#!/bin/sh
case \$1 in
--version) echo "Cuda compilation tools, release \$RELEASE, V\$RELEASE.88" ;;
--dryrun) echo "#\$ _HERE_=x" >&2 && echo "#\$ TOP=\$TOOLKIT" >&2 ;;
esac
END
printf '#!/bin/sh\nprintf "\\t%%s (libc6,x86-64) => /usr/lib/x\\n" $KNOWN\n' >"$place/bin/ldconfig"
printf '#!/bin/sh\nexec python3 -S "$@"\n' >"$place/bin/python" # Without the wheels of this machine.
chmod +x "$place"/bin/*
PATH=$place/bin:$PATH
export PATH PYTHONPATH="$place/a [b]:$place/site" KNOWN="libcublas.so.11 libcublasLt.so.13" RELEASE=13.0 TOOLKIT="$place/toolkit/bin/.."

# expect WHAT FOLDER [VARIABLE=VALUE...]: what it prints in that environment.
expect() {
    what=$1 folder=$2
    shift 2
    found=$(env "$@" sh find_cublas.sh python)
    if [ "$found" != "$folder" ]; then
        echo "FAIL $what: '$found' in place of '$folder'"
        exit 1
    fi
    echo "ok $what"
}

wheel13="$place/a [b]/nvidia/cu13/lib"
wheel12=$place/site/nvidia/cublas/lib
own=$place/toolkit/targets/x86_64-linux/lib
expect "there is none" ""
: >"$wheel13/libcublas.so.13"
: >"$wheel12/libcublas.so.12"
expect "a wheel of CUDA 13" "$wheel13"
expect "a wheel of CUDA 12" "$wheel12" RELEASE=12.9
: >"$place/old/lib64/libcublas.so.12"
expect "a toolkit of another version" "$wheel13" TOOLKIT="$place/old"
expect "the toolkit's own, lib64" "$place/old/lib64" TOOLKIT="$place/old" RELEASE=12.9
expect "a compiler that does not say where it is" "$wheel13" TOOLKIT=
: >"$own/libcublas.so.13"
expect "the toolkit's own before a wheel" "$own"
expect "the loader knows it" "" KNOWN="libcublas.so.13 libcublas.so.12"
: >"$place/own/libcublas.so.13"
expect "LD_LIBRARY_PATH has it" "" LD_LIBRARY_PATH="/nowhere:$place/own"
expect "LD_LIBRARY_PATH has none" "$own" LD_LIBRARY_PATH=/nowhere
