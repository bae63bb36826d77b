/* In the place of kernels/cuda/launch.cuh: kernels run on the emulator. */
#ifndef EVQ_KERNELS_CUDA_LAUNCH_CUH
#define EVQ_KERNELS_CUDA_LAUNCH_CUH

#include "tests/gpu/emulator/emulator.h"

#define EVQ_LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                             \
    emulator_launch(blocks, threads, shared_bytes, stream, kernel, __VA_ARGS__)

#define EVQ_SHARED(name) unsigned char *const name = emulator_shared()

#endif
