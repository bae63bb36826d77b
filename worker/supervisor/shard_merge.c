#include "worker/supervisor/shard_merge.h"

#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "worker/evaluators/native/native.h"

#define SUMS_MAX 256

/* Finds the record of one task in one part; *ret_result NULL: the part has none. */
static enum evq_status part_find(const uint8_t *data, size_t bytes, const char *task,
                                 struct evq_result **ret_result, struct evq_error *err)
{
    *ret_result = NULL;
    while (bytes > 0) {
        if (bytes < 4) {
            return evq_error_set(err, EVQ_E_CORRUPT, "a part ends within a length");
        }
        const size_t record =
            (size_t)data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
        if (record > bytes - 4) {
            return evq_error_set(err, EVQ_E_CORRUPT, "a part ends within a record");
        }
        struct evq_result *result = NULL;
        const enum evq_status status = evq_codec_result_decode(data + 4, record, &result, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (strcmp(result->task, task) == 0) {
            *ret_result = result;
            return EVQ_OK;
        }
        evq_result_free(result);
        data += 4 + record;
        bytes -= 4 + record;
    }
    return EVQ_OK;
}

/* Adds sums by name. `sums` is the array behind into->sums; new names are appended. */
static enum evq_status sums_add(struct evq_result *into, struct evq_sum *sums,
                                const struct evq_result *from, struct evq_error *err)
{
    for (size_t i = 0; i < from->sum_count; i++) {
        const struct evq_sum *add = &from->sums[i];
        size_t at = 0;
        while (at < into->sum_count && strcmp(sums[at].name, add->name) != 0) {
            at++;
        }
        if (at == into->sum_count) {
            char *name = evq_arena_strdup(into->arena, add->name);
            if (name == NULL || into->sum_count == SUMS_MAX) {
                return evq_error_set(err, EVQ_E_NOMEM, "sums of task '%s'", into->task);
            }
            sums[at] = *add;
            sums[at].name = name;
            into->sum_count++;
        } else if (sums[at].is_count != add->is_count) {
            return evq_error_set(err, EVQ_E_CORRUPT,
                                 "task '%s': sum '%s' is a count in one part and not in another",
                                 into->task, add->name);
        } else if (add->is_count) {
            if (__builtin_add_overflow(sums[at].count, add->count, &sums[at].count)) {
                return evq_error_set(err, EVQ_E_CORRUPT, "task '%s': count '%s' overflows",
                                     into->task, add->name);
            }
        } else {
            sums[at].value += add->value;
        }
    }
    return EVQ_OK;
}

static void timing_add(struct evq_timing *into, const struct evq_timing *add)
{
    // Shards load at the same time, so the longest load counts.
    into->load_us = add->load_us > into->load_us ? add->load_us : into->load_us;
    into->compute_us += add->compute_us;
    into->bytes += add->bytes;
    into->samples += add->samples;
    into->tokens += add->tokens;
}

static char *text_copy(struct evq_result *into, const char *text)
{
    return evq_arena_strdup(into->arena, text != NULL ? text : "");
}

static enum evq_status provenance_join(struct evq_result *into, const struct evq_result *part,
                                       bool first, struct evq_error *err)
{
    if (first) {
        into->weights_digest = text_copy(into, part->weights_digest);
        into->data_digest = text_copy(into, part->data_digest);
        into->backend = text_copy(into, part->backend);
        into->device = text_copy(into, part->device);
        into->compute = text_copy(into, part->compute);
        into->note = text_copy(into, part->note);
        if (into->weights_digest == NULL || into->data_digest == NULL || into->backend == NULL ||
            into->device == NULL || into->compute == NULL || into->note == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "task '%s'", into->task);
        }
        return EVQ_OK;
    }
    if (strcmp(into->compute, part->compute) != 0) {
        into->compute = "mixed";
    }
    if (strcmp(into->weights_digest, part->weights_digest) != 0) {
        return evq_error_set(err, EVQ_E_CHANGED, "the shards saw different weights (%s and %s)",
                             into->weights_digest, part->weights_digest);
    }
    if (strcmp(into->data_digest, part->data_digest) != 0) {
        return evq_error_set(err, EVQ_E_CHANGED, "the shards saw different data of task '%s'",
                             into->task);
    }
    return EVQ_OK;
}

static enum evq_status task_merge(const struct evq_task_config *task, const uint8_t *const *parts,
                                  const size_t *part_bytes, size_t part_count,
                                  struct evq_result **ret_result, struct evq_error *err)
{
    struct evq_result *part = NULL;
    enum evq_status status = EVQ_OK;

    struct evq_result *result = evq_result_new();
    struct evq_sum *sums =
        result != NULL ? evq_arena_array(result->arena, SUMS_MAX, sizeof(*sums)) : NULL;
    if (sums == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "task '%s'", task->name);
        goto out;
    }
    result->task = text_copy(result, task->name);
    result->sums = sums;
    for (size_t i = 0; i < part_count && status == EVQ_OK; i++) {
        status = part_find(parts[i], part_bytes[i], task->name, &part, err);
        if (status == EVQ_OK && part == NULL) {
            status = evq_error_set(err, EVQ_E_CORRUPT, "the part of shard %zu has no task '%s'", i,
                                   task->name);
        }
        if (status == EVQ_OK) {
            status = provenance_join(result, part, i == 0, err);
        }
        if (status == EVQ_OK) {
            status = sums_add(result, sums, part, err);
            timing_add(&result->timing, &part->timing);
        }
        evq_result_free(part);
        part = NULL;
    }
    if (status == EVQ_OK) {
        status = evq_native_merge(task, result, err);
    }
    if (status == EVQ_OK) {
        *ret_result = result;
        result = NULL;
    }
out:
    evq_result_free(result);
    return status;
}

enum evq_status evq_shard_merge_parts(const struct evq_suite *suite, const uint8_t *const *parts,
                                      const size_t *part_bytes, size_t part_count,
                                      struct evq_results *ret_results, struct evq_error *err)
{
    struct evq_results results = {.items = calloc(suite->task_count + 1, sizeof(*results.items))};
    enum evq_status status = EVQ_OK;

    if (results.items == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "merge of suite '%s'", suite->name);
    }
    for (size_t i = 0; i < suite->task_count && status == EVQ_OK; i++) {
        status =
            task_merge(&suite->tasks[i], parts, part_bytes, part_count, &results.items[i], err);
        results.count += status == EVQ_OK;
    }
    if (status != EVQ_OK) {
        evq_results_free(&results);
        return status;
    }
    *ret_results = results;
    return EVQ_OK;
}

enum evq_status evq_shard_merge_run(struct evq_queue *queue, const char *id, const char *token,
                                    const struct evq_suite *suite, struct evq_results *ret_results,
                                    struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    const uint8_t **parts = NULL;
    size_t *bytes = NULL;

    enum evq_status status = evq_queue_shard_parts(queue, id, token, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    parts = calloc(reply->item_count + 1, sizeof(*parts));
    bytes = calloc(reply->item_count + 1, sizeof(*bytes));
    if (parts == NULL || bytes == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "merge of '%s'", id);
        goto out;
    }
    for (size_t i = 0; i < reply->item_count; i++) {
        parts[i] = (const uint8_t *)reply->items[i]->text;
        bytes[i] = reply->items[i]->bytes;
    }
    status = evq_shard_merge_parts(suite, parts, bytes, reply->item_count, ret_results, err);
out:
    free(parts);
    free(bytes);
    evq_reply_free(reply);
    return status;
}
