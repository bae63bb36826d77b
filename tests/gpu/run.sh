#!/bin/sh
# Everything there is to test and measure on an NVIDIA GPU, in less than nine minutes: builds the CUDA module and holds it against the CPU
# backend, plain loops and, where it is installed, PyTorch; runs the small cases under compute-sanitizer; then benchmarks, beside
# Transformers where that is installed. Needs CMake, a C compiler, nvcc, a GPU, cuBLAS; no network and none of the other libraries.
#   sh tests/gpu/run.sh [DEVICE]
#   EVALQ_BIN=DIR       where evalq, evalq-worker and evalq-logger are: the whole path through Redis too (where they have no module, with this one)
#   EVQ_GPU_PYTHON=FILE the Python that may have PyTorch and Transformers (python3)
# Right numbers come first, then rates and the path through Redis, then what takes long; what no time is left for is said.
# Prints a table; the same as one JSON file: build/gpu/result.json. Exit status 0: all is well; 1: not; 77: no nvcc, or no device.
set -eu
cd "$(dirname "$0")/../.."
device=${1:-0}
python=${EVQ_GPU_PYTHON:-python3}
build=build/gpu
lines=$build/lines
began=$(date +%s)
faults=""
child=""
mkdir -p "$build"
: >"$lines"

left() { echo $((530 - ($(date +%s) - began))); }

# stage NAME SECONDS COMMAND...: its output here and, what begins with json, into the file. Status: the command's; 78: no time for it.
stage() {
    name=$1 most=$2
    shift 2
    cut=0
    [ "$most" -le "$(left)" ] || { most=$(left) cut=78; }
    if [ "$most" -lt 10 ]; then
        echo "NOT RUN: $name: no time left"
        return 78
    fi
    echo "== $name"
    status=0
    timeout "$most" "$@" >"$build/out" 2>&1 &
    child=$! # Waited for, so that a signal need not wait for it.
    wait "$child" || status=$?
    child=
    case $name:$status in
    configure:0 | build:0) tail -1 "$build/out" ;;
    *) grep -v '^json ' "$build/out" || true ;;
    esac
    sed -n 's/^json //p' "$build/out" >>"$lines"
    if [ "$status" -eq 124 ] && [ "$cut" -ne 0 ]; then
        echo "NOT DONE: $name: no more than $most s were left"
        return "$cut"
    fi
    [ "$status" -ne 124 ] || echo "FAIL $name: not done within $most s"
    return "$status"
}

# Failed unless it passed, or was skipped (77), or there was no time (78).
must() {
    stage "$@" || case $? in
    77 | 78) ;;
    *) faults="$faults $1," ;;
    esac
}

# It may take too long, or fail for reasons that are not evalq's: said, and no failure.
may() {
    stage "$@" || echo "NOT COUNTED: $1: status $?"
}

# Whether python has these packages; where importing one hangs it has not.
has() { timeout 60 "$python" -c "import $1" >/dev/null 2>&1; }

finish() {
    printf '{"seconds": %d, "failed": "%s", "results": [\n%s\n]}\n' "$(($(date +%s) - began))" "$faults" \
        "$(sed '$!s/$/,/' "$lines")" >"$build/result.json"
    echo "== $2 after $(($(date +%s) - began)) s; results in $build/result.json"
    trap - EXIT
    exit "$1"
}
# What was found until then stays, whatever ends this.
trap 'faults="$faults stopped,"; finish 1 "FAIL:$faults"' EXIT
trap '[ -z "$child" ] || kill "$child"; exit 1' INT TERM HUP

if ! command -v nvcc >/dev/null 2>&1 && [ -x /usr/local/cuda/bin/nvcc ]; then
    PATH=/usr/local/cuda/bin:$PATH
    export PATH
fi
if ! command -v nvcc >/dev/null 2>&1; then
    finish 77 "NOT RUN: nvcc is not installed"
fi
# cuBLAS of the compiler's own major version may be PyTorch's alone.
cublas=libcublas.so.$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
if ! ldconfig -p 2>/dev/null | grep -q "$cublas " && ! ls "/usr/local/cuda/lib64/$cublas" >/dev/null 2>&1; then
    cublas=$("$python" -c 'import glob, os, sys
found = [f for p in sys.path for f in glob.glob(os.path.join(p, "nvidia", "*", "lib", sys.argv[1]))]
print(os.path.dirname(found[0]) if found else "")' "$cublas" 2>/dev/null || true)
    if [ -n "$cublas" ]; then
        LD_LIBRARY_PATH=$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export LD_LIBRARY_PATH
    fi
fi
generator=$(command -v ninja >/dev/null 2>&1 && echo Ninja || echo "Unix Makefiles")
if ! stage "configure" 120 cmake -S tests/gpu -B "$build/tree" -G "$generator" ||
    ! stage "build" 300 cmake --build "$build/tree" -j "$(nproc)"; then
    faults="$faults build,"
    finish 1 "FAIL: it does not build"
fi
if [ ! -e "$build/tree/lib/libevalq_cuda.so" ]; then
    grep -h -m 3 -e 'error:' -e 'error --' "$build"/tree/CMakeFiles/CMakeError.log "$build/tree/CMakeFiles/CMakeConfigureLog.yaml" \
        2>/dev/null | cut -c1-200 || true
    faults="$faults build,"
    finish 1 "FAIL: nvcc is there, and CMake could not use it (another host compiler: CUDAHOSTCXX=g++-N, and remove $build/tree)"
fi
resources() { must "registers, spills, exported symbols" 240 sh tests/gpu/resources.sh "$build/tree/lib/libevalq_cuda.so"; }
bin=$build/tree/bin
rm -rf "$build/models"
mkdir -p "$build/models"
status=0
stage "agreement with the CPU backend and with plain loops in double" 150 \
    "$bin/gpu_compare" --device "$device" --dump "$build/models" || status=$?
case $status in
0) ;;
77)
    none=$(grep -m 1 '^no device: ' "$build/out")
    resources
    [ -z "$faults" ] || finish 1 "FAIL:$faults and no device here"
    finish 77 "NOT RUN: $none"
    ;;
*) faults="$faults agreement," ;;
esac
# What is worth most comes first: right numbers, then how fast, then the rest while there is time.
must "what the device can do at best" 30 "$bin/gpu_rates" "$device"
copy=$(sed -n 's/.*"copy_gb_s": \([0-9.]*\).*/\1/p' "$lines" | tail -1)
gemm=$(sed -n 's/.*"gemm_tflop_s": \([0-9.]*\).*/\1/p' "$lines" | tail -1)
must "benchmarks" 140 "$bin/gpu_bench" --device "$device" --copy "${copy:-0}" --gemm "${gemm:-0}"
if [ -n "${EVALQ_BIN:-}" ]; then
    must "through Redis" 90 env EVQ_GPU_PYTHON="$python" \
        LD_LIBRARY_PATH="$(pwd)/$build/tree/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" sh tests/gpu/path.sh "$EVALQ_BIN" "$device"
else
    echo "NOT RUN: through Redis: EVALQ_BIN names no binaries"
fi
if has torch; then
    must "agreement with PyTorch in float64" 120 "$python" tests/gpu/torch_check.py "$build/models"
else
    echo "NOT RUN: agreement with PyTorch: $python has none"
fi
if has "torch, transformers"; then
    may "Transformers beside it" 140 env CUDA_VISIBLE_DEVICES="$device" PYTHONUNBUFFERED=1 "$python" tests/gpu/peer.py 120
    must "beside Transformers" 20 "$python" tests/gpu/beside.py "$lines"
else
    echo "NOT RUN: Transformers: $python has none"
fi
if command -v compute-sanitizer >/dev/null 2>&1; then
    must "compute-sanitizer" 100 compute-sanitizer --error-exitcode 9 \
        "$bin/gpu_compare" --device "$device" --small --repeats 1
    for tool in racecheck synccheck; do
        may "compute-sanitizer, $tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$bin/gpu_compare" --device "$device" --small --repeats 1
    done
else
    echo "NOT RUN: compute-sanitizer is not installed"
fi
resources
if [ -n "$faults" ]; then
    finish 1 "FAIL:$faults"
fi
finish 0 "all is well"
