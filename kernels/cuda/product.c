#include "kernels/cuda/product.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void forget(const struct evq_cublas *cublas, struct evq_cuda_known *known)
{
    // These are host objects. Enqueued work does not need them any more, and no failure could be
    // handled.
    if (known->desc != NULL) {
        (void)cublas->desc_destroy(known->desc);
    }
    void *const layouts[] = {known->weight, known->in, known->out};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        if (layouts[i] != NULL) {
            (void)cublas->layout_destroy(layouts[i]);
        }
    }
    *known = (struct evq_cuda_known){0};
}

enum evq_status evq_cuda_products_open(struct evq_cuda_products *products,
                                       const struct evq_cublas *cublas, struct evq_error *err)
{
    products->known = calloc(EVQ_CUDA_PRODUCTS, sizeof(*products->known));
    if (products->known == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "known products");
    }
    return evq_cublas_status(cublas->lt_create(&products->handle), "start cuBLASLt", err);
}

void evq_cuda_products_close(struct evq_cuda_products *products, const struct evq_cublas *cublas)
{
    for (size_t i = 0; i < EVQ_CUDA_PRODUCTS && products->known != NULL; i++) {
        forget(cublas, &products->known[i]);
    }
    free(products->known);
    products->known = NULL;
    if (products->handle != NULL) {
        (void)cublas->lt_destroy(products->handle);
        products->handle = NULL;
    }
}

static bool is_refusal(int code)
{
    return code == EVQ_CUBLAS_NOT_SUPPORTED || code == EVQ_CUBLAS_INVALID_VALUE;
}

/* Remembers that cuBLASLt cannot compute this product. */
static void give_up(const struct evq_cublas *cublas, struct evq_cuda_known *known)
{
    const struct evq_cuda_product product = known->product;

    forget(cublas, known);
    known->product = product;
    known->filled = true;
}

static enum evq_status tell(int code, const struct evq_cuda_product *product, int32_t rows,
                            struct evq_error *err)
{
    char what[160];

    if (code == 0) {
        return EVQ_OK; // Every launch comes here, so no text is made.
    }
    (void)snprintf(what, sizeof(what),
                   "product of %d rows (%" PRId64 " apart) of %d values by %d (%" PRId64
                   " apart) into %s (%" PRId64 " apart), epilogue %d, adds %d",
                   (int)rows, product->in_stride, (int)product->k, (int)product->n,
                   product->weight_stride, product->out_type == EVQ_CUDA_R_16BF ? "bf16" : "fp32",
                   product->out_stride, (int)product->epilogue, (int)product->adds);
    return evq_cublas_status(code, what, err);
}

/* FNV-1a over the numbers. */
static size_t place_of(const struct evq_cuda_product *product)
{
    const uint64_t numbers[] = {(uint64_t)product->weight_stride,
                                (uint64_t)product->in_stride,
                                (uint64_t)product->out_stride,
                                (uint64_t)product->asked_rows,
                                (uint64_t)product->n,
                                (uint64_t)product->k,
                                (uint64_t)product->epilogue,
                                (uint64_t)product->out_type,
                                (uint64_t)product->adds};
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        hash = (hash ^ numbers[i]) * 1099511628211u;
    }
    return (size_t)((hash ^ hash >> 32) % EVQ_CUDA_PRODUCTS);
}

static bool same(const struct evq_cuda_product *a, const struct evq_cuda_product *b)
{
    return a->weight_stride == b->weight_stride && a->in_stride == b->in_stride &&
           a->out_stride == b->out_stride && a->asked_rows == b->asked_rows && a->n == b->n &&
           a->k == b->k && a->epilogue == b->epilogue && a->out_type == b->out_type &&
           a->adds == b->adds;
}

/* Row-major out = in * weight^T is column-major out^T = weight^T' * in^T, where weight is stored
 * [k, n] and in [k, rows]. A bias then runs along the columns, as cuBLASLt expects. */
static int describe(const struct evq_cublas *cublas, const void *d_bias,
                    struct evq_cuda_known *known)
{
    const struct evq_cuda_product *product = &known->product;
    const int32_t yes = EVQ_CUBLAS_OP_T;
    const int32_t no = EVQ_CUBLAS_OP_N;

    int code = cublas->desc_create(&known->desc, EVQ_CUBLASLT_COMPUTE_32F, EVQ_CUDA_R_32F);
    if (code == 0) {
        code = cublas->desc_set(known->desc, EVQ_CUBLASLT_TRANS_A, &yes, sizeof(yes));
    }
    if (code == 0) {
        code = cublas->desc_set(known->desc, EVQ_CUBLASLT_TRANS_B, &no, sizeof(no));
    }
    if (code == 0) {
        code = cublas->desc_set(known->desc, EVQ_CUBLASLT_EPILOGUE, &product->epilogue,
                                sizeof(product->epilogue));
    }
    if (code == 0 && (product->epilogue & EVQ_CUBLASLT_BIAS) != 0) {
        // The heuristics may consider the alignment of the bias. Every bias is aligned like this
        // one.
        code = cublas->desc_set(known->desc, EVQ_CUBLASLT_BIAS_POINTER, &d_bias, sizeof(d_bias));
    }
    if (code == 0) {
        code = cublas->layout_create(&known->weight, EVQ_CUDA_R_16BF, (uint64_t)product->k,
                                     (uint64_t)product->n, product->weight_stride);
    }
    if (code == 0) {
        code = cublas->layout_create(&known->in, EVQ_CUDA_R_16BF, (uint64_t)product->k,
                                     (uint64_t)product->asked_rows, product->in_stride);
    }
    if (code == 0) {
        code = cublas->layout_create(&known->out, product->out_type, (uint64_t)product->n,
                                     (uint64_t)product->asked_rows, product->out_stride);
    }
    return code;
}

/* Takes the first algorithm that the heuristics find. If there is none, known->desc becomes NULL.
 */
static int find(struct evq_cuda_products *products, const struct evq_cublas *cublas,
                struct evq_cuda_known *known)
{
    const size_t most = EVQ_CUDA_WORKSPACE_BYTES;
    const uint32_t schemes = EVQ_CUBLASLT_REDUCE_NONE;
    struct evq_cublaslt_found found = {0};
    void *preference = NULL;
    int count = 0;

    int code = cublas->preference_create(&preference);
    if (code == 0) {
        code = cublas->preference_set(preference, EVQ_CUBLASLT_MAX_WORKSPACE_BYTES, &most,
                                      sizeof(most));
    }
    if (code == 0) {
        code = cublas->preference_set(preference, EVQ_CUBLASLT_REDUCTION_SCHEMES, &schemes,
                                      sizeof(schemes));
    }
    if (code == 0) {
        products->lookups++;
        code = cublas->heuristic(products->handle, known->desc, known->weight, known->in,
                                 known->out, known->out, preference, 1, &found, &count);
        if (is_refusal(code) || (code == 0 && (count < 1 || found.status != 0))) {
            give_up(cublas, known);
            code = 0;
        }
    }
    if (preference != NULL) {
        (void)cublas->preference_destroy(preference);
    }
    known->algo = found.algo;
    known->workspace_bytes = found.workspace_bytes;
    return code;
}

/* Finds the entry of the product. If there is none, an old entry is replaced. */
static enum evq_status know(struct evq_cuda_products *products, const struct evq_cublas *cublas,
                            const struct evq_cuda_product *product,
                            const struct evq_cuda_operands *operands,
                            struct evq_cuda_known **ret_known, struct evq_error *err)
{
    struct evq_cuda_known *known = &products->known[place_of(product)];
    int code = 0;

    if (!known->filled || !same(&known->product, product)) {
        forget(cublas, known);
        known->product = *product;
        code = describe(cublas, operands->d_bias, known);
        if (code == 0) {
            code = find(products, cublas, known);
        }
        if (code != 0) {
            forget(cublas, known);
        }
        known->filled = code == 0;
    }
    *ret_known = known;
    return tell(code, product, operands->rows, err);
}

/* Sets what differs with each batch. */
static int take(const struct evq_cublas *cublas, const struct evq_cuda_known *known,
                const struct evq_cuda_operands *operands)
{
    const uint64_t rows = (uint64_t)operands->rows;

    int code = cublas->layout_set(known->in, EVQ_CUBLASLT_LAYOUT_COLUMNS, &rows, sizeof(rows));
    if (code == 0) {
        code = cublas->layout_set(known->out, EVQ_CUBLASLT_LAYOUT_COLUMNS, &rows, sizeof(rows));
    }
    if (code == 0 && (known->product.epilogue & EVQ_CUBLASLT_BIAS) != 0) {
        code = cublas->desc_set(known->desc, EVQ_CUBLASLT_BIAS_POINTER, &operands->d_bias,
                                sizeof(operands->d_bias));
    }
    return code;
}

enum evq_status evq_cuda_product_run(struct evq_cuda_products *products,
                                     const struct evq_cublas *cublas,
                                     const struct evq_cuda_product *product,
                                     const struct evq_cuda_operands *operands, cudaStream_t stream,
                                     bool *ret_done, struct evq_error *err)
{
    const float one = 1.0f;
    const float beta = product->adds != 0 ? 1.0f : 0.0f;
    struct evq_cuda_known *known = NULL;

    enum evq_status status = know(products, cublas, product, operands, &known, err);
    if (status != EVQ_OK) {
        return status;
    }
    *ret_done = known->desc != NULL;
    if (!*ret_done) {
        return EVQ_OK;
    }
    int code = take(cublas, known, operands);
    if (code == 0) {
        code = cublas->matmul(products->handle, known->desc, &one, operands->d_weight,
                              known->weight, operands->d_in, known->in, &beta, operands->d_out,
                              known->out, operands->d_out, known->out, &known->algo,
                              operands->d_workspace, known->workspace_bytes, stream);
    }
    if (is_refusal(code) && !evq_cublas_lacks_memory()) {
        // The heuristics found an algorithm, but it failed. Nothing was enqueued.
        give_up(cublas, known);
        *ret_done = false;
        return EVQ_OK;
    }
    return tell(code, product, operands->rows, err);
}
