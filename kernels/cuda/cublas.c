#include "kernels/cuda/cublas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { CUBLAS_ALLOC_FAILED = 3 };

/* Of the runtime's own major version: the two share streams and memory. */
static void *open_library(char *name, size_t name_bytes)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
    void *library = NULL;

    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && library == NULL; i++) {
        (void)snprintf(name, name_bytes, "%slibcublas.so.%d", folders[i], CUDART_VERSION / 1000);
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    (void)snprintf(name, name_bytes, "libcublas.so.%d", CUDART_VERSION / 1000);
    return library;
}

enum evq_status evq_cublas_load(struct evq_cublas *ret_cublas, struct evq_error *err)
{
    struct evq_cublas cublas = {0};
    char name[64];
    const struct {
        const char *name;
        void *function;
    } symbols[] = {
        {"cublasCreate_v2", &cublas.create},        {"cublasDestroy_v2", &cublas.destroy},
        {"cublasSetStream_v2", &cublas.set_stream}, {"cublasSetMathMode", &cublas.set_math_mode},
        {"cublasSgemm_v2", &cublas.sgemm},
    };

    void *library = open_library(name, sizeof(name));
    if (library == NULL) {
        const char *why = dlerror();
        return evq_error_set(err, EVQ_E_DEVICE, "cuBLAS is not installed (%s): %s", name,
                             why != NULL ? why : "");
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (symbol == NULL) {
            return evq_error_set(err, EVQ_E_DEVICE, "%s has no %s", name, symbols[i].name);
        }
        memcpy(symbols[i].function, &symbol,
               sizeof(symbol)); // ISO C has no cast from object to function pointer.
    }
    *ret_cublas = cublas;
    return EVQ_OK;
}

enum evq_status evq_cublas_status(int code, const char *what, struct evq_error *err)
{
    if (code == 0) {
        return EVQ_OK;
    }
    return evq_error_set(err, code == CUBLAS_ALLOC_FAILED ? EVQ_E_NOMEM : EVQ_E_DEVICE,
                         "%s: cuBLAS status %d", what, code);
}
