#include "tests/bench/openblas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets name for the time of the load only: programs started later must not inherit it. */
static bool environment_lend(const char *name, const char *value)
{
    return getenv(name) == NULL && setenv(name, value, 1) == 0;
}

static void environment_return(const char *name, bool lent)
{
    if (lent) {
        (void)unsetenv(name); // Fails only for a malformed name.
    }
}

openblas_sgemm_fn openblas_load(bool avx512, int threads)
{
    char count[16];
    (void)snprintf(count, sizeof(count), "%d", threads);
    // The library picks its kernels in its constructor, and takes newer processors with AVX-512 for
    // a Haswell, at half the speed.
    const bool core = avx512 && environment_lend("OPENBLAS_CORETYPE", "SkylakeX");
    const bool lent = environment_lend("OPENBLAS_NUM_THREADS", count);
    // Never unloaded: its buffers and thread-local state do not survive that.
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    environment_return("OPENBLAS_NUM_THREADS", lent);
    environment_return("OPENBLAS_CORETYPE", core);
    if (library == NULL) {
        return NULL;
    }
    openblas_sgemm_fn sgemm = NULL;
    void (*set_threads)(int) = NULL;
    void *symbol = dlsym(library, "cblas_sgemm");
    void *setter = dlsym(library, "openblas_set_num_threads");
    memcpy(&sgemm, &symbol, sizeof(sgemm));
    memcpy(&set_threads, &setter, sizeof(set_threads));
    if (set_threads == NULL) {
        return NULL; // Not the library its name says.
    }
    set_threads(threads);
    return sgemm;
}
