/*
 * What the device can do at best, measured with CUDA's own calls alone: copies from pinned memory,
 * and cuBLAS's largest products of bf16.
 *   gpu_rates [DEVICE]; prints two lines, and one that begins with json. exit 77: no device, or no
 * cuBLAS.
 */
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

enum { SIDE = 8192, PRODUCTS = 51, COPIES = 16, EXIT_SKIPPED = 77 };
enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, OP_N = 0, OP_T = 1, ALGORITHM = -1 }; // cuBLAS's.
static const size_t copy_bytes = (size_t)256 << 20;

typedef int (*create_fn)(void **handle);
typedef int (*gemm_fn)(void *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                       const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                       const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);

static void must(cudaError_t code, const char *what)
{
    if (code != cudaSuccess) {
        (void)fprintf(stderr, "no device: %s: %s\n", what, cudaGetErrorString(code));
        exit(EXIT_SKIPPED);
    }
}

static float milliseconds(cudaEvent_t start, cudaEvent_t end)
{
    float spent = 0.0f;

    must(cudaEventSynchronize(end), "wait");
    must(cudaEventElapsedTime(&spent, start, end), "time");
    return spent;
}

/* GB/s of the fastest copy. */
static double copy_rate(cudaEvent_t start, cudaEvent_t end)
{
    void *d_to = nullptr;
    void *h_from = nullptr;
    double best = 0.0;

    must(cudaMalloc(&d_to, copy_bytes), "allocate");
    must(cudaMallocHost(&h_from, copy_bytes), "pin");
    for (int i = 0; i < COPIES; i++) {
        must(cudaEventRecord(start), "record");
        must(cudaMemcpyAsync(d_to, h_from, copy_bytes, cudaMemcpyHostToDevice), "copy");
        must(cudaEventRecord(end), "record");
        const double rate = (double)copy_bytes / milliseconds(start, end) * 1e-6;
        best = rate > best ? rate : best;
    }
    must(cudaFree(d_to), "free");
    must(cudaFreeHost(h_from), "free");
    return best;
}

/* Device memory full of random bf16 numbers: equal ones take less power, and the device is faster
 * with them than it is with a model's. */
static void *random_new(void)
{
    enum { BLOCK = 1 << 22 };
    static unsigned short block[BLOCK];
    unsigned int random = 20261121;
    void *d_data = nullptr;

    for (int i = 0; i < BLOCK; i++) {
        random = random * 1664525u + 1013904223u;
        // A sign, one of eight exponents below 2, all bits of the fraction.
        block[i] = (unsigned short)(0x3c00u | (random >> 8 & 0x8000u) | (random >> 16 & 0x03ffu));
    }
    must(cudaMalloc(&d_data, (size_t)SIDE * SIDE * 2), "allocate");
    for (size_t at = 0; at < (size_t)SIDE * SIDE; at += BLOCK) {
        must(
            cudaMemcpy((unsigned short *)d_data + at, block, sizeof(block), cudaMemcpyHostToDevice),
            "fill");
    }
    return d_data;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* TFLOP/s, the median of many products one behind the other; 0: there is no cuBLAS. */
static double gemm_rate(cudaEvent_t start, cudaEvent_t end)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"}; // As the module looks.
    char name[64];
    void *library = nullptr;
    void *handle = nullptr;
    void *d[3] = {nullptr, nullptr, nullptr};
    const float one = 1.0f;
    const float zero = 0.0f;
    double rates[PRODUCTS];

    for (int i = 0; i < 2 && library == nullptr; i++) {
        (void)snprintf(name, sizeof(name), "%slibcublas.so.%d", folders[i], CUDART_VERSION / 1000);
        library = dlopen(name, RTLD_NOW);
    }
    if (library == nullptr) {
        (void)fprintf(stderr, "cuBLAS is not installed: %s\n", dlerror());
        return 0.0;
    }
    create_fn create = (create_fn)dlsym(library, "cublasCreate_v2");
    gemm_fn gemm = (gemm_fn)dlsym(library, "cublasGemmEx");
    if (create == nullptr || gemm == nullptr || create(&handle) != 0) {
        return 0.0;
    }
    for (int i = 0; i < 3; i++) {
        d[i] = random_new();
    }
    for (int i = 0; i < PRODUCTS; i++) {
        must(cudaEventRecord(start), "record");
        if (gemm(handle, OP_T, OP_N, SIDE, SIDE, SIDE, &one, d[0], R_16BF, SIDE, d[1], R_16BF, SIDE,
                 &zero, d[2], R_16BF, SIDE, COMPUTE_32F, ALGORITHM) != 0) {
            return 0.0;
        }
        must(cudaEventRecord(end), "record");
        rates[i] = 2.0 * SIDE * SIDE * SIDE / milliseconds(start, end) * 1e-9;
    }
    for (int i = 0; i < 3; i++) {
        must(cudaFree(d[i]), "free");
    }
    qsort(rates, PRODUCTS, sizeof(rates[0]), compare);
    return rates[PRODUCTS / 2];
}

int main(int argc, char **argv)
{
    cudaEvent_t start;
    cudaEvent_t end;

    must(cudaSetDevice(argc > 1 ? atoi(argv[1]) : 0), "choose the GPU");
    must(cudaEventCreate(&start), "event");
    must(cudaEventCreate(&end), "event");
    const double copy = copy_rate(start, end);
    const double gemm = gemm_rate(start, end);
    (void)printf("pinned memory to the device: %.1f GB/s\n", copy);
    (void)printf("cuBLAS, bf16, %d x %d x %d: %.1f TFLOP/s\n", SIDE, SIDE, SIDE, gemm);
    (void)printf("json {\"rate\": \"device\", \"copy_gb_s\": %.3f, \"gemm_tflop_s\": %.3f}\n", copy,
                 gemm);
    return gemm > 0.0 ? 0 : EXIT_SKIPPED;
}
