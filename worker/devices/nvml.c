#include "worker/devices/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENSOR_GPU = 0, MIG_ENABLED = 1 };

static bool symbol_find(void *library, const char *name, void *ret_function)
{
    void *symbol = dlsym(library, name);

    // ISO C has no cast from an object pointer to a function pointer, so the bytes are copied.
    memcpy(ret_function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

bool evq_nvml_open(struct evq_nvml *nvml, char *note, size_t note_bytes)
{
    *nvml = (struct evq_nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (nvml->library == NULL) {
        (void)snprintf(note, note_bytes,
                       "no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)");
        return false;
    }
    if (!symbol_find(nvml->library, "nvmlInit_v2", &nvml->init) ||
        !symbol_find(nvml->library, "nvmlShutdown", &nvml->shutdown) ||
        !symbol_find(nvml->library, "nvmlDeviceGetCount_v2", &nvml->count) ||
        !symbol_find(nvml->library, "nvmlDeviceGetHandleByIndex_v2", &nvml->handle) ||
        !symbol_find(nvml->library, "nvmlDeviceGetHandleByUUID", &nvml->uuid_handle) ||
        !symbol_find(nvml->library, "nvmlDeviceGetMemoryInfo", &nvml->memory) ||
        !symbol_find(nvml->library, "nvmlDeviceGetUUID", &nvml->uuid) ||
        !symbol_find(nvml->library, "nvmlDeviceGetName", &nvml->name)) {
        (void)snprintf(note, note_bytes, "the NVIDIA driver's libnvidia-ml.so.1 is too old");
        (void)dlclose(nvml->library);
        return false;
    }
    (void)symbol_find(nvml->library, "nvmlDeviceGetUtilizationRates", &nvml->share);
    (void)symbol_find(nvml->library, "nvmlDeviceGetTemperature", &nvml->temperature);
    (void)symbol_find(nvml->library, "nvmlDeviceGetMigMode", &nvml->mig_mode);
    (void)symbol_find(nvml->library, "nvmlDeviceGetMaxMigDeviceCount", &nvml->mig_max);
    (void)symbol_find(nvml->library, "nvmlDeviceGetMigDeviceHandleByIndex", &nvml->mig_handle);
    const int code = nvml->init();
    if (code != 0) {
        (void)snprintf(note, note_bytes, "the NVIDIA driver does not answer (NVML error %d)", code);
        (void)dlclose(nvml->library);
        return false;
    }
    return true;
}

void evq_nvml_close(struct evq_nvml *nvml)
{
    (void)nvml->shutdown(); // NVML is not used after this, so the result does not matter.
    (void)dlclose(nvml->library);
    *nvml = (struct evq_nvml){0};
}

bool evq_nvml_find(const struct evq_nvml *nvml, const char *id, void **ret_device)
{
    char *end = NULL;

    const unsigned long number = strtoul(id, &end, 10);
    return (*end == '\0' ? nvml->handle((unsigned int)number, ret_device)
                         : nvml->uuid_handle(id, ret_device)) == 0;
}

uint32_t evq_nvml_instances(const struct evq_nvml *nvml, void *device)
{
    unsigned int mode = 0;
    unsigned int pending = 0;
    unsigned int most = 0;
    const bool partitioned = nvml->mig_mode != NULL && nvml->mig_max != NULL &&
                             nvml->mig_handle != NULL &&
                             nvml->mig_mode(device, &mode, &pending) == 0 && mode == MIG_ENABLED;

    return partitioned && nvml->mig_max(device, &most) == 0 ? most : 0;
}

bool evq_nvml_instance(const struct evq_nvml *nvml, void *device, uint32_t number,
                       void **ret_instance)
{
    return nvml->mig_handle(device, number, ret_instance) == 0;
}

struct evq_nvml_reading evq_nvml_read(const struct evq_nvml *nvml, void *device)
{
    struct evq_nvml_reading reading = {-1, -1, -1, -1};
    struct evq_nvml_memory memory = {0};
    struct evq_nvml_share share = {0};
    unsigned int celsius = 0;

    if (nvml->memory(device, &memory) == 0) {
        reading.memory_used_bytes = (int64_t)memory.used;
        reading.memory_bytes = (int64_t)memory.total;
    }
    if (nvml->share != NULL && nvml->share(device, &share) == 0) {
        reading.busy_percent = (int32_t)share.gpu;
    }
    if (nvml->temperature != NULL && nvml->temperature(device, SENSOR_GPU, &celsius) == 0) {
        reading.temperature_c = (int32_t)celsius;
    }
    return reading;
}
