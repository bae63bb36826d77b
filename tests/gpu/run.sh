#!/bin/sh
# Everything there is to test and measure on an NVIDIA GPU, in less than nine minutes: builds the CUDA module and holds it against the CPU
# backend, plain loops and, where it is installed, PyTorch; runs the small cases under compute-sanitizer; then benchmarks, beside
# Transformers where that is installed. Needs CMake, a C compiler, nvcc, a GPU, cuBLAS; no network and none of the other libraries.
#   sh tests/gpu/run.sh [DEVICE]
#   EVALQ_BIN=DIR       where evalq, evalq-worker and evalq-logger are: the whole path through Redis too (where they have no module, with this one)
#   EVQ_GPU_PYTHON=FILE the Python that may have PyTorch and Transformers (python3)
# Right numbers come first, then rates and the path through Redis, then what takes long; what no time is left for is said. Where numbers are
# wrong or a kernel faults, the rest is measured all the same, and each kind of operation is run by itself to see which one it is.
# Prints a table, and a summary last, of what counts in less than 60 lines; build/gpu/log.txt is all that was said, build/gpu/result.json
# the numbers. Exit status 0: all is well; 1: not; 77: no nvcc, or no device.
set -eu
cd "$(dirname "$0")/../.."
device=${1:-0}
# A GPU machine often has no network, so packages are asked for only if a compiler or CMake is missing.
if ! command -v cmake >/dev/null || ! command -v cc >/dev/null; then
    sh deploy/bootstrap.sh build
fi
python=${EVQ_GPU_PYTHON:-python3}
build=build/gpu
lines=$build/lines
log=$build/log.txt
stages=$build/stages
began=$(date +%s)
faults=""
child=""
mkdir -p "$build"
: >"$lines"
: >"$log"
: >"$stages"

left() { echo $((530 - ($(date +%s) - began))); }

# What a stage said: all of it into the log, the beginning and the end of it here, since what reads this may have room for so much.
tell() {
    case $1:$2 in
    configure:0 | build:0) tail -1 "$build/out" ;;
    *) grep -v '^json ' "$build/out" | awk -v most="$said_max" '
        { line[NR] = $0 }
        END {
            for (i = 1; i <= NR; i++) {
                if (NR <= most || i <= most - 10 || i > NR - 10) print substr(line[i], 1, 400)
                else if (i == most - 9) print "... (" NR - most " more lines in the log)"
            }
        }' || true ;;
    esac
    { echo "== $1" && cat "$build/out"; } >>"$log"
    sed -n 's/^json //p' "$build/out" >>"$lines"
}

# stage NAME SECONDS COMMAND...: its output here and, what begins with json, into the file. Status: the command's; 78: no time for it.
said_max=60
stage() {
    name=$1 most=$2
    shift 2
    cut=0
    [ "$most" -le "$(left)" ] || { most=$(left) cut=78; }
    if [ "$most" -lt 10 ]; then
        skip "$name: no time left"
        return 78
    fi
    echo "== $name"
    started=$(date +%s)
    status=0
    timeout -k 5 "$most" "$@" >"$build/out" 2>&1 &
    child=$! # Waited for, so that a signal need not wait for it.
    wait "$child" || status=$?
    child=
    tell "$name" "$status"
    spent=$(($(date +%s) - started))
    case $status in
    0) echo "ok   $name, $spent s" >>"$stages" ;;
    77) echo "NOT RUN: $name: $(grep -v '^json ' "$build/out" | tail -1 | cut -c1-150)" >>"$stages" ;;
    124 | 137)
        if [ "$cut" -ne 0 ]; then
            echo "NOT DONE: $name: no more than $most s were left" | tee -a "$stages"
            return "$cut"
        fi
        echo "FAIL $name: not done within $most s" | tee -a "$stages"
        ;;
    *) echo "FAIL $name, $spent s, status $status" >>"$stages" ;;
    esac
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
    stage "$@" || case $? in
    77 | 78) ;;
    *) echo "NOT COUNTED: $1" | tee -a "$stages" ;;
    esac
}

skip() { echo "NOT RUN: $1" | tee -a "$stages"; }

# Whether python has these packages; where importing one hangs it has not.
has() { timeout 60 "$python" -c "import $1" >/dev/null 2>&1; }

# What counts, in few lines: the stages, what failed, how fast.
summary() {
    echo "== summary"
    cut -c1-160 "$stages"
    grep -h '^FAIL.* cases, ' "$log" | cut -c1-160 || true # Of each group a line; then the first ones' cases.
    grep -h -A1 '^FAIL' "$log" | grep -e '^FAIL' -e '^     ' | grep -v ' cases, ' | awk '!seen[$0]++' | head -18 | cut -c1-400 || true
    sed -n 's/.*"copy_gb_s": \([0-9.]*\), "gemm_tflop_s": \([0-9.]*\).*/pinned copy \1 GB\/s, cuBLAS \2 TFLOP\/s/p
        s/.*"bench": "\([^"]*\)", "compute": "\([^"]*\)".*"tokens_s": \([0-9]*\)[^,]*,.*"tflop_s": \([0-9.]*\), "weights_gb_s": \([0-9.]*\), "bar_tokens_s": \([0-9]*\).*/\1 \2: \3 tokens\/s (bar \6), \4 TFLOP\/s, weights \5 GB\/s/p
        s/.*"beside": "\([^"]*\)", "kind": "\([^"]*\)", "times": \([0-9.]*\), "bar": \([0-9.]*\).*/\1 beside Transformers \2: \3 times (bar \4)/p
        s/.*"product": "\([^"]*\)", "refused": true.*/cuBLASLt refuses what goes along with \1/p' "$lines"
}

finish() {
    summary
    printf '{"seconds": %d, "failed": "%s", "results": [\n%s\n]}\n' "$(($(date +%s) - began))" "$faults" \
        "$(sed '$!s/$/,/' "$lines")" >"$build/result.json"
    echo "== $2 after $(($(date +%s) - began)) s; results in $build/result.json"
    trap - EXIT
    exit "$1"
}
# What was found until then stays, whatever ends this.
trap 'faults="$faults stopped,"; finish 1 "FAIL:$faults"' EXIT
trap '[ -z "$child" ] || kill "$child"; exit 1' INT TERM HUP

for place in /usr/local/cuda/bin /usr/local/cuda-*/bin /opt/cuda/bin; do
    if ! command -v nvcc >/dev/null 2>&1 && [ -x "$place/nvcc" ]; then
        PATH=$place:$PATH
        export PATH
    fi
done
if ! command -v nvcc >/dev/null 2>&1; then
    finish 77 "NOT RUN: nvcc is not installed"
fi
cublas=$(sh tests/gpu/find_cublas.sh "$python" || true)
if [ -n "$cublas" ]; then
    LD_LIBRARY_PATH=$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
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
    said_max=1000 # The whole table.
    resources
    [ -z "$faults" ] || finish 1 "FAIL:$faults and no device here"
    finish 77 "NOT RUN: $none"
    ;;
*)
    faults="$faults agreement,"
    # A fault ends its process: what it did not come to, each kind by itself, and no launch before the one before it has ended.
    if [ "$(grep -c '"test": ' "$build/out")" -lt 20 ]; then
        for part in samples products lookups norms ropes attentions options encoders gates models parts; do
            may "by itself: $part" 20 env CUDA_LAUNCH_BLOCKING=1 "$bin/gpu_compare" --device "$device" --small --repeats 1 --part "$part"
        done
    fi
    ;;
esac
# What is worth most comes first: right numbers, then how fast, then the rest while there is time.
must "what the device can do at best" 30 "$bin/gpu_rates" "$device"
copy=$(sed -n 's/.*"copy_gb_s": \([0-9.]*\).*/\1/p' "$lines" | tail -1)
gemm=$(sed -n 's/.*"gemm_tflop_s": \([0-9.]*\).*/\1/p' "$lines" | tail -1)
may "products of the models" 60 "$bin/gpu_products" --device "$device" --gemm "${gemm:-0}"
must "benchmarks" 140 "$bin/gpu_bench" --device "$device" --parts 1 --copy "${copy:-0}" --gemm "${gemm:-0}"
for shape in gpt2-124m qwen3-0.6b; do
    must "benchmark in fp32, $shape" 40 "$bin/gpu_bench" --device "$device" --shape "$shape" --compute fp32 --parts 1
done
sanitize() {
    if command -v compute-sanitizer >/dev/null 2>&1; then
        must "compute-sanitizer" 100 compute-sanitizer --error-exitcode 9 \
            "$bin/gpu_compare" --device "$device" --small --repeats 1
        must "compute-sanitizer, racecheck" 200 sh tests/gpu/races.sh "$bin/gpu_compare" "$device"
        may "compute-sanitizer, synccheck" 60 compute-sanitizer --tool synccheck --error-exitcode 9 \
            "$bin/gpu_compare" --device "$device" --small --repeats 1
    else
        skip "compute-sanitizer is not installed"
    fi
}
[ -z "$faults" ] || sanitize # First, where something is wrong.
if [ -n "${EVALQ_BIN:-}" ]; then
    must "through Redis" 90 env EVQ_GPU_PYTHON="$python" \
        LD_LIBRARY_PATH="$(pwd)/$build/tree/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" sh tests/gpu/path.sh "$EVALQ_BIN" "$device"
else
    skip "through Redis: EVALQ_BIN names no binaries"
fi
if has torch; then
    must "agreement with PyTorch in float64" 120 "$python" tests/gpu/torch_check.py "$build/models"
else
    skip "agreement with PyTorch: $python has none"
fi
if has "torch, transformers"; then
    may "Transformers beside it" 140 env CUDA_VISIBLE_DEVICES="$device" PYTHONUNBUFFERED=1 "$python" tests/gpu/peer.py 120
    must "beside Transformers" 20 "$python" tests/gpu/beside.py "$lines"
else
    skip "Transformers: $python has none"
fi
[ -n "$faults" ] || sanitize
said_max=12 # Of the table of kernels.
resources
if [ -n "$faults" ]; then
    finish 1 "FAIL:$faults"
fi
finish 0 "all is well"
