/*
 * Which devices this machine gives its slots. The supervisor asks NVML, loaded at run time, never
 * CUDA. Any thread.
 */
#ifndef EVQ_WORKER_DEVICES_H
#define EVQ_WORKER_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_DEVICES_MAX  64
#define EVQ_DEVICES_TEXT 512 // "0,1,2", as CUDA_VISIBLE_DEVICES takes it.

struct evq_device {
    char id[64];          // Number or UUID, as CUDA_VISIBLE_DEVICES takes it.
    char name[96];        // "" unknown.
    int64_t memory_bytes; // 0: unknown.
};

struct evq_devices {
    struct evq_device items[EVQ_DEVICES_MAX];
    uint32_t count; // 0: the CPU alone.
    bool unique;    // Each id is a UUID.
    char note[256]; // Why there is no GPU, when auto found none; "" otherwise.
};

/*
 * text: "auto" (all GPUs, of one that is cut up its MIG instances, or those $CUDA_VISIBLE_DEVICES
 * names; the CPU when there is none), "cpu", or numbers such as "0,1". EVQ_E_INVALID: not such a
 * list. EVQ_E_NOT_FOUND: a named GPU is not there.
 */
enum evq_status evq_devices_find(const char *text, struct evq_devices *ret_devices,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* These UUIDs, with names and memory where NVML is there and knows them. EVQ_E_LIMIT,
 * EVQ_E_INVALID: too many, or too long. EVQ_E_NOT_FOUND: NVML is there and does not know one. */
enum evq_status evq_devices_named(const char *const *uuids, size_t count,
                                  struct evq_devices *ret_devices,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

bool evq_devices_is_instance(const char *id); // Of MIG.

/* The devices of one slot of slot_count as CUDA_VISIBLE_DEVICES takes them; "" for the CPU. More
 * slots than devices share. Of MIG instances a slot gets one: CUDA gives a process no more. */
void evq_devices_deal(const struct evq_devices *devices, uint32_t slot, uint32_t slot_count,
                      char out[EVQ_DEVICES_TEXT], int32_t *ret_gpus, int64_t *ret_memory_bytes);

#endif
