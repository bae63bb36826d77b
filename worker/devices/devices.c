#include "worker/devices/devices.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/devices/nvml.h"

/* Reads the UUID; false: there is none, or it is too long. */
static bool uuid_read(const struct evq_nvml *nvml, void *handle, struct evq_device *device)
{
    char uuid[EVQ_NVML_UUID_BYTES];

    if (nvml->uuid(handle, uuid, sizeof(uuid)) != 0 || strlen(uuid) >= sizeof(device->id)) {
        return false;
    }
    memcpy(device->id, uuid, strlen(uuid) + 1);
    return true;
}

/* Replaces numbers by UUIDs, because CUDA may count the GPUs in another order than NVML. */
static bool device_describe(const struct evq_nvml *nvml, struct evq_device *device,
                            bool *ret_unique)
{
    struct evq_nvml_memory memory = {0};
    void *handle = NULL;

    if (!evq_nvml_find(nvml, device->id, &handle)) {
        return false;
    }
    if (nvml->memory(handle, &memory) == 0) {
        device->memory_bytes = (int64_t)memory.total;
    }
    if (nvml->name(handle, device->name, sizeof(device->name)) != 0) {
        device->name[0] = '\0';
    }
    *ret_unique = uuid_read(nvml, handle, device);
    return true;
}

bool evq_devices_is_instance(const char *id)
{
    return strncmp(id, "MIG-", 4) == 0;
}

/* Parses "0,1" or UUIDs, as in CUDA_VISIBLE_DEVICES. */
static enum evq_status list_parse(const char *text, const char *where, struct evq_devices *devices,
                                  struct evq_error *err)
{
    for (const char *at = text; *at != '\0';) {
        const size_t bytes = strcspn(at, ",");
        const bool legal = strspn(at, "0123456789") == bytes || strncmp(at, "GPU-", 4) == 0 ||
                           evq_devices_is_instance(at);
        if (bytes == 0 || bytes >= sizeof(devices->items[0].id) || !legal) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "%s takes auto, cpu or GPU numbers such as 0,1, not '%s'", where,
                                 text);
        }
        if (devices->count == EVQ_DEVICES_MAX) {
            return evq_error_set(err, EVQ_E_LIMIT, "%s names more than %d GPUs", where,
                                 EVQ_DEVICES_MAX);
        }
        struct evq_device *device = &devices->items[devices->count++];
        memset(device, 0, sizeof(*device));
        memcpy(device->id, at, bytes);
        at += bytes;
        at += *at == ',';
    }
    return EVQ_OK;
}

/* Adds the MIG instances of a GPU. If CUDA is given the whole GPU, it uses only one of them. */
static void instances_add(const struct evq_nvml *nvml, void *gpu, uint32_t most,
                          struct evq_devices *devices)
{
    for (uint32_t i = 0; i < most && devices->count < EVQ_DEVICES_MAX; i++) {
        void *instance = NULL;
        devices->count += evq_nvml_instance(nvml, gpu, i, &instance) &&
                          uuid_read(nvml, instance, &devices->items[devices->count]);
    }
}

/* Adds one GPU. If it does not answer, that is noticed later. */
static void gpu_add(const struct evq_nvml *nvml, unsigned int number, struct evq_devices *devices)
{
    const uint32_t before = devices->count;
    void *gpu = NULL;

    const uint32_t most = nvml->handle(number, &gpu) == 0 ? evq_nvml_instances(nvml, gpu) : 0;
    if (most == 0) {
        (void)snprintf(devices->items[devices->count].id, sizeof(devices->items[0].id), "%u",
                       number);
        devices->count++;
        return;
    }
    instances_add(nvml, gpu, most, devices);
    if (devices->count == before) {
        (void)snprintf(devices->note, sizeof(devices->note),
                       "GPU %u is cut up (MIG), and none of its instances is here", number);
    }
}

static enum evq_status auto_find(const struct evq_nvml *nvml, struct evq_devices *devices,
                                 struct evq_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned int count = 0;

    if (visible != NULL) {
        if (visible[0] == '\0' || strcmp(visible, "-1") == 0) {
            (void)snprintf(devices->note, sizeof(devices->note),
                           "CUDA_VISIBLE_DEVICES hides all GPUs");
            return EVQ_OK;
        }
        return list_parse(visible, "CUDA_VISIBLE_DEVICES", devices, err);
    }
    if (nvml->count(&count) != 0 || count == 0) {
        (void)snprintf(devices->note, sizeof(devices->note), "the NVIDIA driver shows no GPU");
        return EVQ_OK;
    }
    for (unsigned int i = 0; i < count && devices->count < EVQ_DEVICES_MAX; i++) {
        gpu_add(nvml, i, devices);
    }
    return EVQ_OK;
}

/* Removes a GPU that does not answer, and keeps the others. */
static void one_leave_out(struct evq_devices *devices, uint32_t *at)
{
    (void)snprintf(devices->note, sizeof(devices->note), "GPU %s does not answer: it is left out",
                   devices->items[*at].id);
    devices->count--;
    memmove(&devices->items[*at], &devices->items[*at + 1],
            (devices->count - *at) * sizeof(devices->items[0]));
    --*at;
}

enum evq_status evq_devices_find(const char *text, struct evq_devices *ret_devices,
                                 struct evq_error *err)
{
    struct evq_nvml nvml;
    char note[256];

    memset(ret_devices, 0, sizeof(*ret_devices));
    if (strcmp(text, "cpu") == 0) {
        return EVQ_OK;
    }
    const bool automatic = strcmp(text, "auto") == 0 || text[0] == '\0';
    enum evq_status status = automatic ? EVQ_OK : list_parse(text, "--devices", ret_devices, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!evq_nvml_open(&nvml, note, sizeof(note))) {
        memcpy(ret_devices->note, note, sizeof(note));
        return automatic ? EVQ_OK
                         : evq_error_set(err, EVQ_E_NOT_FOUND, "devices '%s': %s", text, note);
    }
    const bool counted = automatic && getenv("CUDA_VISIBLE_DEVICES") == NULL;
    status = automatic ? auto_find(&nvml, ret_devices, err) : EVQ_OK;
    const uint32_t shown = ret_devices->count;
    ret_devices->unique = true;
    for (uint32_t i = 0; i < ret_devices->count && status == EVQ_OK; i++) {
        bool unique = false;
        const bool there = device_describe(&nvml, &ret_devices->items[i], &unique);
        ret_devices->unique = ret_devices->unique && (unique || (!there && counted));
        if (!there && counted) {
            one_leave_out(ret_devices, &i);
        } else if (!there) {
            status = evq_error_set(err, EVQ_E_NOT_FOUND, "this machine has no GPU %s",
                                   ret_devices->items[i].id);
        }
    }
    evq_nvml_close(&nvml);
    if (status == EVQ_OK && shown > 0 && ret_devices->count == 0) {
        // Without this error, the jobs would silently run on the CPU.
        status = evq_error_set(err, EVQ_E_NOT_FOUND, "no GPU answers: %.200s", ret_devices->note);
    }
    return status;
}

enum evq_status evq_devices_named(const char *const *uuids, size_t count,
                                  struct evq_devices *ret_devices, struct evq_error *err)
{
    struct evq_nvml nvml;

    memset(ret_devices, 0, sizeof(*ret_devices));
    if (count > EVQ_DEVICES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "%zu GPUs, allowed %d", count, EVQ_DEVICES_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        struct evq_device *device = &ret_devices->items[i];
        if (strlen(uuids[i]) >= sizeof(device->id)) {
            return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a UUID of a GPU", uuids[i]);
        }
        (void)snprintf(device->id, sizeof(device->id), "%s", uuids[i]);
    }
    ret_devices->count = (uint32_t)count;
    ret_devices->unique = true;
    if (!evq_nvml_open(&nvml, ret_devices->note, sizeof(ret_devices->note))) {
        return EVQ_OK; // In a container without the driver's utilities, CUDA may still work.
    }
    enum evq_status status = EVQ_OK;
    for (uint32_t i = 0; i < ret_devices->count && status == EVQ_OK; i++) {
        bool unique = false;
        if (!device_describe(&nvml, &ret_devices->items[i], &unique)) {
            status = evq_error_set(err, EVQ_E_NOT_FOUND, "this machine has no GPU %s",
                                   ret_devices->items[i].id);
        }
    }
    evq_nvml_close(&nvml);
    return status;
}

void evq_devices_deal(const struct evq_devices *devices, uint32_t slot, uint32_t slot_count,
                      char out[EVQ_DEVICES_TEXT], int32_t *ret_gpus, int64_t *ret_memory_bytes)
{
    size_t used = 0;
    int64_t memory_bytes = 0;
    int32_t gpus = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < devices->count; i++) {
        const bool mine = devices->count >= slot_count ? i * slot_count / devices->count == slot
                                                       : i == slot % devices->count;
        const bool one = evq_devices_is_instance(devices->items[i].id) ||
                         evq_devices_is_instance(out); // The first device of the list.
        if (!mine || (gpus > 0 && one)) {
            continue;
        }
        const int bytes = snprintf(out + used, EVQ_DEVICES_TEXT - used, "%s%s", gpus > 0 ? "," : "",
                                   devices->items[i].id);
        if (bytes < 0 || (size_t)bytes >= EVQ_DEVICES_TEXT - used) {
            out[used] = '\0';
            break;
        }
        used += (size_t)bytes;
        // A slot promises the memory of its smallest device.
        memory_bytes = gpus == 0 || devices->items[i].memory_bytes < memory_bytes
                           ? devices->items[i].memory_bytes
                           : memory_bytes;
        gpus++;
    }
    *ret_gpus = gpus;
    *ret_memory_bytes = memory_bytes;
}
