/*
 * Shares the GPUs of this machine between its workers by leases in Redis. A slot has a child only
 * while its GPUs are leased. The supervisor's single thread. docs/gpu.md describes it.
 */
#ifndef EVQ_WORKER_SUPERVISOR_GPU_LEASES_H
#define EVQ_WORKER_SUPERVISOR_GPU_LEASES_H

#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "worker/devices/devices.h"

struct evq_supervisor;

struct evq_gpu_leases {
    struct evq_devices pool; // All GPUs that may be leased, by UUID; count 0: GPUs are not shared.
    struct evq_gpu_lease leases[EVQ_DEVICES_MAX]; // The leases, in the order of the pool.
    int32_t shares[EVQ_DEVICES_MAX]; // For each GPU the share that it belongs to; -1: none.
    // Number of shares that this worker can use. If there are more slots than shares, slots use a
    // share together.
    uint32_t share_count;
    uint32_t per_share; // GPUs in one share.
    char boot[64];
    int64_t current_ms; // Monotonic time until which no other worker can take our GPUs.
};

/* Chooses the devices: `said` (the option --devices; NULL: not given) first, then worker.gpus, then
 * worker.devices. GPUs that are found by "auto" or named in worker.gpus are shared; other lists are
 * not. */
enum evq_status evq_gpu_leases_choose(const struct evq_config *config, const char *said,
                                      struct evq_devices *ret_devices, bool *ret_shared,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes over the pool and sizes the shares for slot_count slots. Does not call Redis.
 * EVQ_E_INVALID: the pool is smaller than one share, or a share would contain several MIG
 * instances. */
enum evq_status evq_gpu_leases_open(struct evq_gpu_leases *gpus, const struct evq_devices *pool,
                                    int32_t per_share, uint32_t slot_count,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether a job may be started: GPUs are not shared, or their leases were renewed recently enough.
 */
bool evq_gpu_leases_current(const struct evq_supervisor *supervisor);

/*
 * Renews the leases, takes free GPUs that are wanted, and updates the slots. If another worker owns
 * a GPU now, the child of its slot is killed, and its job goes back to the queue uncharged. Returns
 * false if Redis is away.
 */
bool evq_gpu_leases_renew(struct evq_supervisor *supervisor);

// Frees all GPUs. Call it when no child is left.
void evq_gpu_leases_leave(struct evq_supervisor *supervisor);

#endif
