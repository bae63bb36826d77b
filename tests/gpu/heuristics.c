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

enum { ROWS = 32768, SMALL_ROWS = 512, SCORES = 1024, SCORES_MOST = 4096, WAYS = 512 };
enum { FAULTS_SAID = 10 };
enum { REDUCTION = 3 }; // The attribute of a way that says how parts of a sum are added.
enum { IN_PLACE = 1, IN_OUTPUT_TYPE = 4 };
enum { TENSOR_MATH = 3, COMPUTE_16F = 64, R_16F = 2, R_64F = 1 };

static struct evq_cublas cublas = {
    .lt_create = cublasLtCreate,
    .lt_destroy = cublasLtDestroy,
    .desc_create = cublasLtMatmulDescCreate,
    .desc_destroy = cublasLtMatmulDescDestroy,
    .desc_set = cublasLtMatmulDescSetAttribute,
    .layout_create = cublasLtMatrixLayoutCreate,
    .layout_destroy = cublasLtMatrixLayoutDestroy,
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
                                        const struct evq_cuda_product *product, size_t past)
{
    const struct evq_cuda_operands operands = {
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

static bool launched(const char *part)
{
    for (size_t i = 0; i < standin_launches(); i++) {
        if (strstr(standin_launched(i), part) != NULL) {
            return true;
        }
    }
    return false;
}

/* All products of all models: by which kernels, of the large ones. */
static void models_ask(void)
{
    size_t asked = 0;
    size_t refused = 0;

    for (size_t i = 0; i < lm_large_count + lm_small_count; i++) {
        const bool large = i < lm_large_count;
        const struct lm_shape *shape = large ? &lm_large[i] : &lm_small[i - lm_large_count];
        const int32_t rows = large ? ROWS : SMALL_ROWS;
        struct evq_cuda_products *products = products_new();
        struct lm_product all[LM_PRODUCTS];

        lm_products(shape, rows, rows < SCORES ? rows : SCORES, all);
        for (size_t p = 0; p < LM_PRODUCTS; p++) {
            const bool found = ask(products, &all[p].product, 0) != NULL;
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
    static const int32_t rows[] = {128, 256, 1024, 4096, 32768};
    static const int32_t n[] = {1,  2,  3,  4,  5,  7,   8,   9,   10,  12,
                                16, 17, 24, 31, 40, 100, 509, 768, 1000};
    static const int32_t k[] = {1,  2,  3,  4,  5,  7,   8,   9,   10,  12,
                                16, 17, 24, 31, 40, 100, 172, 784, 1001};
    static const int32_t epilogues[] = {EVQ_CUBLASLT_DEFAULT, EVQ_CUBLASLT_BIAS,
                                        EVQ_CUBLASLT_BIAS | EVQ_CUBLASLT_GELU};
    enum { NARROW, WIDE, ADDED, RESULTS, R = 5, N = 19, COUNT = 3 * RESULTS * R * N * N };
    struct evq_cuda_products *products = products_new();
    size_t refused = 0;

    for (int i = 0; i < COUNT; i++) {
        const int result = i / 3 % RESULTS;
        const int at = i / 3 / RESULTS;
        struct evq_cuda_product product = {
            .rows = rows[at % R],
            .n = n[at / R % N],
            .k = k[at / R / N],
            .epilogue = epilogues[i % 3],
            .out_type = result == NARROW ? EVQ_CUDA_R_16BF : EVQ_CUDA_R_32F,
            .adds = result == ADDED,
        };
        lm_strides(&product);
        product.out_stride = packed ? product.n : product.out_stride;
        refused += ask(products, &product, 0) == NULL;
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
        for (int32_t rows = 128; rows <= ROWS; rows *= 4) {
            struct evq_cuda_product product = {.rows = rows,
                                               .n = 768,
                                               .k = 3072,
                                               .epilogue = EVQ_CUBLASLT_BIAS,
                                               .out_type = EVQ_CUDA_R_32F};
            lm_strides(&product);
            const bool found = ask(products, &product, 0) != NULL;
            const bool moved = ask(products, &product, past) != NULL;
            expect(found && (past < 16 || moved), "a bias at a multiple of 16 bytes is refused");
            asked += past < 16;
            refused += past < 16 && !moved;
        }
        products_free(products);
    }
    (void)printf("bias at no multiple of 16 bytes: %zu of %zu refused\n", refused, asked);
}

struct ways {
    struct evq_cublaslt_algo algos[WAYS]; // Those of one product.
    size_t count, most;                   // most: bytes of workspace.
    size_t asked, all, parted, in_place, in_output_type;
};

static void way_count(struct ways *ways, const struct evq_cuda_known *known)
{
    uint32_t reduction = 0;
    size_t written = 0;
    size_t at = 0;

    expect(cublasLtMatmulAlgoConfigGetAttribute(&known->algo, REDUCTION, &reduction,
                                                sizeof(reduction), &written) == 0,
           "a way does not say how it reduces");
    ways->in_place += reduction == IN_PLACE;
    ways->in_output_type += reduction == IN_OUTPUT_TYPE;
    ways->parted += launched("segment_k_on") || launched("splitK") || launched("split_k");
    ways->most = known->workspace_bytes > ways->most ? known->workspace_bytes : ways->most;
    while (at < ways->count && memcmp(&ways->algos[at], &known->algo, sizeof(known->algo)) != 0) {
        at++;
    }
    if (at == ways->count && at < WAYS) {
        ways->algos[at] = known->algo;
        ways->count++;
        ways->all++;
    }
}

/* Every product of the large models by every number of rows that a batch may have. */
static struct ways rows_ask(void)
{
    struct ways ways = {0};

    for (size_t i = 0; i < lm_large_count * LM_PRODUCTS; i++) {
        const size_t which = i % LM_PRODUCTS;
        const int32_t most = which + 1 == LM_PRODUCTS ? SCORES_MOST : ROWS;
        struct evq_cuda_products *once = products_new();
        struct evq_cuda_products *again = products_new();

        ways.count = 0;
        for (int32_t rows = EVQ_CUDA_ROWS; rows <= most; rows += EVQ_CUDA_ROWS) {
            struct lm_product all[LM_PRODUCTS];
            lm_products(&lm_large[i / LM_PRODUCTS], rows, rows, all);
            const struct evq_cuda_known *second = ask(again, &all[which].product, 0);
            const struct evq_cuda_known *first = ask(once, &all[which].product, 0);
            ways.asked++;
            expect(first != NULL && second != NULL, "a number of rows is refused");
            if (first != NULL && second != NULL) {
                expect(memcmp(&first->algo, &second->algo, sizeof(first->algo)) == 0,
                       "the same question has two answers");
                way_count(&ways, first);
            }
        }
        products_free(again);
        products_free(once);
    }
    return ways;
}

static int set_no_schemes(void *preference, int attribute, const void *value, size_t bytes)
{
    return attribute == EVQ_CUBLASLT_REDUCTION_SCHEMES
               ? 0
               : cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes);
}

static void reductions_ask(void)
{
    const struct ways ways = rows_ask();

    (void)printf("rows: %zu questions, %zu ways, %zu times k is cut into parts, at most %zu bytes "
                 "of workspace\n",
                 ways.asked, ways.all, ways.parted, ways.most);
    expect(ways.in_place == 0 && ways.in_output_type == 0, "a sum is reduced in no fp32");
    expect(ways.most <= EVQ_CUDA_WORKSPACE_BYTES, "more workspace is wanted than there is");
    cublas.preference_set = set_no_schemes;
    const struct ways free_ways = rows_ask();
    cublas.preference_set = cublasLtMatmulPreferenceSetAttribute;
    (void)printf("reductions left to it: %zu in the output's type, %zu in place\n",
                 free_ways.in_output_type, free_ways.in_place);
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
    reductions_ask();
    fp32_ask();
    expect(standin_unanswered() == 0, "something was asked that has no answer here");
    return faults == 0 ? 0 : 1;
}
