#include "worker/supervisor/lease.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/queue/codec.h"

#define DETAIL_BYTES_MAX 8191  // The most that evq_queue_fail() accepts.
#define REASON_BYTES     52    // The job's hash keeps so many bytes of a reason, after its kind.
#define PART_BYTES_MAX   65536 // The most that evq_queue_complete_shard() accepts.

struct evq_lease *evq_lease_new(struct evq_claim *claim, const struct evq_suite *suite,
                                const char *worker)
{
    struct evq_lease *lease = calloc(1, sizeof(*lease));
    struct evq_outbox_item *spare = calloc(1, sizeof(*spare));

    if (lease == NULL || spare == NULL) {
        free(lease);
        free(spare);
        return NULL;
    }
    lease->claim = claim;
    lease->suite = suite;
    lease->worker = worker;
    lease->spare = spare;
    lease->claimed_ms = evq_clock_mono_ms();
    lease->done = lease->total = -1;
    evq_buffer_init(&lease->part, PART_BYTES_MAX);
    return lease;
}

void evq_lease_outbox_pop(struct evq_lease *lease)
{
    struct evq_outbox_item *item = lease->first;

    lease->first = item->next;
    if (lease->first == NULL) {
        lease->last = NULL;
    }
    evq_result_free(item->result);
    free(item->detail);
    free(item);
}

void evq_lease_outbox_clear(struct evq_lease *lease)
{
    while (lease->first != NULL) {
        evq_lease_outbox_pop(lease);
    }
}

void evq_lease_free(struct evq_lease *lease)
{
    if (lease == NULL) {
        return;
    }
    evq_lease_outbox_clear(lease);
    free(lease->spare);
    evq_buffer_free(&lease->part);
    evq_claim_free(lease->claim);
    free(lease);
}

static struct evq_outbox_item *item_add(struct evq_lease *lease, enum evq_outbox_kind kind)
{
    struct evq_outbox_item *item = calloc(1, sizeof(*item));

    if (item == NULL && kind != EVQ_OUTBOX_PUBLISH) {
        item = lease->spare;
        lease->spare = NULL;
    }
    if (item != NULL) {
        item->kind = kind;
        if (lease->last != NULL) {
            lease->last->next = item;
        } else {
            lease->first = item;
        }
        lease->last = item;
    }
    return item;
}

bool evq_lease_queue_publish(struct evq_lease *lease, struct evq_result *result)
{
    struct evq_outbox_item *item = item_add(lease, EVQ_OUTBOX_PUBLISH);

    if (item == NULL) {
        evq_result_free(result);
        return false;
    }
    item->result = result;
    return true;
}

bool evq_lease_queue_end(struct evq_lease *lease, enum evq_outbox_kind kind)
{
    lease->state = EVQ_LEASE_ENDING;
    return item_add(lease, kind) != NULL;
}

bool evq_lease_queue_fail(struct evq_lease *lease, enum evq_fail_kind fail, const char *reason,
                          const char *detail)
{
    struct evq_outbox_item *item = item_add(lease, EVQ_OUTBOX_FAIL);

    lease->state = EVQ_LEASE_ENDING;
    if (item == NULL) {
        return false;
    }
    item->fail = fail;
    // The job's hash keeps only the beginning of the reason. The whole reason stands at the start
    // of the detail.
    if (strlen(reason) > REASON_BYTES) {
        evq_error_cause_first(reason, item->reason, sizeof(item->reason));
    } else {
        (void)snprintf(item->reason, sizeof(item->reason), "%s", reason);
    }
    item->detail = malloc(DETAIL_BYTES_MAX + 1); // If there is no memory, the reason alone is sent.
    if (item->detail != NULL) {
        (void)snprintf(item->detail, DETAIL_BYTES_MAX + 1, "%s\n%s", reason,
                       detail != NULL ? detail : "");
    }
    return true;
}

bool evq_lease_complete_result(const struct evq_lease *lease, struct evq_result *result)
{
    const struct evq_job *job = lease->claim->job;
    const struct evq_task_config *task = evq_suite_task(lease->suite, result->task);

    if (task == NULL) {
        return false;
    }
    result->job = lease->claim->id;
    result->run = job->run;
    result->step = job->step;
    result->epoch = job->epoch;
    result->variant = job->variant;
    result->suite = job->suite;
    result->state = EVQ_JOB_DONE;
    result->reason = "";
    result->metric_prefix = evq_pair_get(task->options, task->option_count, "metric_prefix", "");
    result->timing.queued_ms = lease->claim->queued_ms;
    result->suite_digest = lease->suite->digest;
    result->worker = lease->worker;
    result->evalq_version = EVQ_VERSION;
    result->attempt = lease->claim->attempt;
    result->checkpoint = evq_arena_printf(result->arena, "%s:%s", job->root, job->path);
    result->trackers = job->trackers;
    result->tracker_count = job->tracker_count;
    return result->checkpoint != NULL;
}

void evq_lease_part_add(struct evq_lease *lease, const struct evq_result *result)
{
    struct evq_result sums = *result;
    struct evq_buffer record;
    struct evq_error err;

    // The merge computes metrics from the sums of all shards, so the metrics of one shard are
    // useless.
    sums.metrics = NULL;
    sums.metric_count = 0;
    evq_buffer_init(&record, 0);
    if (evq_codec_result_encode(&sums, &record, &err) == EVQ_OK) {
        const uint32_t bytes = (uint32_t)record.bytes;
        const uint8_t prefix[4] = {(uint8_t)bytes, (uint8_t)(bytes >> 8), (uint8_t)(bytes >> 16),
                                   (uint8_t)(bytes >> 24)};
        evq_buffer_append(&lease->part, prefix, sizeof(prefix));
        evq_buffer_append(&lease->part, record.data, record.bytes);
    } else {
        lease->part_failed = true;
    }
    lease->part_failed = lease->part_failed || lease->part.failed;
    evq_buffer_free(&record);
}
