/*
 * How a kernel is launched and how it names its shared memory. This is separate from the kernels,
 * so that tests can replace this file and compile the kernels for the host.
 */
#ifndef EVQ_KERNELS_CUDA_LAUNCH_CUH
#define EVQ_KERNELS_CUDA_LAUNCH_CUH

#define EVQ_LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                             \
    kernel<<<blocks, threads, shared_bytes, stream>>>(__VA_ARGS__)

/* The bytes that the launch requested, aligned to 16. */
#define EVQ_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

#endif
