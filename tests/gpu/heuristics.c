/*
 * What the real cuBLAS and cuBLASLt answer, for a device that is not there (heuristics_cuda.h), to
 * what product.c and step.c ask of them: whether something is refused, and by which kernels it
 * would be computed. heuristics.sh builds it. heuristics DEVICE    exit 0: nothing is; 1: something
 * is, or is not as product.c counts on; 2: usage
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/state.h"
#include "tests/gpu/heuristics_cuda.h"
#include "tests/gpu/lm_products.h"

int cublasCreate_v2(void **handle);
int cublasSetMathMode(void *handle, int mode);
int cublasSgemm_v2(void *handle, int trans_a, int trans_b, int m, int n, int k, const float *alpha,
                   const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                   int ldc);
size_t cublasLtGetVersion(void);
int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
int cublasLtMatmulDescCreate(void **desc, int compute, int scale_type);
int cublasLtMatmulDescDestroy(void *desc);
int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes);
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns,
                               int64_t stride);
int cublasLtMatrixLayoutDestroy(void *layout);
int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes);
int cublasLtMatmulPreferenceCreate(void **preference);
int cublasLtMatmulPreferenceDestroy(void *preference);
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                         size_t bytes);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, struct evq_cublaslt_found *found,
                                   int *ret_count);
int cublasLtMatmulAlgoConfigGetAttribute(const struct evq_cublaslt_algo *algo, int attribute,
                                         void *value, size_t bytes, size_t *ret_written);
int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                   void *d, void *d_layout, const struct evq_cublaslt_algo *algo, void *workspace,
                   size_t workspace_bytes, cudaStream_t stream);

enum { FAULTS_SAID = 10, MANY_ROWS = 4096 };
enum { LONG_ROWS = 131072 }; // A sequence may be longer than a batch.
/* Attributes of a way: its tile, in how many parts k is, how these are added. */
enum { TILE = 1, PARTS = 2, REDUCTION = 3 };
enum { TENSOR_MATH = 3, COMPUTE_16F = 64, R_16F = 2, R_64F = 1 };

static struct evq_cublas cublas = {
    .lt_create = cublasLtCreate,
    .lt_destroy = cublasLtDestroy,
    .desc_create = cublasLtMatmulDescCreate,
    .desc_destroy = cublasLtMatmulDescDestroy,
    .desc_set = cublasLtMatmulDescSetAttribute,
    .layout_create = cublasLtMatrixLayoutCreate,
    .layout_destroy = cublasLtMatrixLayoutDestroy,
    .layout_set = cublasLtMatrixLayoutSetAttribute,
    .preference_create = cublasLtMatmulPreferenceCreate,
    .preference_destroy = cublasLtMatmulPreferenceDestroy,
    .preference_set = cublasLtMatmulPreferenceSetAttribute,
    .heuristic = cublasLtMatmulAlgoGetHeuristic,
    .matmul = cublasLtMatmul,
};
static const char *const d_data = (const char *)((uintptr_t)7 << 44); // Never read.
static size_t faults;

static void expect(bool so, const char *what)
{
    if (!so && faults < FAULTS_SAID) {
        (void)printf("FAIL %s\n", what);
    }
    faults += !so;
}

static struct evq_cuda_products *products_new(void)
{
    struct evq_cuda_products *products = lm_alloc(1, sizeof(*products));
    struct evq_error err = {0};

    lm_must(evq_cuda_products_open(products, &cublas, &err), &err);
    return products;
}

static void products_free(struct evq_cuda_products *products)
{
    evq_cuda_products_close(products, &cublas);
    free(products);
}

/* What was found for it; NULL: it is refused. The bias begins so many bytes past a multiple of 256.
 */
static const struct evq_cuda_known *ask(struct evq_cuda_products *products,
                                        const struct evq_cuda_product *product, int32_t rows,
                                        size_t past)
{
    const struct evq_cuda_operands operands = {
        .rows = rows,
        .d_weight = d_data,
        .d_in = d_data + ((size_t)1 << 40),
        .d_bias = d_data + ((size_t)2 << 40) + past,
        .d_out = (void *)(uintptr_t)(d_data + ((size_t)3 << 40)),
        .d_workspace = (void *)(uintptr_t)(d_data + ((size_t)4 << 40)),
    };
    struct evq_error err = {0};
    bool done = false;

    standin_forget();
    lm_must(evq_cuda_product_run(products, &cublas, product, &operands, NULL, &done, &err), &err);
    for (size_t i = 0; i < EVQ_CUDA_PRODUCTS && done; i++) {
        const struct evq_cuda_known *known = &products->known[i];
        if (known->filled && memcmp(&known->product, product, sizeof(*product)) == 0) {
            return known;
        }
    }
    return NULL;
}

/* All products of all models: by which kernels, of the large ones. */
static void models_ask(void)
{
    size_t asked = 0;
    size_t refused = 0;

    for (size_t i = 0; i < lm_large_count + lm_small_count; i++) {
        const bool large = i < lm_large_count;
        const struct lm_shape *shape = large ? &lm_large[i] : &lm_small[i - lm_large_count];
        struct evq_cuda_products *products = products_new();
        struct lm_product all[LM_PRODUCTS];

        lm_products(shape, all);
        for (size_t p = 0; p < LM_PRODUCTS; p++) {
            const bool found = ask(products, &all[p].product, all[p].product.asked_rows, 0) != NULL;
            asked++;
            refused += !found;
            for (size_t l = 0; l < standin_launches() && large; l++) {
                (void)printf("%s %s: %.100s\n", shape->name, all[p].name, standin_launched(l));
            }
        }
        products_free(products);
    }
    (void)printf("models: %zu products, %zu refused\n", asked, refused);
    expect(asked > 0 && refused == 0, "a product of a model is refused");
}

/* Widths that no model has, odd ones too. */
static void widths_ask(bool packed)
{
    static const int32_t rows[] = {128, 256, 1024, 4096, 32768, LONG_ROWS};
    static const int32_t n[] = {1,  2,  3,  4,  5,  7,   8,   9,   10,  12,
                                16, 17, 24, 31, 40, 100, 509, 768, 1000};
    static const int32_t k[] = {1,  2,  3,  4,  5,  7,   8,   9,   10,  12,
                                16, 17, 24, 31, 40, 100, 172, 784, 1001};
    static const int32_t epilogues[] = {EVQ_CUBLASLT_DEFAULT, EVQ_CUBLASLT_BIAS,
                                        EVQ_CUBLASLT_BIAS | EVQ_CUBLASLT_GELU};
    enum { NARROW, WIDE, ADDED, RESULTS, R = 6, N = 19, COUNT = 3 * RESULTS * R * N * N };
    struct evq_cuda_products *products = products_new();
    size_t refused = 0;

    for (int i = 0; i < COUNT; i++) {
        const int result = i / 3 % RESULTS;
        const int at = i / 3 / RESULTS;
        struct evq_cuda_product product = {
            .asked_rows = EVQ_CUDA_ASKED_ROWS,
            .n = n[at / R % N],
            .k = k[at / R / N],
            .epilogue = epilogues[i % 3],
            .out_type = result == NARROW ? EVQ_CUDA_R_16BF : EVQ_CUDA_R_32F,
            .adds = result == ADDED,
        };
        lm_strides(&product);
        product.out_stride = packed ? product.n : product.out_stride;
        refused += ask(products, &product, rows[at % R], 0) == NULL;
    }
    products_free(products);
    (void)printf("widths, rows of the output %s: %d products, %zu refused\n",
                 packed ? "packed" : "8-aligned", (int)COUNT, refused);
    expect(refused == 0, "a product of odd widths is refused");
}

/* The answer to a product as product.c would put it, but for these types. */
static bool refuses(int compute, int in_type, int out_type)
{
    struct evq_cublaslt_found found = {0};
    const int32_t yes = EVQ_CUBLAS_OP_T;
    void *handle = NULL;
    void *desc = NULL;
    void *weight = NULL;
    void *in = NULL;
    void *out = NULL;
    void *preference = NULL;
    int count = 0;

    const bool made =
        cublas.lt_create(&handle) == 0 &&
        cublas.desc_create(&desc, compute, compute == COMPUTE_16F ? R_16F : EVQ_CUDA_R_32F) == 0 &&
        cublas.desc_set(desc, EVQ_CUBLASLT_TRANS_A, &yes, sizeof(yes)) == 0 &&
        cublas.layout_create(&weight, EVQ_CUDA_R_16BF, 768, 3072, 768) == 0 &&
        cublas.layout_create(&in, in_type, 768, 4096, 768) == 0 &&
        cublas.layout_create(&out, out_type, 3072, 4096, 3072) == 0 &&
        cublas.preference_create(&preference) == 0;
    expect(made, "a question cannot be put");
    const int code =
        cublas.heuristic(handle, desc, weight, in, out, out, preference, 1, &found, &count);
    (void)cublas.preference_destroy(preference);
    (void)cublas.layout_destroy(out);
    (void)cublas.layout_destroy(in);
    (void)cublas.layout_destroy(weight);
    (void)cublas.desc_destroy(desc);
    (void)cublas.lt_destroy(handle);
    return code != 0 || count == 0;
}

/* That it can say no at all. */
static void wrong_ask(void)
{
    const int fp32 = EVQ_CUBLASLT_COMPUTE_32F;

    expect(!refuses(fp32, EVQ_CUDA_R_16BF, EVQ_CUDA_R_16BF), "bf16 into bf16 is refused");
    const bool all = refuses(COMPUTE_16F, EVQ_CUDA_R_16BF, EVQ_CUDA_R_16BF) &&
                     refuses(fp32, EVQ_CUDA_R_32F, EVQ_CUDA_R_16BF) &&
                     refuses(fp32, EVQ_CUDA_R_16BF, R_16F) && refuses(fp32, EVQ_CUDA_R_16BF, R_64F);
    (void)printf("sums in fp16, bf16 times fp32, bf16 into fp16 and fp64: %srefused\n",
                 all ? "" : "not ");
    expect(all, "what cannot be is not refused");
}

static void bias_ask(void)
{
    size_t asked = 0;
    size_t refused = 0;

    for (size_t past = 2; past <= 16; past *= 2) {
        struct evq_cuda_products *products = products_new();
        for (int32_t rows = 128; rows <= EVQ_CUDA_ASKED_ROWS; rows *= 4) {
            struct evq_cuda_product product = {.asked_rows = rows,
                                               .n = 768,
                                               .k = 3072,
                                               .epilogue = EVQ_CUBLASLT_BIAS,
                                               .out_type = EVQ_CUDA_R_32F};
            lm_strides(&product);
            const bool found = ask(products, &product, rows, 0) != NULL;
            const bool moved = ask(products, &product, rows, past) != NULL;
            expect(found && (past < 16 || moved), "a bias at a multiple of 16 bytes is refused");
            asked += past < 16;
            refused += past < 16 && !moved;
        }
        products_free(products);
    }
    (void)printf("bias at no multiple of 16 bytes: %zu of %zu refused\n", refused, asked);
}

static uint32_t config_of(const struct evq_cuda_known *known, int attribute)
{
    uint32_t value = 0;
    size_t written = 0;

    expect(cublasLtMatmulAlgoConfigGetAttribute(&known->algo, attribute, &value, sizeof(value),
                                                &written) == 0,
           "a way does not say what it is");
    return value;
}

struct ways {
    size_t products, parted, most; // most: bytes of workspace.
    size_t asked, other_tiles, many, many_other_tiles;
};

/* A product by every number of rows that a batch may have: by the kernel of the most. And the
 * tiles that cuBLASLt would take if it were asked about those rows. */
static void rows_ask(const struct evq_cuda_product *product, struct ways *ways)
{
    struct evq_cuda_products *products = products_new();
    struct evq_cuda_products *others = products_new();
    const struct evq_cuda_known *full = ask(products, product, product->asked_rows, 0);
    const struct evq_cuda_known *again = ask(others, product, product->asked_rows, 0);
    const char *kernel = standin_launches() > 0 ? standin_launched(0) : "";

    expect(full != NULL && again != NULL &&
               memcmp(&full->algo, &again->algo, sizeof(full->algo)) == 0,
           "the same question has two answers");
    for (int32_t rows = EVQ_CUDA_ROWS; full != NULL && rows <= product->asked_rows;
         rows += EVQ_CUDA_ROWS) {
        struct evq_cuda_product apart = *product;
        const struct evq_cuda_known *found = ask(products, product, rows, 0);
        expect(found != NULL, "a way is refused for fewer rows");
        expect(standin_launches() > 0 && strcmp(standin_launched(0), kernel) == 0,
               "another kernel computes fewer rows");
        apart.asked_rows = rows;
        const struct evq_cuda_known *other = ask(others, &apart, rows, 0);
        const bool differs = other == NULL || config_of(other, TILE) != config_of(full, TILE);
        ways->asked++;
        ways->other_tiles += differs;
        ways->many += rows >= MANY_ROWS;
        ways->many_other_tiles += rows >= MANY_ROWS && differs;
    }
    expect(product->asked_rows < EVQ_CUDA_ASKED_ROWS ||
               ask(products, product, LONG_ROWS, 0) != NULL,
           "a way is refused for a long sequence");
    expect(products->lookups == 1, "a product is asked for more than once");
    products_free(others);
    products_free(products);
}

/* Where sums in parts are not ruled out: how many are, or may be. */
static size_t parted_of(const struct evq_cuda_product *product, size_t *most)
{
    struct evq_cuda_products *products = products_new();
    const struct evq_cuda_known *known = ask(products, product, product->asked_rows, 0);
    const bool parted =
        known == NULL || config_of(known, PARTS) != 1 || config_of(known, REDUCTION) != 0;

    *most = known != NULL && known->workspace_bytes > *most ? known->workspace_bytes : *most;
    products_free(products);
    return parted;
}

static int set_no_schemes(void *preference, int attribute, const void *value, size_t bytes)
{
    return attribute == EVQ_CUBLASLT_REDUCTION_SCHEMES
               ? 0
               : cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes);
}

static void ways_ask(void)
{
    struct ways ways = {0};
    size_t unused = 0;
    size_t left = 0;

    for (size_t i = 0; i < (lm_large_count + lm_small_count) * LM_PRODUCTS; i++) {
        const size_t at = i / LM_PRODUCTS;
        struct lm_product all[LM_PRODUCTS];
        lm_products(at < lm_large_count ? &lm_large[at] : &lm_small[at - lm_large_count], all);
        const struct evq_cuda_product *product = &all[i % LM_PRODUCTS].product;
        rows_ask(product, &ways);
        ways.products++;
        ways.parted += parted_of(product, &ways.most);
        cublas.preference_set = set_no_schemes;
        left += parted_of(product, &unused);
        cublas.preference_set = cublasLtMatmulPreferenceSetAttribute;
        if (i + 1 == lm_large_count * LM_PRODUCTS) {
            (void)printf("rows of large models: %zu, of which others would be %zu tiles; from %d "
                         "rows on %zu, %zu\n",
                         ways.asked, ways.other_tiles, MANY_ROWS, ways.many, ways.many_other_tiles);
        }
    }
    (void)printf("ways: of %zu products one each for %zu numbers of rows, %zu sum in parts, at "
                 "most %zu bytes of workspace; reductions left to it, %zu may sum in parts\n",
                 ways.products, ways.asked, ways.parted, ways.most, left);
    expect(ways.parted == 0, "a sum is computed in parts");
    expect(ways.most <= EVQ_CUDA_WORKSPACE_BYTES, "more workspace is wanted than there is");
}

static bool launched(const char *part)
{
    for (size_t i = 0; i < standin_launches(); i++) {
        if (strstr(standin_launched(i), part) != NULL) {
            return true;
        }
    }
    return false;
}

/* fp32, as the plain cuBLAS does it. */
static void fp32_ask(void)
{
    static const int shapes[][3] = {{2304, 32768, 768}, {768, 32768, 3072}, {3072, 4096, 768},
                                    {50257, 1024, 768}, {10, 1000, 784},    {48, 512, 172},
                                    {4096, 32768, 4096}};
    const float *data = (const float *)(const void *)d_data;
    const float one = 1.0f;
    const float zero = 0.0f;
    const size_t before = standin_allocated();
    size_t rounded[2] = {0};
    void *handle = NULL;

    expect(cublasCreate_v2(&handle) == 0, "cuBLAS does not start");
    (void)printf("a handle of cuBLAS: %zu bytes\n", standin_allocated() - before);
    for (int mode = 0; mode < 2; mode++) {
        expect(cublasSetMathMode(handle, mode == 0 ? EVQ_CUBLAS_PEDANTIC_MATH : TENSOR_MATH) == 0,
               "cuBLAS takes no mode");
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            const int n = shapes[i][0];
            const int k = shapes[i][2];
            standin_forget();
            expect(cublasSgemm_v2(handle, EVQ_CUBLAS_OP_T, EVQ_CUBLAS_OP_N, n, shapes[i][1], k,
                                  &one, data, k, data, k, &zero, (float *)(uintptr_t)data,
                                  n) == 0 &&
                       standin_launches() > 0,
                   "a product in fp32 is refused");
            rounded[mode] += launched("tf32") || launched("tensorop");
        }
    }
    (void)printf("fp32: %zu of %zu by tensor cores, where that is allowed %zu\n", rounded[0],
                 sizeof(shapes) / sizeof(shapes[0]), rounded[1]);
    expect(rounded[0] == 0, "fp32 is computed in TF32");
}

int main(int argc, char **argv)
{
    if (argc != 2 || !standin_device(argv[1])) {
        (void)fprintf(stderr, "usage: heuristics H200|H100|A100|L40S|A10\n");
        return 2;
    }
    (void)printf("== cuBLASLt %zu on %s\n", cublasLtGetVersion(), argv[1]);
    models_ask();
    widths_ask(false);
    widths_ask(true);
    wrong_ask();
    bias_ask();
    ways_ask();
    fp32_ask();
    expect(standin_unanswered() == 0, "something was asked that has no answer here");
    return faults == 0 ? 0 : 1;
}
