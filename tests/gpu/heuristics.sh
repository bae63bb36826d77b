#!/bin/sh
# What the real cuBLAS and cuBLASLt answer for an H200, H100, A100, L40S and A10 that are not there: their static libraries, linked with
# heuristics.c and with a CUDA of our own (heuristics_cuda.c), which launches nothing. Takes half a gigabyte of $TMPDIR.
#   sh tests/gpu/heuristics.sh [DEVICE...]
#   EVQ_CUDA_ROOT=DIR   a toolkit's folder; else /usr, where Debian's nvidia-cuda-dev is, and /usr/local/cuda, if theirs is 12.4 or 12.5
# Exit status 0: nothing that evalq asks for is refused; 1: something is; 77: there are no such static libraries.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- H200 H100 A100 L40S A10

found=
for root in ${EVQ_CUDA_ROOT:-/usr /usr/local/cuda}; do
    for folder in "$root/lib/x86_64-linux-gnu" "$root/lib64"; do
        if [ -e "$folder/libcublasLt_static.a" ] && [ -e "$folder/libcublas_static.a" ]; then
            found=$folder include=$root/include
            break 2
        fi
    done
done
if [ -z "$found" ]; then
    echo "skipped: no libcublasLt_static.a and libcublas_static.a (Debian: nvidia-cuda-dev)"
    exit 77
fi
version=$(sed -n 's/^#define CUBLAS_VER_M[AI][JN]OR *//p' "$include/cublas_api.h" | paste -sd.)
if [ "$version" != 12.4 ] && [ "$version" != 12.5 ] && [ -z "${EVQ_CUDA_ROOT:-}" ]; then
    echo "skipped: cuBLAS $version was not tried; EVQ_CUDA_ROOT=$root has it asked"
    exit 77
fi

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/objects"
compile() { ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -fPIC -I. -isystem "$include" -c "$1.c" -o "$2/$(basename "$1").o"; }
for file in tests/gpu/heuristics tests/gpu/lm_products tests/gpu/lm_plan kernels/cuda/product kernels/cuda/cublas shared/error \
    shared/buffer shared/arena; do
    compile "$file" "$place/objects"
done
compile tests/gpu/heuristics_cuda "$place"

# What the libraries name and heuristics_cuda.c has not: it does nothing, or nobody expects it. cuBLASLt looks for the driver's functions by
# name when it starts, and wants them all.
nothing="__cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterVar __cudaPushCallConfiguration __cudaPopCallConfiguration
    cudaGetLastError cudaMemsetAsync cudaMemcpyAsync cudaDeviceSynchronize cudaEventCreateWithFlags cudaEventDestroy
    cudaEventRecord cudaDeviceGetStreamPriorityRange cudaStreamCreateWithPriority cudaStreamCreateWithFlags cudaStreamDestroy
    cudaStreamCreate cudaEventQuery cudaStreamGetPriority cudaStreamWaitEvent cudaThreadExchangeStreamCaptureMode
    cuInit cuFuncSetAttribute cuFuncSetCacheConfig"
same="cuDeviceGetAttribute=cudaDeviceGetAttribute cuCtxGetDevice=cudaGetDevice
    cuOccupancyMaxActiveBlocksPerMultiprocessor=cudaOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags=cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
driver="cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxSetCurrent cuCtxSynchronize
    cuDeviceCanAccessPeer cuDeviceTotalMem_v2 cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRetain cuEventCreate cuEventDestroy_v2 cuEventElapsedTime
    cuEventQuery cuEventRecord cuEventSynchronize cuGetErrorName cuGetErrorString cuGraphDestroy cuGraphExecDestroy
    cuGraphExecKernelNodeSetParams cuGraphGetNodes cuGraphInstantiate cuGraphKernelNodeGetParams cuGraphLaunch cuGraphNodeGetType
    cuLinkAddData_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemPrefetchAsync cuMemcpy
    cuMemcpy2DAsync_v2 cuMemcpyAsync cuMemcpyDtoDAsync_v2 cuMemcpyHtoD_v2 cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2
    cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuPointerGetAttribute cuPointerGetAttributes cuStreamBatchMemOp
    cuStreamBeginCapture_v2 cuStreamCreate cuStreamDestroy_v2 cuStreamEndCapture cuStreamGetCtx cuStreamIsCapturing cuStreamSynchronize
    cuStreamWaitEvent cuStreamWaitValue32"
LC_ALL=C
export LC_ALL
nm "$found/libcublasLt_static.a" "$found/libcublas_static.a" 2>/dev/null |
    awk '$1 == "U" && $2 ~ /^_*cuda/ { print $2 }' | sort -u >"$place/wanted"
nm --defined-only "$place/heuristics_cuda.o" | awk '{ print $3 }' | sort >"$place/there"
{
    for name in $nothing; do echo "$name=standin_succeeds"; done
    for name in $(comm -23 "$place/wanted" "$place/there") $driver; do
        case " "$(echo $nothing)" " in
        *" $name "*) ;;
        *) echo "$name=standin_refuses" ;;
        esac
    done
    printf '%s\n' $same
} | sed 's/^/--defsym=/' >"$place/names"

${CC:-cc} -shared -o "$place/libcuda.so.1" -Wl,-soname,libcuda.so.1 "$place/heuristics_cuda.o" "-Wl,@$place/names"
${CXX:-c++} -o "$place/heuristics" "$place"/objects/*.o "$place/libcuda.so.1" "$found/libcublas_static.a" \
    "$found/libcublasLt_static.a" "$found/libculibos.a" "-Wl,-rpath,$place" -lpthread -ldl -lrt -lm
status=0
for device in "$@"; do
    timeout 60 "$place/heuristics" "$device" || status=1
done
exit "$status"
