#include "kernels/cuda/cublas.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUBLAS_ALLOC_FAILED = 3 };

// If more memory than this is free, a failed call did not fail for lack of memory.
#define ROOM_MIB ((size_t)64)

struct symbol {
    const char *name;
    void *function; // Where to store its address.
};

static void *open_file(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

/* Opens the library of an active Python environment, which is usually the one of PyTorch. */
static void *open_beside_python(const char *name)
{
    static const char *const roots[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    static const char *const folders[] = {"lib/python3*/site-packages/nvidia/*/lib", "lib"};
    char pattern[4096];
    void *library = NULL;

    for (size_t i = 0; i < 4 && library == NULL; i++) {
        const char *root = getenv(roots[i / 2]);
        glob_t found = {0};
        if (root == NULL) {
            continue;
        }
        (void)snprintf(pattern, sizeof(pattern), "%s/%s/%s", root, folders[i % 2], name);
        if (glob(pattern, 0, NULL, &found) == 0) {
            library = open_file(found.gl_pathv[0]);
        }
        globfree(&found);
    }
    return library;
}

/* The major version must equal the runtime's, because both share streams and memory. */
static enum evq_status load(const char *stem, const struct symbol *symbols, size_t count,
                            struct evq_error *err)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
    void *library = NULL;
    char name[64];

    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && library == NULL; i++) {
        (void)snprintf(name, sizeof(name), "%s%s.so.%d", folders[i], stem, CUDART_VERSION / 1000);
        library = open_file(name);
    }
    (void)snprintf(name, sizeof(name), "%s.so.%d", stem, CUDART_VERSION / 1000);
    if (library == NULL) {
        library = open_beside_python(name);
    }
    if (library == NULL) {
        const char *why = dlerror();
        return evq_error_set(err, EVQ_E_DEVICE, "cuBLAS is not installed (%s): %s", name,
                             why != NULL ? why : "");
    }
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (symbol == NULL) {
            return evq_error_set(err, EVQ_E_DEVICE, "%s has no %s", name, symbols[i].name);
        }
        memcpy(symbols[i].function, &symbol,
               sizeof(symbol)); // ISO C has no cast from an object pointer to a function pointer.
    }
    return EVQ_OK;
}

/* The environment of a training may make cuBLAS compute fp32 as TF32 whatever it is asked for. Only
 * the value 0 rules that out. It is set once, before the library is loaded. */
static enum evq_status forbid_tf32(struct evq_error *err)
{
    static const char name[] = "NVIDIA_TF32_OVERRIDE";
    const char *said = getenv(name);

    if (said == NULL || strcmp(said, "0") == 0 || setenv(name, "0", 1) == 0) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_NOMEM, "set %s", name);
}

enum evq_status evq_cublas_load(struct evq_cublas *ret_cublas, struct evq_error *err)
{
    struct evq_cublas cublas = {0};
    const struct symbol plain[] = {
        {"cublasCreate_v2", &cublas.create},        {"cublasDestroy_v2", &cublas.destroy},
        {"cublasSetStream_v2", &cublas.set_stream}, {"cublasSetMathMode", &cublas.set_math_mode},
        {"cublasSgemm_v2", &cublas.sgemm},
    };
    const struct symbol light[] = {
        {"cublasLtCreate", &cublas.lt_create},
        {"cublasLtDestroy", &cublas.lt_destroy},
        {"cublasLtMatmulDescCreate", &cublas.desc_create},
        {"cublasLtMatmulDescDestroy", &cublas.desc_destroy},
        {"cublasLtMatmulDescSetAttribute", &cublas.desc_set},
        {"cublasLtMatrixLayoutCreate", &cublas.layout_create},
        {"cublasLtMatrixLayoutDestroy", &cublas.layout_destroy},
        {"cublasLtMatrixLayoutSetAttribute", &cublas.layout_set},
        {"cublasLtMatmulPreferenceCreate", &cublas.preference_create},
        {"cublasLtMatmulPreferenceDestroy", &cublas.preference_destroy},
        {"cublasLtMatmulPreferenceSetAttribute", &cublas.preference_set},
        {"cublasLtMatmulAlgoGetHeuristic", &cublas.heuristic},
        {"cublasLtMatmul", &cublas.matmul},
    };

    // cuBLAS needs cuBLASLt. If that is loaded first, it is the one that is found here, and not
    // another one that the loader would choose.
    enum evq_status status = forbid_tf32(err);
    if (status == EVQ_OK) {
        status = load("libcublasLt", light, sizeof(light) / sizeof(light[0]), err);
    }
    if (status == EVQ_OK) {
        status = load("libcublas", plain, sizeof(plain) / sizeof(plain[0]), err);
    }
    if (status == EVQ_OK) {
        *ret_cublas = cublas;
    }
    return status;
}

static const char *name_of(int code)
{
    switch (code) {
    case 1:
        return "not initialised";
    case CUBLAS_ALLOC_FAILED:
        return "allocation failed";
    case EVQ_CUBLAS_INVALID_VALUE:
        return "invalid value";
    case 8:
        return "architecture mismatch";
    case 11:
        return "mapping error";
    case 13:
        return "execution failed";
    case 14:
        return "internal error";
    case EVQ_CUBLAS_NOT_SUPPORTED:
        return "not supported";
    default:
        return "unknown";
    }
}

bool evq_cublas_lacks_memory(void)
{
    size_t unused = 0;
    size_t total = 0;

    // This fails if a fault sticks to the process, which is not a lack of memory.
    return cudaMemGetInfo(&unused, &total) == cudaSuccess && unused < ROOM_MIB << 20;
}

enum evq_status evq_cublas_status(int code, const char *what, struct evq_error *err)
{
    if (code == 0) {
        return EVQ_OK;
    }
    if (code != CUBLAS_ALLOC_FAILED && evq_cublas_lacks_memory()) {
        return evq_error_set(err, EVQ_E_NOMEM,
                             "%s: cuBLAS status %d, %s, with less than %zu MiB of the GPU free",
                             what, code, name_of(code), ROOM_MIB);
    }
    return evq_error_set(err, code == CUBLAS_ALLOC_FAILED ? EVQ_E_NOMEM : EVQ_E_DEVICE,
                         "%s: cuBLAS status %d, %s", what, code, name_of(code));
}
