#include "worker/supervisor/gpu_leases.h"

#include <stdio.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

enum evq_status evq_gpu_leases_choose(const struct evq_config *config, const char *said,
                                      struct evq_devices *ret_devices, bool *ret_shared,
                                      struct evq_error *err)
{
    if (said == NULL && config->worker.gpu_count > 0) {
        *ret_shared = true;
        return evq_devices_named(config->worker.gpus, config->worker.gpu_count, ret_devices, err);
    }
    said = said != NULL ? said : config->worker.devices;
    const enum evq_status status = evq_devices_find(said, ret_devices, err);
    *ret_shared = strcmp(said, "auto") == 0 && ret_devices->count > 0 && ret_devices->unique;
    return status;
}

enum evq_status evq_gpu_leases_open(struct evq_gpu_leases *gpus, const struct evq_devices *pool,
                                    int32_t per_share, uint32_t slot_count, struct evq_error *err)
{
    memset(gpus, 0, sizeof(*gpus));
    if (pool->count < (uint32_t)per_share) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "worker.gpus_per_slot is %d, but this machine has only %u GPUs to share", per_share,
            pool->count);
    }
    for (uint32_t i = 0; i < pool->count && per_share > 1; i++) {
        if (evq_devices_is_instance(pool->items[i].id)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "worker.gpus_per_slot is %d, but CUDA gives a process only one "
                                 "MIG instance such as %s: set it to 1",
                                 per_share, pool->items[i].id);
        }
    }
    gpus->pool = *pool;
    gpus->per_share = (uint32_t)per_share;
    const uint32_t most = pool->count / gpus->per_share;
    gpus->share_count = slot_count < most ? slot_count : most;
    for (uint32_t i = 0; i < pool->count; i++) {
        (void)snprintf(gpus->leases[i].uuid, sizeof(gpus->leases[i].uuid), "%s", pool->items[i].id);
        gpus->shares[i] = -1;
    }
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    const bool read = file != NULL && fscanf(file, "%63s", gpus->boot) == 1;
    if (file != NULL) {
        (void)fclose(file);
    }
    return read ? EVQ_OK
                : evq_error_set(err, EVQ_E_IO,
                                "/proc/sys/kernel/random/boot_id cannot be read, but workers need "
                                "it to share the GPUs of a machine");
}

bool evq_gpu_leases_current(const struct evq_supervisor *supervisor)
{
    return supervisor->gpus.pool.count == 0 || evq_clock_mono_ms() < supervisor->gpus.current_ms;
}

/* ---- slots and their shares ---- */

static int32_t share_of(const struct evq_gpu_leases *gpus, const struct evq_slot *slot)
{
    return (int32_t)(slot->number % gpus->share_count);
}

/* A share can be given to slots only after all children of its earlier use have died. */
static bool share_is_open(const struct evq_supervisor *supervisor, int32_t share)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        const struct evq_slot *slot = &supervisor->slots[i];
        if (share_of(&supervisor->gpus, slot) == share && slot->state != EVQ_SLOT_NO_GPUS) {
            return false;
        }
    }
    return true;
}

static void slot_give(struct evq_supervisor *supervisor, struct evq_slot *slot,
                      const struct evq_devices *devices)
{
    evq_devices_deal(devices, 0, 1, slot->devices, &slot->gpus, &slot->memory_bytes);
    slot->note[0] = '\0';
    slot->start_ms = 0;
    evq_slot_move(slot, EVQ_SLOT_ON_GPUS_GIVEN);
    supervisor->classes_stale =
        evq_suite_registry_fit(&supervisor->registry, slot) != EVQ_OK || supervisor->classes_stale;
    supervisor->claim_due = true;
    evq_log(EVQ_LOG_INFO, "gpu_leased", "slot=%u devices=%s", slot->number, slot->devices);
}

static void share_give(struct evq_supervisor *supervisor, int32_t share,
                       const struct evq_devices *devices)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (share_of(&supervisor->gpus, &supervisor->slots[i]) == share) {
            slot_give(supervisor, &supervisor->slots[i], devices);
        }
    }
}

/* Kills the child at once instead of asking it to stop, because another process may already use the
 * GPU. */
static void slot_take_away(struct evq_slot *slot)
{
    evq_log(EVQ_LOG_ERROR, "gpu_lost", "slot=%u devices=%s reason=%s", slot->number, slot->devices,
            "its lease lapsed and another worker took the GPU");
    slot->fits = 0;
    slot->gpus = 0;
    slot->memory_bytes = 0;
    slot->devices[0] = '\0';
    slot->ending = slot->ending == EVQ_CAUSE_NONE ? EVQ_CAUSE_RELEASED : slot->ending;
    evq_slot_kill(slot);
    evq_slot_move(slot, EVQ_SLOT_ON_GPUS_LOST);
}

static void share_take_away(struct evq_supervisor *supervisor, int32_t share)
{
    struct evq_gpu_leases *gpus = &supervisor->gpus;

    for (uint32_t i = 0; i < gpus->pool.count; i++) {
        gpus->shares[i] = gpus->shares[i] == share ? -1 : gpus->shares[i];
    }
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (share_of(gpus, &supervisor->slots[i]) == share &&
            !evq_slot_waits_for_gpus(&supervisor->slots[i])) {
            slot_take_away(&supervisor->slots[i]);
        }
    }
}

/* ---- what Redis says ---- */

static void lost_take_away(struct evq_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->gpus.pool.count; i++) {
        const int32_t share = supervisor->gpus.shares[i];
        if (share >= 0 && supervisor->gpus.leases[i].token[0] == '\0') {
            share_take_away(supervisor, share);
        }
    }
}

static void held_give(struct evq_supervisor *supervisor)
{
    struct evq_gpu_leases *gpus = &supervisor->gpus;

    for (int32_t share = 0; share < (int32_t)gpus->share_count; share++) {
        struct evq_devices devices = {.count = 0};
        uint32_t chosen[EVQ_DEVICES_MAX];
        for (uint32_t i = 0; i < gpus->pool.count && devices.count < gpus->per_share; i++) {
            if (gpus->leases[i].token[0] != '\0' && gpus->shares[i] < 0) {
                chosen[devices.count] = i;
                devices.items[devices.count++] = gpus->pool.items[i];
            }
        }
        if (devices.count < gpus->per_share || !share_is_open(supervisor, share)) {
            continue;
        }
        for (uint32_t i = 0; i < devices.count; i++) {
            gpus->shares[chosen[i]] = share;
        }
        share_give(supervisor, share, &devices);
    }
}

static void waiting_say(struct evq_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (evq_slot_waits_for_gpus(slot)) {
            char note[sizeof(slot->note)];
            (void)snprintf(
                note, sizeof(note),
                "waits for %u of the %u GPUs of this machine, which other workers use now",
                supervisor->gpus.per_share, supervisor->gpus.pool.count);
            if (strcmp(note, slot->note) != 0) {
                memcpy(slot->note, note, sizeof(note));
                evq_log(EVQ_LOG_INFO, "gpu_wait", "slot=%u reason=%s", slot->number, note);
            }
        }
    }
}

static enum evq_status leases_call(struct evq_supervisor *supervisor, uint32_t want,
                                   struct evq_error *err)
{
    struct evq_gpu_leases *gpus = &supervisor->gpus;
    struct evq_gpu_lease named[EVQ_DEVICES_MAX];
    uint32_t numbers[EVQ_DEVICES_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < gpus->pool.count && want > 0; i++) {
        // GPUs of a share that lost one of its GPUs are of no use. They are not named here, so
        // other workers can lease them.
        if (gpus->leases[i].token[0] == '\0' || gpus->shares[i] >= 0) {
            numbers[count] = i;
            named[count++] = gpus->leases[i];
        }
    }
    const struct evq_gpu_request request = {.worker = supervisor->name,
                                            .boot = gpus->boot,
                                            .lease_ms = supervisor->lease_ms,
                                            .want = want,
                                            .several = gpus->per_share};
    const enum evq_status status =
        evq_queue_gpus_lease(supervisor->redis.queue, &request, named, count, err);
    if (status == EVQ_OK) {
        for (uint32_t i = 0; i < gpus->pool.count; i++) {
            gpus->leases[i].token[0] = '\0';
        }
        for (uint32_t i = 0; i < count; i++) {
            gpus->leases[numbers[i]] = named[i];
        }
    }
    return status;
}

bool evq_gpu_leases_renew(struct evq_supervisor *supervisor)
{
    struct evq_gpu_leases *gpus = &supervisor->gpus;
    const int64_t sent_ms = evq_clock_mono_ms();
    struct evq_error err;

    if (gpus->pool.count == 0) {
        return true;
    }
    const enum evq_status status =
        leases_call(supervisor, gpus->share_count * gpus->per_share, &err);
    if (!evq_redis_session_note(&supervisor->redis, status, &err)) {
        return false;
    }
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "gpus_refused", "reason=%s", err.message);
        return true;
    }
    gpus->current_ms = sent_ms + supervisor->lease_ms;
    lost_take_away(supervisor);
    held_give(supervisor);
    waiting_say(supervisor);
    return true;
}

void evq_gpu_leases_leave(struct evq_supervisor *supervisor)
{
    struct evq_error err;

    if (supervisor->gpus.pool.count == 0) {
        return;
    }
    const enum evq_status status = leases_call(supervisor, 0, &err);
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_WARN, "gpus_not_released", "reason=%s", err.message);
    }
}
