#include "shared/redis/conn_openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libssl.so.3"

// Loaded once and never unloaded, because other threads use its objects.
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct evq_conn_openssl table;
static char missing[200]; // "": OpenSSL is loaded.

static void load(void)
{
    const struct {
        const char *name;
        // Where the pointer goes: ISO C has no cast from object to function pointer.
        void *function;
    } functions[] = {
#define ROW(name) {#name, &table.name},
        EVQ_CONN_OPENSSL(ROW)
#undef ROW
    };

    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *why = dlerror();
        (void)snprintf(missing, sizeof missing, "%s", why != NULL ? why : LIBRARY);
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = dlsym(library, functions[i].name);
        if (found == NULL) {
            (void)snprintf(missing, sizeof missing, LIBRARY " has no %s", functions[i].name);
            return;
        }
        memcpy(functions[i].function, &found, sizeof found);
    }
    // OpenSSL must not clean up at exit: in a training process one of our threads may still use it
    // then.
    if (table.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL) != 1) {
        (void)snprintf(missing, sizeof missing, LIBRARY " does not initialise");
    }
}

enum evq_status evq_conn_openssl(const struct evq_conn_openssl **ret_openssl, struct evq_error *err)
{
    (void)pthread_once(&once, load); // Fails only for a bad argument.
    if (missing[0] != '\0') {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "a rediss:// address needs OpenSSL 3 (Debian: libssl3): %s", missing);
    }
    *ret_openssl = &table;
    return EVQ_OK;
}
