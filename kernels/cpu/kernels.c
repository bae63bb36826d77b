#include "kernels/cpu/kernels.h"

#include <assert.h>

extern const struct evq_kernels evq_kernels_base;
#if defined(__x86_64__)
extern const struct evq_kernels evq_kernels_avx2;
extern const struct evq_kernels evq_kernels_avx512;
extern const struct evq_kernels evq_kernels_avx512_bf16;
#endif

const struct evq_kernels *evq_kernels_of(enum evq_isa isa)
{
    assert(isa <= evq_machine_isa());
    switch (isa) {
#if defined(__x86_64__)
    case EVQ_ISA_AVX512_BF16:
        return &evq_kernels_avx512_bf16;
    case EVQ_ISA_AVX512:
        return &evq_kernels_avx512;
    case EVQ_ISA_AVX2:
        return &evq_kernels_avx2;
#endif
    default:
        return &evq_kernels_base;
    }
}

size_t evq_kernels_rounded_stride(int32_t k)
{
    return (((size_t)k / 2 + EVQ_KERNELS_PAD) / 16 | 1) * 16;
}
