/*
 * What the CUDA backend says where a library of cuBLAS is missing or too old. Its sources run on
 * the emulator of tests/gpu/emulator/, so that there is a driver and a device; which libraries are
 * found is told by LD_LIBRARY_PATH. missing LIBRARY    prints the sentence; "skipped" where the
 * machine has LIBRARY all the same
 */
#include <dlfcn.h>
#include <stdio.h>

#include "kernels/backend.h"

const struct evq_backend_ops *evq_backend_module_v1(void);

static bool is_there(const char *folder, const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s%s", folder, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL;
}

int main(int argc, char **argv)
{
    struct evq_error err = {0};

    if (argc > 1 && (is_there("", argv[1]) || is_there("/usr/local/cuda/lib64/", argv[1]))) {
        (void)printf("skipped: this machine has %s\n", argv[1]);
        return 0;
    }
    const int32_t devices = evq_backend_module_v1()->probe(&err);
    (void)printf("%d devices: %s\n", (int)devices, err.message);
    return devices == 0 ? 0 : 1;
}
