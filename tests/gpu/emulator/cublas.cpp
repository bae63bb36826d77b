/* Built as libcublas.so: the calls that kernels/cuda/cublas.h loads, by plain loops, in the order
 * of the emulator's queue. fp32 must have been asked for as fp32; where NVIDIA_TF32_OVERRIDE is 1
 * when it is loaded, it is TF32 all the same. */
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/emulator/emulator.h"

enum { SUCCESS = 0, INVALID_VALUE = 7, FAILED = 13, NOT_SUPPORTED = 15, PEDANTIC = 2 };

struct handle {
    int math_mode;
    cudaStream_t stream;
};

/* `columns` of them, each of `rows` values. */
static void reach(const float *values, int rows, int columns, int stride, bool writes)
{
    for (int column = 0; column < columns; column++) {
        emulator_reach(values + (ptrdiff_t)column * stride, (size_t)rows * sizeof(float), writes);
    }
}

static const char *const override = std::getenv("NVIDIA_TF32_OVERRIDE");
static const bool is_tf32 = override != nullptr && std::strcmp(override, "1") == 0;

/* As a factor of a product has it: to ten bits of the fraction, ties to even. */
static float factor(float value)
{
    uint32_t bits;

    std::memcpy(&bits, &value, sizeof(bits));
    bits = is_tf32 ? (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000u : bits;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

extern "C" {

int cublasCreate_v2(handle **made)
{
    *made = new handle();
    return SUCCESS;
}

int cublasDestroy_v2(handle *given)
{
    delete given;
    return SUCCESS;
}

int cublasSetStream_v2(handle *given, cudaStream_t stream)
{
    if (given == nullptr || stream == nullptr) {
        return INVALID_VALUE;
    }
    given->stream = stream;
    return SUCCESS;
}

int cublasSetMathMode(handle *given, int mode)
{
    given->math_mode = mode;
    return SUCCESS;
}

int cublasSgemm_v2(handle *given, int trans_a, int trans_b, int m, int n, int k, const float *alpha,
                   const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                   int ldc)
{
    if (given->math_mode != PEDANTIC) {
        return NOT_SUPPORTED;
    }
    if (m < 0 || n < 0 || k < 0 || lda < (trans_a ? k : m) || ldb < (trans_b ? n : k) || ldc < m ||
        *alpha != 1.0f || *beta != 0.0f) {
        return INVALID_VALUE;
    }
    if (!emulator_kernel_fits()) {
        return FAILED;
    }
    emulator_enqueue(given->stream, [=] {
        reach(a, trans_a ? k : m, trans_a ? m : k, lda, false);
        reach(b, trans_b ? n : k, trans_b ? k : n, ldb, false);
        reach(c, m, n, ldc, true);
        for (int column = 0; column < n; column++) {
            for (int row = 0; row < m; row++) {
                float sum = 0.0f;
                for (int p = 0; p < k; p++) {
                    const ptrdiff_t left =
                        trans_a ? p + (ptrdiff_t)row * lda : row + (ptrdiff_t)p * lda;
                    const ptrdiff_t right =
                        trans_b ? column + (ptrdiff_t)p * ldb : p + (ptrdiff_t)column * ldb;
                    sum += factor(a[left]) * factor(b[right]);
                }
                c[row + (ptrdiff_t)column * ldc] = sum;
            }
        }
    });
    return SUCCESS;
}

} // extern "C"
