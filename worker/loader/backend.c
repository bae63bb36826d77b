#include "worker/loader/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* RTLD_NOW makes a missing library appear here and not in the middle of a job. RTLD_NODELETE keeps
 * the module loaded, because a CUDA runtime that was asked for its devices does not survive being
 * unloaded. */
static void *open_module(char *why, size_t why_bytes)
{
    static const char *const places[] = {"", "../lib/", "../lib/evalq/"};
    char folder[PATH_MAX];
    void *module = NULL;

    (void)dlerror(); // This clears an older error.
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
    const char *first = dlerror(); // The error of a module that exists but cannot be loaded.
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

/* Returns EVQ_OK, or the reason why the device is not there. */
static enum evq_status device_find(const struct evq_backend_ops *ops, int32_t device,
                                   struct evq_error *err)
{
    const int32_t there = ops->probe(err);

    if (there < 1) {
        return EVQ_E_DEVICE;
    }
    return device < there ? EVQ_OK
                          : evq_error_set(err, EVQ_E_NOT_FOUND, "device %d of %d does not exist",
                                          (int)device, (int)there);
}

void evq_backend_find(int32_t device, struct evq_backend *ret_backend, char *note,
                      size_t note_bytes)
{
    char why[400] = "";
    struct evq_error fault = {0};

    *ret_backend = (struct evq_backend){.ops = &evq_backend_cpu, .name = evq_backend_cpu.name};
    (void)snprintf(note, note_bytes, "%s", "");
    if (device < 0) {
        return;
    }
    void *module = open_module(why, sizeof(why));
    const struct evq_backend_ops *ops =
        module != NULL ? module_table(module, why, sizeof(why)) : NULL;
    if (ops != NULL && device_find(ops, device, &fault) == EVQ_OK) {
        *ret_backend = (struct evq_backend){.ops = ops, .name = ops->name, .module = module};
        return;
    }
    (void)snprintf(note, note_bytes, "evaluating on the CPU: %s",
                   ops == NULL ? why : fault.message);
    if (module != NULL) {
        (void)dlclose(module); // This drops our reference; the module stays in memory.
    }
}

/* Returns how many they are: at most EVQ_BACKEND_DEVICES_MAX. */
static int32_t first_numbers(int32_t count, int32_t numbers[EVQ_BACKEND_DEVICES_MAX])
{
    count = count < EVQ_BACKEND_DEVICES_MAX ? count : EVQ_BACKEND_DEVICES_MAX;
    for (int32_t i = 0; i < count; i++) {
        numbers[i] = i;
    }
    return count;
}

enum evq_status evq_backend_load(int32_t gpus, struct evq_backend *ret_backend, char *note,
                                 size_t note_bytes, struct evq_error *err)
{
    int32_t numbers[EVQ_BACKEND_DEVICES_MAX];
    enum evq_status status = EVQ_OK;

    evq_backend_find(gpus - 1, ret_backend, note, note_bytes);
    if (ret_backend->module != NULL) {
        gpus = first_numbers(gpus, numbers);
        ret_backend->gpus = gpus;
        status = evq_selfcheck(ret_backend->ops, numbers, gpus, err);
    }
    if (status != EVQ_OK) {
        evq_backend_unload(ret_backend);
        *ret_backend = (struct evq_backend){.ops = &evq_backend_cpu, .name = evq_backend_cpu.name};
    }
    return status;
}

enum evq_status evq_backend_open(const struct evq_backend *backend, int32_t threads,
                                 void **ret_state, struct evq_error *err)
{
    int32_t numbers[EVQ_BACKEND_DEVICES_MAX];
    const struct evq_backend_config config = {.threads = threads,
                                              .devices = numbers,
                                              .device_count =
                                                  first_numbers(backend->gpus, numbers)};

    return backend->ops->open(&config, ret_state, err);
}

void evq_backend_unload(struct evq_backend *backend)
{
    if (backend->module != NULL) {
        (void)dlclose(backend->module); // This drops our reference; the module stays in memory.
    }
    *backend = (struct evq_backend){0};
}
