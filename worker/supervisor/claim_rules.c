/* Decides which jobs the slots of this worker can take now. */
#include <stdio.h>
#include <string.h>

#include "shared/base/clock.h"
#include "worker/supervisor/supervisor.h"

uint32_t evq_claim_rules_idle(const struct evq_supervisor *supervisor)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        count += supervisor->slots[i].state == EVQ_SLOT_IDLE;
    }
    return count;
}

uint32_t evq_claim_rules_busy(const struct evq_supervisor *supervisor)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        count += evq_slot_has_job(&supervisor->slots[i]);
    }
    return count;
}

bool evq_claim_rules_changing(const struct evq_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (evq_slot_changes(&supervisor->slots[i])) {
            return true;
        }
    }
    return false;
}

bool evq_claim_rules_fit(const struct evq_supervisor *supervisor, const struct evq_job *job,
                         const struct evq_slot *slot)
{
    const struct evq_suite *suite = evq_suite_registry_suite(&supervisor->registry, job->suite);
    const struct evq_needs *needs = job->needs_given || suite == NULL ? &job->needs : &suite->needs;

    return needs->gpus <= slot->gpus &&
           (needs->gpu_memory_bytes == 0 || needs->gpu_memory_bytes <= slot->memory_bytes);
}

uint64_t evq_claim_rules_classes(const struct evq_supervisor *supervisor, uint64_t mask)
{
    const int64_t left_s = supervisor->options->deadline_s - evq_clock_unix_ms() / 1000;

    for (uint32_t i = 0; i < supervisor->registry.class_count; i++) {
        const struct evq_class *class = &supervisor->registry.classes[i];
        const struct evq_suite *suite =
            evq_suite_registry_suite(&supervisor->registry, class->suite);
        const bool late =
            suite != NULL && supervisor->options->deadline_s > 0 &&
            supervisor->suite_seconds[suite - supervisor->config->suites] > (double)left_s;
        if (late || (suite != NULL && evq_disk_pause_active(supervisor, suite))) {
            mask &= ~evq_suite_registry_bit(class->number);
        }
    }
    return mask;
}

bool evq_claim_rules_warm(const struct evq_slot *slot, const char *id)
{
    const size_t bytes = strlen(slot->warm);

    return bytes > 0 && strncmp(id, slot->warm, bytes) == 0 && id[bytes] == '/';
}

uint32_t evq_claim_rules_preferred(const struct evq_supervisor *supervisor,
                                   const struct evq_slot *slot, char (*ids)[EVQ_JOB_ID_BYTES_MAX],
                                   uint32_t count)
{
    const struct evq_config *config = supervisor->config;

    for (size_t i = 0; slot->warm[0] != '\0' && i < config->suite_count; i++) {
        const struct evq_suite *suite = &config->suites[i];
        if (count < EVQ_QUEUE_PREFERRED_MAX && suite->harness[0] != '\0' &&
            strcmp(suite->evaluator, slot->warm_evaluator) == 0) {
            const int bytes =
                snprintf(ids[count], EVQ_JOB_ID_BYTES_MAX, "%s/%s", slot->warm, suite->name);
            count += bytes < EVQ_JOB_ID_BYTES_MAX; // There is no job with a longer id.
        }
    }
    return count;
}

static bool alone_present(const struct evq_supervisor *supervisor)
{
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->claim->alone && lease->state != EVQ_LEASE_ENDING) {
            return true;
        }
    }
    return false;
}

bool evq_claim_rules_allow(const struct evq_supervisor *supervisor)
{
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->state == EVQ_LEASE_HELD) {
            return false;
        }
    }
    return !supervisor->draining && !supervisor->sick && supervisor->registered &&
           !alone_present(supervisor) && evq_gpu_leases_current(supervisor) &&
           (supervisor->options->max_jobs == 0 ||
            supervisor->jobs_taken < supervisor->options->max_jobs);
}
