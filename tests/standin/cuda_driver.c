/*
 * Stands in for the driver's libcuda.so.1 on a machine whose driver is there and whose GPU is not:
 * what the CUDA runtime asks of it before cuInit(), which says that there is no device.
 */
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { NO_DEVICE = 100, VERSION = 13000 };

int cuInit(unsigned int flags);
int cuDriverGetVersion(int *version);
int cuGetProcAddress_v2(const char *name, void **ret_function, int version,
                        unsigned long long flags, int *ret_found);

EXPORT int cuInit(unsigned int flags)
{
    (void)flags;
    return NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}

static int no_device(void)
{
    return NO_DEVICE;
}

/* ISO C has no cast from function to object pointer: the bytes are copied. */
EXPORT int cuGetProcAddress_v2(const char *name, void **ret_function, int version,
                               unsigned long long flags, int *ret_found)
{
    int (*const init)(unsigned int) = cuInit;
    int (*const driver)(int *) = cuDriverGetVersion;
    int (*const address)(const char *, void **, int, unsigned long long, int *) =
        cuGetProcAddress_v2;
    int (*const other)(void) = no_device;

    (void)version;
    (void)flags;
    memcpy(ret_function,
           strcmp(name, "cuInit") == 0               ? (const void *)&init
           : strcmp(name, "cuDriverGetVersion") == 0 ? (const void *)&driver
           : strcmp(name, "cuGetProcAddress") == 0   ? (const void *)&address
                                                     : (const void *)&other,
           sizeof(*ret_function));
    if (ret_found != NULL) {
        *ret_found = 0;
    }
    return 0;
}
