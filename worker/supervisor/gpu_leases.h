/*
 * The GPUs of this machine, shared out between its workers by leases in Redis: a slot has a child
 * only while its GPUs are leased. The supervisor's single thread. How: docs/gpu.md.
 */
#ifndef EVQ_WORKER_GPU_LEASES_H
#define EVQ_WORKER_GPU_LEASES_H

#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "worker/devices/devices.h"

struct evq_supervisor;

struct evq_gpu_leases {
    struct evq_devices pool; // All that may be leased, each id a UUID; none: nothing is shared.
    struct evq_gpu_lease leases[EVQ_DEVICES_MAX]; // Of the pool's, in its order.
    int32_t shares[EVQ_DEVICES_MAX];              // The share each belongs to; -1: none.
    uint32_t share_count; // What this worker has use for; slots beyond it share one.
    uint32_t per_share;   // GPUs.
    char boot[64];
    int64_t current_ms; // Monotonic: until then nobody else can have what we hold.
};

/* What --devices says (NULL: nothing) goes first, then worker.gpus, then worker.devices. A list of
 * devices is taken as it stands; GPUs that auto finds, and those of worker.gpus, are shared. */
enum evq_status evq_gpu_leases_choose(const struct evq_config *config, const char *said,
                                      struct evq_devices *ret_devices, bool *ret_shared,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes the pool over and sizes the shares for slot_count slots. EVQ_E_INVALID: the pool is smaller
 * than one share, or a share would have several MIG instances. No Redis yet. */
enum evq_status evq_gpu_leases_open(struct evq_gpu_leases *gpus, const struct evq_devices *pool,
                                    int32_t per_share, uint32_t slot_count,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether a job may be started: nothing is shared, or the leases were renewed lately enough. */
bool evq_gpu_leases_current(const struct evq_supervisor *supervisor);

/*
 * Renews, takes what is free and wanted, and tells the slots. The child of a slot whose GPU is
 * another's now is killed; its job goes back to the queue, uncharged. False: Redis is away.
 */
bool evq_gpu_leases_renew(struct evq_supervisor *supervisor);

void evq_gpu_leases_leave(struct evq_supervisor *supervisor); // Once no child is left: frees all.

#endif
