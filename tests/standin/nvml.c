/*
 * Stands in for the NVIDIA driver's libnvidia-ml.so.1: it tells of the GPUs in the file gpus of the
 * directory $EVQ_STANDIN, a line each: UUID USED TOTAL BUSY CELSIUS (bytes, percent). Without the
 * file there is no driver. Where a FIFO named hang-UUID is there, asking how busy this GPU is never
 * returns; one whose UUID begins with GPU-lost has fallen off the bus. One that begins with GPU-cut
 * is in MIG mode: the lines behind it that begin with MIG- are its instances, of odd numbers.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT   __attribute__((visibility("default")))
#define GPUS_MAX 64

#define UUID_BYTES 96 // That a caller must have room for.
#define MIG_MOST   7

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15 };

struct gpu {
    char uuid[64];
    unsigned long long used, total;
    unsigned int busy, celsius;
};

struct memory { // As NVML has it.
    unsigned long long total, free, used;
};

struct share { // As NVML has it.
    unsigned int gpu, memory;
};

static struct gpu gpus[GPUS_MAX];

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int number, void **ret_device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *ret_memory);
int nvmlDeviceGetName(void *device, char *name, unsigned int bytes);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int bytes);
int nvmlDeviceGetUtilizationRates(void *device, struct share *ret_share);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *ret_celsius);
int nvmlDeviceGetMigMode(void *device, unsigned int *ret_mode, unsigned int *ret_pending);
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *ret_count);
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int number, void **ret_instance);

static bool begins(const void *device, const char *with)
{
    return strncmp(((const struct gpu *)device)->uuid, with, strlen(with)) == 0;
}

static FILE *open_file(const char *name)
{
    char path[256];
    const char *directory = getenv("EVQ_STANDIN");

    (void)snprintf(path, sizeof(path), "%s/%s", directory != NULL ? directory : "/nowhere", name);
    return fopen(path, "re");
}

static unsigned int gpus_read(struct gpu *out)
{
    unsigned int count = 0;
    FILE *file = open_file("gpus");

    while (file != NULL && count < GPUS_MAX &&
           fscanf(file, "%63s %llu %llu %u %u", out[count].uuid, &out[count].used,
                  &out[count].total, &out[count].busy, &out[count].celsius) == 5) {
        count++;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return count;
}

/* As it is now: the driver's numbers change while a process looks on. */
static struct gpu gpu_now(const void *device)
{
    struct gpu now[GPUS_MAX] = {{{0}, 0, 0, 0, 0}};

    (void)gpus_read(now);
    return now[(const struct gpu *)device - gpus];
}

EXPORT int nvmlInit_v2(void)
{
    return gpus_read(gpus) > 0 ? 0 : NO_DRIVER;
}

EXPORT int nvmlShutdown(void)
{
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
    struct gpu now[GPUS_MAX];
    const unsigned int all = gpus_read(now);

    *count = 0;
    for (unsigned int i = 0; i < all; i++) {
        *count += !begins(&now[i], "MIG-");
    }
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int number, void **ret_device)
{
    unsigned int at = 0;

    for (unsigned int before = 0; at < GPUS_MAX && gpus[at].uuid[0] != '\0'; at++) {
        if (!begins(&gpus[at], "MIG-") && before++ == number) {
            break;
        }
    }
    if (at >= GPUS_MAX || gpus[at].uuid[0] == '\0') {
        return NOT_FOUND;
    }
    if (begins(&gpus[at], "GPU-lost")) {
        return LOST;
    }
    *ret_device = &gpus[at];
    return 0;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device)
{
    for (unsigned int i = 0; i < GPUS_MAX; i++) {
        if (gpus[i].uuid[0] != '\0' && strcmp(gpus[i].uuid, uuid) == 0) {
            *ret_device = &gpus[i];
            return 0;
        }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *ret_memory)
{
    const struct gpu gpu = gpu_now(device);

    *ret_memory = (struct memory){gpu.total, gpu.total - gpu.used, gpu.used};
    return 0;
}

EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned int bytes)
{
    (void)device;
    (void)snprintf(name, bytes, "Stand-in");
    return 0;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int bytes)
{
    if (bytes < UUID_BYTES) {
        return TOO_SMALL;
    }
    (void)snprintf(uuid, bytes, "%s", ((const struct gpu *)device)->uuid);
    return 0;
}

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned int *ret_mode, unsigned int *ret_pending)
{
    *ret_mode = *ret_pending = begins(device, "GPU-cut");
    return begins(device, "MIG-") ? NOT_SUPPORTED : 0;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *ret_count)
{
    *ret_count = begins(device, "GPU-cut") ? MIG_MOST : 0;
    return 0;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int number,
                                               void **ret_instance)
{
    struct gpu *instance = (struct gpu *)device + 1 + number / 2;

    for (const struct gpu *at = (const struct gpu *)device + 1; at <= instance; at++) {
        if (number % 2 == 0 || at >= gpus + GPUS_MAX || !begins(at, "MIG-")) {
            return NOT_FOUND;
        }
    }
    *ret_instance = instance;
    return 0;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct share *ret_share)
{
    char name[80];

    (void)snprintf(name, sizeof(name), "hang-%s", ((const struct gpu *)device)->uuid);
    FILE *fifo = open_file(name); // Of a FIFO that nobody writes to: never returns.
    if (fifo != NULL) {
        (void)fclose(fifo);
    }
    *ret_share = (struct share){gpu_now(device).busy, 0};
    return begins(device, "MIG-") ? NOT_SUPPORTED : 0;
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *ret_celsius)
{
    (void)sensor;
    *ret_celsius = gpu_now(device).celsius;
    return 0;
}
