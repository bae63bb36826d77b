/*
 * How a kernel is launched and names its shared memory. Apart from the kernels, so that these can
 * be compiled for the host too, where tests put another file in this one's place.
 */
#ifndef EVQ_KERNELS_CUDA_LAUNCH_CUH
#define EVQ_KERNELS_CUDA_LAUNCH_CUH

#define EVQ_LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                             \
    kernel<<<blocks, threads, shared_bytes, stream>>>(__VA_ARGS__)

/* The bytes that the launch asked for, aligned to 16. */
#define EVQ_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

#endif
