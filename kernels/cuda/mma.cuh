/*
 * Instructions of sm_80 that CUDA C++ has no names for: products of a warp, loads of matrices from
 * shared memory, copies that run beside the arithmetic, and powers of two. All lanes of a warp call
 * the first two together. The PTX manual describes the fragments: "Matrix Fragments for
 * mma.m16n8k16".
 */
#ifndef EVQ_KERNELS_CUDA_MMA_CUH
#define EVQ_KERNELS_CUDA_MMA_CUH

#include <cstdint>

/* sums[16 x 8] += a[16 x 16] * b[16 x 8], with bf16 in pairs and fp32 sums. Lane l holds rows l / 4
 * and l / 4 + 8, in columns l % 4 * 2 and the next. */
__device__ static __forceinline__ void evq_mma_bf16(float (&sums)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four matrices of 8 x 8 values of 16 bits. Lane l names row l % 8 of matrix l / 8 (16 bytes,
 * aligned), and receives from each matrix row l / 4, columns l % 4 * 2 and the next. */
__device__ static __forceinline__ void evq_ldmatrix(uint32_t (&parts)[4], const void *shared_row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared_row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(at)
                 : "memory");
}

/* The same for the transposed matrices: rows l % 4 * 2 and the next, column l / 4. */
__device__ static __forceinline__ void evq_ldmatrix_turned(uint32_t (&parts)[4],
                                                           const void *shared_row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared_row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(at)
                 : "memory");
}

/* 2 to the power of x within 2^-22; subnormal results become 0. exp2f() needs three more
 * instructions for those. */
__device__ static __forceinline__ float evq_exp2(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
    return power;
}

/* Begins to copy 16 bytes; both sides are aligned. If there is nothing to copy, zeros are written,
 * but global must still be a valid address. */
__device__ static __forceinline__ void evq_copy_begin(void *shared, const void *global, bool there)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t bytes = there ? 16u : 0u;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :
                 : "r"(at), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* Makes a group of the copies that this thread began since the last call. */
__device__ static __forceinline__ void evq_copy_close(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits until at most OPEN of this thread's newest groups are still being copied. Other threads see
 * the bytes after the next barrier. */
template <int OPEN> __device__ static __forceinline__ void evq_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(OPEN) : "memory");
}

#endif
