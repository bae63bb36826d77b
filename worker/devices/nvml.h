/*
 * NVML, the library of the NVIDIA driver, loaded at run time. It lists the GPUs and reads their
 * state, without CUDA. An open handle is for one thread; several threads may open one each. Calls
 * may be slow, and may never return if a GPU has fallen off the bus.
 */
#ifndef EVQ_WORKER_DEVICES_NVML_H
#define EVQ_WORKER_DEVICES_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evq_nvml_memory { // Layout of NVML; bytes.
    unsigned long long total, free, used;
};

struct evq_nvml_share { // Layout of NVML; percent of the time since the last call.
    unsigned int gpu, memory;
};

struct evq_nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned int *ret_count);
    int (*handle)(unsigned int number, void **ret_device);
    int (*uuid_handle)(const char *uuid, void **ret_device);
    int (*memory)(void *device, struct evq_nvml_memory *ret_memory);
    int (*name)(void *device, char *name, unsigned int bytes);
    int (*uuid)(void *device, char *uuid, unsigned int bytes);
    int (*share)(void *device, struct evq_nvml_share *ret_share); // NULL: NVML lacks it.
    // NULL: NVML lacks it.
    int (*temperature)(void *device, int sensor, unsigned int *ret_celsius);
    // The instances of a GPU that is partitioned with MIG. All three are NULL if NVML lacks them.
    int (*mig_mode)(void *device, unsigned int *ret_mode, unsigned int *ret_pending);
    int (*mig_max)(void *device, unsigned int *ret_count);
    int (*mig_handle)(void *device, unsigned int number, void **ret_instance);
};

#define EVQ_NVML_UUID_BYTES 96 // NVML requires this size, whatever the length of a UUID.

/* Returns false if NVML is missing or does not answer; note then says why. */
bool evq_nvml_open(struct evq_nvml *nvml, char *note, size_t note_bytes);
void evq_nvml_close(struct evq_nvml *nvml);

/* Finds a GPU by number or UUID, as in CUDA_VISIBLE_DEVICES. False: it does not exist. */
bool evq_nvml_find(const struct evq_nvml *nvml, const char *id, void **ret_device);

/* The largest number of MIG instances of this GPU; 0: it is not partitioned. CUDA sees the
 * instances of a partitioned GPU, but not the GPU itself. */
uint32_t evq_nvml_instances(const struct evq_nvml *nvml, void *device);

/* Opens the MIG instance with this number. False: it does not exist, or is not visible to us. */
bool evq_nvml_instance(const struct evq_nvml *nvml, void *device, uint32_t number,
                       void **ret_instance);

struct evq_nvml_reading { // -1: NVML does not tell.
    int32_t busy_percent;
    int32_t temperature_c;
    int64_t memory_used_bytes, memory_bytes;
};

struct evq_nvml_reading evq_nvml_read(const struct evq_nvml *nvml, void *device);

#endif
