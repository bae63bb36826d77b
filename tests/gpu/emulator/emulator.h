/*
 * CUDA kernels on the host, for tests: the source of kernels/cuda/ is compiled as C++, every thread
 * of a block is a fiber, and blocks run one after another. Barriers, shuffles, votes, matrix
 * products of a warp, ldmatrix and cp.async do what the manuals say; a copy that nobody waited for
 * has not happened. What would be undefined on a device ends the program with a sentence: threads
 * of a warp at different instructions, a barrier that a thread never reaches, shared memory beyond
 * what was asked for, memory of another device. Shared memory begins as NaN. Not for threads.
 *
 * It shows that the arithmetic, the indices and the order of barriers are right. It shows nothing
 * of what nvcc makes of the source, nor of speed.
 */
#ifndef EVQ_TESTS_GPU_EMULATOR_EMULATOR_H
#define EVQ_TESTS_GPU_EMULATOR_EMULATOR_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__  inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct emulator_index {
    unsigned int x, y, z;
};

extern emulator_index emulator_block, emulator_blocks, emulator_threads;
const emulator_index &emulator_thread();

#define threadIdx (emulator_thread())
#define blockIdx  (emulator_block)
#define blockDim  (emulator_threads)
#define gridDim   (emulator_blocks)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};

/* The device that cudaSetDevice() chose. */
int emulator_device();

/* Does something when its turn on the streams comes. Ends the program if the stream belongs to
 * another device than the one that was chosen, where the runtime would refuse it. */
void emulator_enqueue(cudaStream_t stream, std::function<void()> work);

/* What a library reads or writes. Ends the program unless these bytes lie in one block of the
 * device's memory, and where it writes what it reads. */
void emulator_reach(const void *data, size_t bytes, bool writes);

/* Whether there is room for a library's kernel to be loaded. */
bool emulator_kernel_fits();

/* Runs body for every thread of the grid. */
void emulator_run(unsigned int blocks, unsigned int threads, size_t shared_bytes,
                  const std::function<void()> &body);

/* Checks a launch as the runtime does; false: it was refused, and cudaGetLastError() says so. */
bool emulator_check_launch(const void *kernel, unsigned int blocks, unsigned int threads,
                           size_t shared_bytes);
void emulator_allow_shared(const void *kernel, size_t bytes);

unsigned char *emulator_shared();
void emulator_barrier();

/* A value of at most 8 bytes from the lane whose number is this one's xor offset. */
uint64_t emulator_exchange(uint64_t bits, int offset);
bool emulator_any(bool value);
void emulator_mma(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1);
void emulator_ldmatrix(uint32_t *parts, const void *shared_row, bool turned);
void emulator_copy_begin(void *shared, const void *global, bool there);
void emulator_copy_close();
void emulator_copy_wait(int open);

template <typename... Parameters, typename... Arguments>
void emulator_launch(unsigned int blocks, unsigned int threads, size_t shared_bytes,
                     cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments)
{
    if (!emulator_check_launch((const void *)kernel, blocks, threads, shared_bytes)) {
        return;
    }
    emulator_enqueue(stream, [=] {
        emulator_run(blocks, threads, shared_bytes, [&] { kernel(arguments...); });
    });
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value)
{
    (void)attribute;
    emulator_allow_shared((const void *)kernel, (size_t)value);
    return cudaSuccess;
}

#define __syncthreads() emulator_barrier()

/* On a device it may differ from the quotient by two units in the last place. */
static inline float __fdividef(float x, float y)
{
    return x / y;
}

template <typename T> static inline T __shfl_xor_sync(unsigned int mask, T value, int offset)
{
    uint64_t bits = 0;
    static_assert(sizeof(T) <= sizeof(bits), "a lane gives 8 bytes");
    (void)mask;
    std::memcpy(&bits, &value, sizeof(value));
    bits = emulator_exchange(bits, offset);
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline bool __any_sync(unsigned int mask, bool value)
{
    (void)mask;
    return emulator_any(value);
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

using std::isnan;

#endif
