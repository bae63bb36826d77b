/*
 * The matrix products of the large language models, one by one, through kernels/cuda/product.c:
 * whether cuBLASLt does with them what step.c asks for along with them, how fast, and how fast the
 * best of the ways would be that it names for just these rows. gpu_products [--device
 * N] [--shape NAME] [--rows N] [--gemm TFLOP/S] Without --shape all large ones. --gemm: what
 * gpu_rates found, for the fractions. exit 0: done, also where some are refused; 1: a failure; 2:
 * usage; 77: no device, or no cuBLAS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/product.h"
#include "kernels/cuda/state.h"
#include "tests/gpu/lm_products.h"

#define EXIT_SKIPPED 77
#define BLOCK_BYTES  ((size_t)16 << 20) // Of random numbers.

enum { WAYS = 8, ROUNDS = 5 };

struct bench {
    struct evq_cublas cublas;
    struct evq_cuda_products products;
    const char *shape;
    int32_t device, rows;
    double gemm; // 0: unknown.
    uint16_t *block;
    cudaStream_t stream;
    void *d_in, *d_weight, *d_bias, *d_out, *d_workspace;
};

static void must_cuda(cudaError_t code, const char *what)
{
    if (code != cudaSuccess) {
        (void)printf("FAIL %s: %s\n", what, cudaGetErrorString(code));
        exit(1);
    }
}

static double seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); // Cannot fail for this clock.
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Device memory full of small random bf16 numbers; of fp32, two of them are one. */
static void *filled(const struct bench *bench, size_t bytes)
{
    void *d_data = NULL;

    must_cuda(cudaMalloc(&d_data, bytes), "allocate");
    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const size_t part = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        must_cuda(cudaMemcpy((char *)d_data + at, bench->block, part, cudaMemcpyHostToDevice),
                  "fill");
    }
    return d_data;
}

/* Milliseconds, the median of several; by the way that product.c takes, or by that one. Negative:
 * refused. */
static double time_of(struct bench *bench, const struct evq_cuda_product *product, int32_t rows,
                      const struct evq_cuda_known *known, const struct evq_cublaslt_found *found)
{
    const struct evq_cuda_operands operands = {rows,          bench->d_weight, bench->d_in,
                                               bench->d_bias, bench->d_out,    bench->d_workspace};
    const float one = 1.0f;
    const float beta = product->adds != 0 ? 1.0f : 0.0f;
    double spent[ROUNDS];
    struct evq_error err = {0};

    for (int i = -1; i < ROUNDS; i++) { // The first one loads the kernel.
        const double start = seconds_now();
        bool done = true;
        if (found == NULL) {
            lm_must(evq_cuda_product_run(&bench->products, &bench->cublas, product, &operands,
                                         bench->stream, &done, &err),
                    &err);
        } else {
            done = bench->cublas.matmul(bench->products.handle, known->desc, &one, bench->d_weight,
                                        known->weight, bench->d_in, known->in, &beta, bench->d_out,
                                        known->out, bench->d_out, known->out, &found->algo,
                                        bench->d_workspace, found->workspace_bytes,
                                        bench->stream) == 0;
        }
        if (!done) {
            return -1.0;
        }
        must_cuda(cudaStreamSynchronize(bench->stream), "product");
        const double now = (seconds_now() - start) * 1e3;
        int at = i;
        for (; at > 0 && spent[at - 1] > now; at--) {
            spent[at] = spent[at - 1];
        }
        if (i >= 0) {
            spent[at] = now;
        }
    }
    return spent[ROUNDS / 2];
}

/* The fastest of what the heuristics name for just these rows. */
static double best_of(struct bench *bench, const struct evq_cuda_product *product, int32_t rows)
{
    const size_t most = EVQ_CUDA_WORKSPACE_BYTES;
    const uint32_t schemes = EVQ_CUBLASLT_REDUCE_NONE;
    const struct evq_cublas *cublas = &bench->cublas;
    const struct evq_cuda_known *known = bench->products.known;
    struct evq_cublaslt_found found[WAYS] = {0};
    void *preference = NULL;
    double best = -1.0;
    int count = 0;

    while (known->desc == NULL) { // The one that there is.
        known++;
    }
    if (cublas->preference_create(&preference) == 0 &&
        cublas->preference_set(preference, EVQ_CUBLASLT_MAX_WORKSPACE_BYTES, &most, sizeof(most)) ==
            0 &&
        cublas->preference_set(preference, EVQ_CUBLASLT_REDUCTION_SCHEMES, &schemes,
                               sizeof(schemes)) == 0) {
        (void)cublas->heuristic(bench->products.handle, known->desc, known->weight, known->in,
                                known->out, known->out, preference, WAYS, found, &count);
    }
    for (int i = 0; i < count; i++) {
        const double spent =
            found[i].status == 0 ? time_of(bench, product, rows, known, &found[i]) : -1.0;
        best = spent >= 0.0 && (best < 0.0 || spent < best) ? spent : best;
    }
    if (preference != NULL) {
        (void)cublas->preference_destroy(preference);
    }
    return best;
}

/* Returns the milliseconds it takes. */
static double product_run(struct bench *bench, const char *model, const char *name,
                          struct evq_cuda_product product, int32_t rows)
{
    const double flops = 2.0 * rows * product.n * product.k;
    const bool wide = product.out_type == EVQ_CUDA_R_32F;
    struct evq_error err = {0};

    lm_doing("%s, %s", model, name);
    bench->d_weight =
        filled(bench, (size_t)evq_cuda_up(product.n, 8) * (size_t)product.weight_stride * 2);
    bench->d_in = filled(bench, (size_t)rows * (size_t)product.in_stride * 2);
    bench->d_bias = filled(bench, (size_t)product.n * (wide ? 4 : 2));
    bench->d_out = filled(bench, (size_t)rows * (size_t)product.out_stride * sizeof(float));
    lm_must(evq_cuda_products_open(&bench->products, &bench->cublas, &err), &err);
    const double fused = time_of(bench, &product, rows, NULL, NULL);
    if (fused < 0.0) {
        product.epilogue = EVQ_CUBLASLT_DEFAULT;
        product.adds = 0;
        product.out_type = EVQ_CUDA_R_32F;
    }
    const double spent = fused >= 0.0 ? fused : time_of(bench, &product, rows, NULL, NULL);
    const double best = spent > 0.0 ? best_of(bench, &product, rows) : -1.0;
    (void)printf("%-11s %-6s %6d x %6d x %5d to %s%s%s%s: ", model, name, (int)rows, (int)product.n,
                 (int)product.k, wide ? "fp32" : "bf16",
                 (product.epilogue & EVQ_CUBLASLT_BIAS) != 0 ? ", bias" : "",
                 (product.epilogue & EVQ_CUBLASLT_GELU) != 0 ? ", GELU" : "",
                 product.adds != 0 ? ", added" : "");
    (void)printf("%s%.3f ms, %.0f TFLOP/s", fused < 0.0 ? "REFUSED, alone " : "", spent,
                 flops / spent * 1e-9);
    if (best > 0.0) {
        (void)printf(", best way %.0f", flops / best * 1e-9);
    }
    if (bench->gemm > 0.0) {
        (void)printf(" (%.0f%% of cuBLAS's)", 100.0 * flops / spent * 1e-9 / bench->gemm);
    }
    (void)printf("\njson {\"product\": \"%s %s\", \"refused\": %s, \"ms\": %.4f, \"best_ms\": "
                 "%.4f}\n",
                 model, name, fused < 0.0 ? "true" : "false", spent, best);
    evq_cuda_products_close(&bench->products, &bench->cublas);
    void *const blocks[] = {bench->d_weight, bench->d_in, bench->d_bias, bench->d_out};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
        must_cuda(cudaFree(blocks[i]), "free");
    }
    return spent;
}

static void shape_run(struct bench *bench, const struct lm_shape *shape)
{
    struct lm_product products[LM_PRODUCTS];
    double layer = 0.0;

    lm_products(shape, products);
    for (size_t i = 0; i < LM_PRODUCTS; i++) {
        const bool head = i + 1 == LM_PRODUCTS;
        const int32_t chunk = products[i].product.asked_rows;
        const int32_t rows = head && chunk < bench->rows ? chunk : bench->rows;
        const double spent =
            product_run(bench, shape->name, products[i].name, products[i].product, rows);
        layer += head ? 0.0 : spent;
        if (head) {
            const double logits = spent * bench->rows / rows;
            (void)printf("%-11s products of %d tokens: %.2f ms, of these the logits %.2f\n",
                         shape->name, (int)bench->rows, layer * shape->layers + logits, logits);
        }
    }
}

static bool options_read(int argc, char **argv, struct bench *bench)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--shape") == 0) {
            bench->shape = argv[i + 1];
        } else if (strcmp(argv[i], "--device") == 0) {
            bench->device = (int32_t)strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--rows") == 0) {
            bench->rows = (int32_t)strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--gemm") == 0) {
            bench->gemm = strtod(argv[i + 1], NULL);
        } else {
            return false;
        }
    }
    return argc % 2 == 1 && bench->rows >= EVQ_CUDA_ROWS && bench->rows % EVQ_CUDA_ROWS == 0;
}

static void shapes_run(struct bench *bench)
{
    for (size_t i = 0; i < lm_large_count; i++) {
        if (bench->shape == NULL || strcmp(bench->shape, lm_large[i].name) == 0) {
            shape_run(bench, &lm_large[i]);
        }
    }
    for (size_t i = 0; i < lm_small_count && bench->shape != NULL; i++) {
        if (strcmp(bench->shape, lm_small[i].name) == 0) {
            shape_run(bench, &lm_small[i]);
        }
    }
}

int main(int argc, char **argv)
{
    struct bench bench = {.rows = 32768};
    struct evq_error err = {0};
    uint64_t random = 20261121;
    int count = 0;

    if (!options_read(argc, argv, &bench)) {
        (void)fprintf(stderr,
                      "usage: gpu_products [--device N] [--shape NAME] [--rows N] [--gemm "
                      "TFLOP/S]; rows are a multiple of %d\n",
                      EVQ_CUDA_ROWS);
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); // What was measured stays if a kernel hangs.
    lm_watch();
    if (cudaGetDeviceCount(&count) != cudaSuccess || bench.device >= count) {
        (void)printf("no device\n");
        return EXIT_SKIPPED;
    }
    if (evq_cublas_load(&bench.cublas, &err) != EVQ_OK) {
        (void)printf("no device: %s\n", err.message);
        return EXIT_SKIPPED;
    }
    must_cuda(cudaSetDevice(bench.device), "choose the GPU");
    must_cuda(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking), "make a stream");
    must_cuda(cudaMalloc(&bench.d_workspace, EVQ_CUDA_WORKSPACE_BYTES), "allocate");
    bench.block = lm_alloc(BLOCK_BYTES, 1);
    for (size_t i = 0; i < BLOCK_BYTES / 2; i++) {
        const float value = lm_random_float(&random) * 0.05f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        bench.block[i] = (uint16_t)(bits >> 16);
    }
    shapes_run(&bench);
    must_cuda(cudaFree(bench.d_workspace), "free");
    must_cuda(cudaStreamDestroy(bench.stream), "free");
    free(bench.block);
    return 0;
}
