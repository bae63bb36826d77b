/* Built as libcublasLt.so: what kernels/cuda/product.c asks of it. bf16 times bf16, summed in fp32,
 * to bf16 or fp32; bias and tanh-GELU epilogues. An algorithm is good for the shape that it was
 * found for and for any number of columns of b. It says in which order a sum goes, another one
 * where it was found for another number of columns; where sums in parts are allowed, those of each
 * call decide. EMULATOR_REFUSE_EPILOGUES makes it find none for an epilogue. */
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "tests/gpu/emulator/emulator.h"
#include <cuda_bf16.h>

enum { SUCCESS = 0, MISUSED = 14, NOT_SUPPORTED = 15 };
enum { BIAS_BYTES = 16 }; // A bias begins at a multiple of it, or the real one refuses.
enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68 };
enum { TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS_POINTER = 8 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32 };
enum { WORKSPACE_BYTES = 1, REDUCTION_SCHEMES = 3, LAYOUT_COLUMNS = 3 };
enum { ORDER = 2, ORDERS = 7 }; // ORDER: where in an algorithm; 0: as the call's columns say.
enum { ALL_SCHEMES = 7 };

struct desc {
    int trans_a, trans_b;
    int epilogue;
    const void *bias;
};

struct layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
};

struct preference {
    size_t workspace_bytes;
    uint32_t schemes;
};

struct algorithm {
    uint64_t data[8];
};

struct found {
    algorithm algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

static size_t value_bytes(int type)
{
    return type == R_16BF ? sizeof(__nv_bfloat16) : sizeof(float);
}

static float value_of(const void *values, int type, ptrdiff_t at)
{
    return type == R_16BF ? __bfloat162float(((const __nv_bfloat16 *)values)[at])
                          : ((const float *)values)[at];
}

static void reach(const void *values, const layout &of, bool writes)
{
    const size_t bytes = value_bytes(of.type);

    for (uint64_t column = 0; column < of.columns; column++) {
        emulator_reach((const char *)values + column * (uint64_t)of.stride * bytes, of.rows * bytes,
                       writes);
    }
}

/* The matrix, packed. */
static std::vector<float> unpack(const void *values, const layout &of)
{
    std::vector<float> all;

    reach(values, of, false);
    all.reserve(of.rows * of.columns);
    for (uint64_t column = 0; column < of.columns; column++) {
        for (uint64_t row = 0; row < of.rows; row++) {
            all.push_back(
                value_of(values, of.type, (ptrdiff_t)row + (ptrdiff_t)column * of.stride));
        }
    }
    return all;
}

/* In `order` interleaved sums, these then added up: other orders round otherwise. */
static float dot(const float *a, const float *b, uint64_t count, uint64_t order)
{
    float sums[ORDERS] = {};
    float sum = 0.0f;

    for (uint64_t p = 0; p < count; p++) {
        sums[p % order] += a[p] * b[p];
    }
    for (uint64_t p = 0; p < order; p++) {
        sum += sums[p];
    }
    return sum;
}

static uint64_t order_of(const layout *b)
{
    return 1 + b->columns / 128 % ORDERS;
}

static void describe(const desc *d, const layout *a, const layout *b, const layout *out,
                     uint64_t order, uint64_t *data)
{
    const uint64_t parts[8] = {a->rows,
                               a->columns,
                               order,
                               (uint64_t)a->stride,
                               (uint64_t)b->stride,
                               (uint64_t)out->stride,
                               (uint64_t)out->type,
                               (uint64_t)d->epilogue};
    std::memcpy(data, parts, sizeof(parts));
}

static bool fits(const desc *d, const layout *a, const layout *b, const layout *c,
                 const layout *out)
{
    return d->trans_a == 1 && d->trans_b == 0 && a->type == R_16BF && b->type == R_16BF &&
           (out->type == R_16BF || out->type == R_32F) && a->rows == b->rows &&
           out->rows == a->columns && out->columns == b->columns && c->type == out->type &&
           c->rows == out->rows && c->columns == out->columns && a->stride >= (int64_t)a->rows &&
           b->stride >= (int64_t)b->rows && out->stride >= (int64_t)out->rows &&
           c->stride == out->stride;
}

extern "C" {

int cublasLtCreate(void **made)
{
    static char one;
    *made = &one;
    return SUCCESS;
}

int cublasLtDestroy(void *given)
{
    return given != nullptr ? SUCCESS : MISUSED;
}

int cublasLtMatmulDescCreate(desc **made, int compute, int scale_type)
{
    if (compute != COMPUTE_32F || scale_type != R_32F) {
        return NOT_SUPPORTED;
    }
    *made = new desc{0, 0, EPILOGUE_DEFAULT, nullptr};
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(desc *given)
{
    delete given;
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(desc *given, int attribute, const void *value, size_t bytes)
{
    if (attribute == BIAS_POINTER && bytes == sizeof(given->bias)) {
        std::memcpy(&given->bias, value, bytes);
        return SUCCESS;
    }
    if (bytes != sizeof(int)) {
        return MISUSED;
    }
    switch (attribute) {
    case TRANS_A:
        std::memcpy(&given->trans_a, value, bytes);
        return SUCCESS;
    case TRANS_B:
        std::memcpy(&given->trans_b, value, bytes);
        return SUCCESS;
    case EPILOGUE:
        std::memcpy(&given->epilogue, value, bytes);
        return SUCCESS;
    default:
        return MISUSED;
    }
}

int cublasLtMatrixLayoutCreate(layout **made, int type, uint64_t rows, uint64_t columns,
                               int64_t stride)
{
    if (stride < (int64_t)rows) {
        return MISUSED;
    }
    *made = new layout{type, rows, columns, stride};
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(layout *given)
{
    delete given;
    return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(layout *given, int attribute, const void *value, size_t bytes)
{
    if (attribute != LAYOUT_COLUMNS || bytes != sizeof(given->columns)) {
        return MISUSED;
    }
    std::memcpy(&given->columns, value, bytes);
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(preference **made)
{
    *made = new preference{0, ALL_SCHEMES};
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(preference *given)
{
    delete given;
    return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(preference *given, int attribute, const void *value,
                                         size_t bytes)
{
    if (attribute == WORKSPACE_BYTES && bytes == sizeof(given->workspace_bytes)) {
        std::memcpy(&given->workspace_bytes, value, bytes);
        return SUCCESS;
    }
    if (attribute == REDUCTION_SCHEMES && bytes == sizeof(given->schemes)) {
        std::memcpy(&given->schemes, value, bytes);
        return SUCCESS;
    }
    return MISUSED;
}

int cublasLtMatmulAlgoGetHeuristic(void *, desc *d, layout *a, layout *b, layout *c, layout *out,
                                   preference *wanted, int most, found *results, int *count)
{
    const int known = EPILOGUE_BIAS | EPILOGUE_GELU;

    *count = 0;
    if (most < 1 || wanted == nullptr || !fits(d, a, b, c, out) ||
        (d->epilogue != EPILOGUE_DEFAULT && (d->epilogue & ~known) != 0)) {
        return MISUSED;
    }
    if (d->epilogue != EPILOGUE_DEFAULT && std::getenv("EMULATOR_REFUSE_EPILOGUES") != nullptr) {
        return NOT_SUPPORTED;
    }
    results[0] = found();
    describe(d, a, b, out, wanted->schemes == 0 ? order_of(b) : 0, results[0].algo.data);
    results[0].workspace_bytes = wanted->workspace_bytes / 2;
    *count = 1;
    return SUCCESS;
}

int cublasLtMatmul(void *, desc *d, const float *alpha, const void *a_values, layout *a,
                   const void *b_values, layout *b, const float *beta, const void *c_values,
                   layout *c, void *out_values, layout *out, const algorithm *algo, void *workspace,
                   size_t workspace_bytes, cudaStream_t stream)
{
    uint64_t wanted[8];

    describe(d, a, b, out, algo->data[ORDER], wanted);
    if (std::memcmp(wanted, algo->data, sizeof(wanted)) != 0 || !fits(d, a, b, c, out) ||
        (workspace == nullptr && workspace_bytes > 0) || stream == nullptr ||
        c_values != out_values || (uintptr_t)a_values % 256 != 0 ||
        (uintptr_t)b_values % 256 != 0 || (uintptr_t)out_values % 256 != 0 ||
        ((d->epilogue & EPILOGUE_BIAS) != 0 &&
         (d->bias == nullptr || (uintptr_t)d->bias % BIAS_BYTES != 0))) {
        return MISUSED;
    }
    if (!emulator_kernel_fits()) {
        return NOT_SUPPORTED;
    }
    const desc at = *d;
    const layout left = *a, right = *b, result = *out;
    const float first = *alpha, second = *beta;
    const uint64_t order = algo->data[ORDER] != 0 ? algo->data[ORDER] : order_of(b);
    emulator_enqueue(stream, [=] {
        emulator_reach(workspace, workspace_bytes < 256 ? workspace_bytes : 256, true);
        std::memset(workspace, 0xff, workspace_bytes); // It is this product's alone.
        const std::vector<float> weights = unpack(a_values, left);
        const std::vector<float> values = unpack(b_values, right);
        if ((at.epilogue & EPILOGUE_BIAS) != 0) {
            emulator_reach(at.bias, result.rows * value_bytes(result.type), false);
        }
        reach(out_values, result, true);
        for (uint64_t column = 0; column < result.columns; column++) {
            for (uint64_t row = 0; row < result.rows; row++) {
                const ptrdiff_t to = (ptrdiff_t)row + (ptrdiff_t)column * result.stride;
                const float sum = dot(weights.data() + row * left.rows,
                                      values.data() + column * left.rows, left.rows, order);
                float x = first * sum;
                if (second != 0.0f) {
                    x += second * value_of(c_values, result.type, to);
                }
                if ((at.epilogue & EPILOGUE_GELU) != 0 && result.type == R_16BF) {
                    // The real one, 12.4.5 on sm_90, does the rest by a kernel of its own.
                    x = __bfloat162float(__float2bfloat16_rn(x));
                }
                if ((at.epilogue & EPILOGUE_BIAS) != 0) {
                    x += value_of(at.bias, result.type, (ptrdiff_t)row);
                }
                if ((at.epilogue & EPILOGUE_GELU) != 0) {
                    x = 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
                }
                if (result.type == R_16BF) {
                    ((__nv_bfloat16 *)out_values)[to] = __float2bfloat16_rn(x);
                } else {
                    ((float *)out_values)[to] = x;
                }
            }
        }
    });
    return SUCCESS;
}

} // extern "C"
