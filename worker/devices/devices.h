/*
 * Decides which devices of this machine each slot gets. It asks NVML, which is loaded at run time,
 * and never CUDA. Any thread.
 */
#ifndef EVQ_WORKER_DEVICES_DEVICES_H
#define EVQ_WORKER_DEVICES_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_DEVICES_MAX  64
#define EVQ_DEVICES_TEXT 512 // A list such as "0,1,2" for CUDA_VISIBLE_DEVICES.

struct evq_device {
    char id[64];          // Number or UUID, as in CUDA_VISIBLE_DEVICES.
    char name[96];        // "": unknown.
    int64_t memory_bytes; // 0: unknown.
};

struct evq_devices {
    struct evq_device items[EVQ_DEVICES_MAX];
    uint32_t count; // 0: only the CPU.
    bool unique;    // Every id is a UUID.
    char note[256]; // Why "auto" found no GPU; "" otherwise.
};

/*
 * text: "auto", "cpu", or numbers such as "0,1". "auto" takes all GPUs (their MIG instances, if a
 * GPU is partitioned), or those in $CUDA_VISIBLE_DEVICES, or the CPU if there is none.
 * EVQ_E_INVALID: text is not such a list. EVQ_E_NOT_FOUND: a named GPU does not exist.
 */
enum evq_status evq_devices_find(const char *text, struct evq_devices *ret_devices,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes these UUIDs, with name and memory if NVML knows them. EVQ_E_LIMIT, EVQ_E_INVALID: too many,
 * or too long. EVQ_E_NOT_FOUND: NVML does not know one of them. */
enum evq_status evq_devices_named(const char *const *uuids, size_t count,
                                  struct evq_devices *ret_devices,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

bool evq_devices_is_instance(const char *id); // Whether it is a MIG instance.

/* The devices of one slot of slot_count, as text for CUDA_VISIBLE_DEVICES; "" for the CPU. If there
 * are more slots than devices, slots share devices. A slot gets at most one MIG instance, because
 * CUDA gives a process no more. */
void evq_devices_deal(const struct evq_devices *devices, uint32_t slot, uint32_t slot_count,
                      char out[EVQ_DEVICES_TEXT], int32_t *ret_gpus, int64_t *ret_memory_bytes);

#endif
