#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "worker/loader/loader.h"
#include "worker/loader/selfcheck.h"

#define MODULE_NAME "libevalq_cuda.so"

static void *open_beside(const char *folder, const char *relative)
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof(path), "%s/%s" MODULE_NAME, folder, relative);

    if (length < 0 || (size_t)length >= sizeof(path) || access(path, F_OK) != 0) {
        return NULL;
    }
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

/* RTLD_NOW: a missing library shows here and not in the middle of a job. RTLD_NODELETE: a CUDA
 * runtime that was asked for its devices does not survive being unloaded. */
static void *open_module(char *why, size_t why_bytes)
{
    static const char *const places[] = {"", "../lib/", "../lib/evalq/"};
    char folder[PATH_MAX];
    void *module = NULL;

    (void)dlerror(); // Forgets an older one.
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    if (length > 0) {
        folder[length] = '\0';
        char *slash = strrchr(folder, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && module == NULL; i++) {
            module = open_beside(folder, places[i]);
        }
    }
    const char *first = dlerror(); // Of a module that is there but cannot be loaded.
    (void)snprintf(why, why_bytes, "%s", first != NULL ? first : "");
    if (module == NULL) {
        module = dlopen(MODULE_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const char *last = dlerror();
        if (module == NULL && first == NULL && last != NULL) {
            (void)snprintf(why, why_bytes, "%s", last);
        }
    }
    return module;
}

static const struct evq_backend_ops *module_table(void *module, char *why, size_t why_bytes)
{
    evq_backend_module_fn entry = NULL;
    void *symbol = dlsym(module, EVQ_BACKEND_MODULE_SYMBOL);

    if (symbol == NULL) {
        (void)snprintf(why, why_bytes, MODULE_NAME " has no symbol " EVQ_BACKEND_MODULE_SYMBOL);
        return NULL;
    }
    memcpy(&entry, &symbol, sizeof(entry)); // ISO C has no cast from object to function pointer.
    const struct evq_backend_ops *ops = entry();
    if (ops == NULL || ops->abi_version != EVQ_BACKEND_ABI) {
        (void)snprintf(why, why_bytes,
                       MODULE_NAME " speaks version %u of the interface, expected %d",
                       ops != NULL ? ops->abi_version : 0, EVQ_BACKEND_ABI);
        return NULL;
    }
    return ops;
}

void evq_backend_load(int32_t device, struct evq_backend *ret_backend, char *note,
                      size_t note_bytes)
{
    char why[400] = "";
    struct evq_error err = {0};

    *ret_backend = (struct evq_backend){.ops = &evq_backend_cpu};
    (void)snprintf(note, note_bytes, "%s", "");
    if (device < 0) {
        return;
    }
    void *module = open_module(why, sizeof(why));
    const struct evq_backend_ops *ops =
        module != NULL ? module_table(module, why, sizeof(why)) : NULL;
    if (ops != NULL) {
        const int32_t devices = ops->probe(&err);
        const bool checked = devices > device && evq_selfcheck(ops, device, &err) == EVQ_OK;
        if (checked) {
            *ret_backend = (struct evq_backend){.ops = ops, .module = module};
            return;
        }
        if (devices > 0 && devices <= device) {
            (void)snprintf(why, sizeof(why), "device %d of %d does not exist", (int)device,
                           (int)devices);
        } else {
            (void)snprintf(why, sizeof(why), "%.399s", err.message);
        }
    }
    if (module != NULL) {
        (void)dlclose(module); // Gives the reference back; it stays in memory.
    }
    (void)snprintf(note, note_bytes, "evaluating on the CPU: %s", why);
}

void evq_backend_unload(struct evq_backend *backend)
{
    if (backend->module != NULL) {
        (void)dlclose(backend->module); // Gives the reference back; it stays in memory.
    }
    *backend = (struct evq_backend){0};
}
