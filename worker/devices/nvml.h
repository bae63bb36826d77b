/*
 * NVML, the NVIDIA driver's own library, loaded at run time: which GPUs there are and how they do.
 * No CUDA. What is opened is for one thread, several may open it; calls may take long, or never
 * return where a GPU has fallen off the bus.
 */
#ifndef EVQ_WORKER_NVML_H
#define EVQ_WORKER_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evq_nvml_memory { // As NVML has it; bytes.
    unsigned long long total, free, used;
};

struct evq_nvml_share { // As NVML has it; percent of the time since it last looked.
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
    int (*share)(void *device, struct evq_nvml_share *ret_share);            // NULL: not there.
    int (*temperature)(void *device, int sensor, unsigned int *ret_celsius); // NULL: not there.
    // MIG; NULL: not there.
    int (*cut_mode)(void *device, unsigned int *ret_mode, unsigned int *ret_pending);
    int (*cut_most)(void *device, unsigned int *ret_count);
    int (*cut_handle)(void *device, unsigned int number, void **ret_instance);
};

#define EVQ_NVML_UUID_BYTES 96 // What NVML asks for, whatever UUIDs take.

/* False: there is none, or it does not answer; note says why, in one sentence. */
bool evq_nvml_open(struct evq_nvml *nvml, char *note, size_t note_bytes);
void evq_nvml_close(struct evq_nvml *nvml);

/* By number or UUID, as CUDA_VISIBLE_DEVICES takes them. False: it is not there. */
bool evq_nvml_find(const struct evq_nvml *nvml, const char *id, void **ret_device);

/* How many MIG instances the GPU may have been cut into; 0: it is whole. A GPU that is cut up is
 * not there for CUDA, its instances are. */
uint32_t evq_nvml_instances(const struct evq_nvml *nvml, void *device);

/* By number, below that. False: it is not there, or not shown to us. */
bool evq_nvml_instance(const struct evq_nvml *nvml, void *device, uint32_t number,
                       void **ret_instance);

struct evq_nvml_reading { // -1: NVML does not tell.
    int32_t busy_percent;
    int32_t temperature_c;
    int64_t memory_used_bytes, memory_bytes;
};

struct evq_nvml_reading evq_nvml_read(const struct evq_nvml *nvml, void *device);

#endif
