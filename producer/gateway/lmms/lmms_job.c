#include "producer/gateway/lmms/lmms_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "producer/gateway/lmms/lmms_result.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "shared/base/log.h"

/* Returns the settings that distinguish evaluations of one checkpoint, as text; free() it. NULL:
 * out of memory. */
static char *settings_text(const struct evq_lmms_request *request)
{
    static const char *const names[] = {"model", "tasks",      "num_fewshot", "device",
                                        "limit", "gen_kwargs", "log_samples", "predict_only"};
    json_t *all =
        json_pack("{s:O, s:O}", "batch_size", request->batch, "model_args", request->args);
    for (size_t i = 0; all != NULL && i < sizeof names / sizeof names[0]; i++) {
        (void)json_object_set(all, names[i], json_object_get(request->echo, names[i]));
    }
    if (all != NULL && request->path[0] == '/' && request->key[0] != '\0') {
        json_t *args = json_copy(request->args);
        (void)json_object_set_new(args, request->key, json_string("CHECKPOINT"));
        (void)json_object_set_new(all, "model_args", args);
    }
    char *text = evq_json_memory_dumps(all, JSON_SORT_KEYS | JSON_COMPACT);
    json_decref(all);
    return text;
}

static void uuid_make(char out[EVQ_LMMS_ID_BYTES])
{
    const uint64_t high = (evq_clock_random() & ~UINT64_C(0xf000)) | UINT64_C(0x4000);
    const uint64_t low =
        (evq_clock_random() & ~(UINT64_C(3) << 62)) | (UINT64_C(1) << 63); // Version 4, RFC 9562.

    (void)snprintf(out, EVQ_LMMS_ID_BYTES, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32),
                   (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xffff),
                   (unsigned)(low >> 48), (unsigned long long)(low & UINT64_C(0xffffffffffff)));
}

/* Makes the job's parameter `lmms`: what the evaluator must do, as JSON. */
static json_t *params_json(const struct evq_lmms_request *request,
                           const struct evq_lmms_paths *place, const char *directory,
                           const char *suffix)
{
    json_t *params = json_copy(request->echo);

    (void)json_object_set(params, "model_args", request->args);
    (void)json_object_set(params, "batch_size", request->batch);
    (void)json_object_set_new(params, "num_gpus", json_integer(request->gpus));
    (void)json_object_set_new(params, "checkpoint", json_string(place->hub ? "" : request->path));
    (void)json_object_set_new(params, "checkpoint_key", json_string(request->key));
    (void)json_object_set_new(params, "output", json_string(directory));
    (void)json_object_set_new(params, "suffix", json_string(suffix));
    return params;
}

/* Makes the message of one job with the parameter name = text. NULL: out of memory. */
static struct evq_job *job_make(const struct evq_lmms_paths *place, const char *suite,
                                const char *variant, const char *name, const char *text)
{
    char host[256] = "";
    struct evq_job *job = evq_job_new();
    struct evq_pair *pair = job != NULL ? evq_arena_array(job->arena, 1, sizeof *pair) : NULL;

    if (pair == NULL) {
        evq_job_free(job);
        return NULL;
    }
    if (gethostname(host, sizeof host - 1) != 0) {
        host[0] = '\0'; // The name is only for people to read.
    }
    pair->key = name;
    pair->value = evq_arena_strdup(job->arena, text);
    job->run = evq_arena_strdup(job->arena, place->run);
    job->variant = evq_arena_strdup(job->arena, variant);
    job->suite = evq_arena_strdup(job->arena, suite);
    job->root = evq_arena_strdup(job->arena, place->root);
    job->path = evq_arena_strdup(job->arena, place->path);
    job->fingerprint = evq_arena_strdup(job->arena, place->fingerprint);
    job->host = evq_arena_strdup(job->arena, host);
    job->step = place->step;
    job->created_ms = evq_clock_unix_ms();
    job->keep = true; // The client wants exactly this step.
    job->params = pair;
    job->param_count = 1;
    if (pair->value == NULL || job->run == NULL || job->variant == NULL || job->suite == NULL ||
        job->root == NULL || job->path == NULL || job->fingerprint == NULL || job->host == NULL) {
        evq_job_free(job);
        return NULL;
    }
    return job;
}

/* Queues a job again that ended without results, because the client submitted it again. */
static enum evq_status job_submit(struct evq_queue *queue, const struct evq_job *job,
                                  struct evq_submitted *submitted, struct evq_error *err)
{
    char again[EVQ_JOB_ID_BYTES_MAX];

    enum evq_status status = evq_job_check(job, err);
    if (status == EVQ_OK) {
        status = evq_queue_submit(queue, job, 0, submitted, err);
    }
    if (status != EVQ_OK || submitted->answer != EVQ_SUBMIT_DUPLICATE ||
        (submitted->state != EVQ_JOB_DEAD && submitted->state != EVQ_JOB_SKIPPED &&
         submitted->state != EVQ_JOB_CANCELLED)) {
        return status;
    }
    status = evq_queue_retry(queue, submitted->id, "", again, err);
    if (status == EVQ_OK) {
        memcpy(submitted->id, again, sizeof again);
        submitted->state = EVQ_JOB_QUEUED;
    }
    // Otherwise another request already queued it.
    return status == EVQ_E_CONFLICT || status == EVQ_E_NOT_FOUND ? EVQ_OK : status;
}

/* Pins the checkpoint if possible and submits the job. */
static enum evq_status job_send(struct evq_queue *queue, struct evq_pins *pins, struct evq_job *job,
                                char ret_id[EVQ_JOB_ID_BYTES_MAX], struct evq_error *err)
{
    struct evq_submitted submitted;
    struct evq_error why = {EVQ_OK, ""};
    char directory[PATH_MAX];

    if (evq_pins_make(pins, job, directory, &why) != EVQ_OK) {
        evq_log(EVQ_LOG_WARN, "unpinned", "run=%s step=%lld error=%s", job->run,
                (long long)job->step, why.message);
    }
    const enum evq_status status = job_submit(queue, job, &submitted, err);
    if (directory[0] != '\0') {
        evq_pins_record(pins, queue, job, directory, status == EVQ_OK ? &submitted : NULL);
    }
    if (status == EVQ_OK) {
        (void)snprintf(ret_id, EVQ_JOB_ID_BYTES_MAX, "%s", submitted.id);
    }
    return status;
}

struct sending { // One request on its way into the queue.
    const struct evq_config *config;
    struct evq_queue *queue;
    struct evq_pins *pins;
    const struct evq_lmms_request *request;
    struct evq_lmms_paths place;
    char directory[PATH_MAX];
    char jobs[2][EVQ_JOB_ID_BYTES_MAX];
};

static enum evq_status variant_send(struct sending *s, const char *variant, const char *suffix,
                                    char ret_id[EVQ_JOB_ID_BYTES_MAX], struct evq_error *err)
{
    char directory[PATH_MAX];
    char needs[32];
    const char *suite =
        s->place.merge ? s->config->gateway.lmms.merged_suite : s->config->gateway.lmms.suite;

    (void)snprintf(directory, sizeof directory, "%.*s/%s%s", PATH_MAX - 2 * EVQ_LMMS_NAME_BYTES,
                   s->directory, s->request->model_dir, suffix);
    json_t *params = params_json(s->request, &s->place, directory, suffix);
    char *text = evq_json_memory_dumps(params, JSON_COMPACT);
    struct evq_job *job = text != NULL ? job_make(&s->place, suite, variant, "lmms", text) : NULL;
    enum evq_status status =
        job != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "no memory for a job");
    // For one process, the suite's own needs apply.
    if (status == EVQ_OK && s->request->gpus > 1 && s->config->gateway.lmms.gpus_as_needs) {
        (void)snprintf(needs, sizeof needs, "gpus=%d", (int)s->request->gpus);
        job->needs_given = true;
        status = evq_needs_parse(needs, job->arena, &job->needs, err);
    }
    if (status == EVQ_OK) {
        status = job_send(s->queue, s->place.hub ? NULL : s->pins, job, ret_id, err);
    }
    evq_job_free(job);
    free(text);
    json_decref(params);
    return status;
}

static const char *other_of(const char *variant)
{
    return strcmp(variant, "ema") == 0 ? "regular" : "ema";
}

static enum evq_status ticket_put(struct sending *s, const char *other, struct evq_lmms_sent *sent,
                                  struct evq_error *err)
{
    json_t *record = json_pack("{s:O, s:s, s:s, s:s, s:s}", "request", s->request->echo, "output",
                               s->directory, "model_dir", s->request->model_dir, "variant",
                               s->request->variant, "other", other);
    char *text = evq_json_memory_dumps(record, JSON_COMPACT);
    enum evq_status status =
        text == NULL ? evq_error_set(err, EVQ_E_NOMEM, "no memory for a ticket") : EVQ_OK;
    if (status == EVQ_OK) {
        if (sent->id[0] == '\0') {
            uuid_make(sent->id);
        }
        status = evq_queue_ticket_put(s->queue, sent->id, s->jobs[0], s->jobs[1], text,
                                      strlen(text), &sent->position, err);
    }
    free(text);
    json_decref(record);
    return status;
}

enum evq_status evq_lmms_submit(const struct evq_config *config, struct evq_queue *queue,
                                struct evq_pins *pins, const struct evq_lmms_request *request,
                                struct evq_lmms_sent *sent, struct evq_error *err)
{
    struct sending s = {.config = config, .queue = queue, .pins = pins, .request = request};
    const char *results = config->gateway.lmms.results;
    char suffix[EVQ_JOB_NAME_BYTES_MAX + 3];

    char *settings = settings_text(request);
    enum evq_status status =
        settings != NULL ? evq_lmms_paths_find(config, results, request, settings, &s.place, err)
                         : evq_error_set(err, EVQ_E_NOMEM, "no memory for a request");
    if (status == EVQ_OK) {
        status = evq_lmms_paths_output(config, results, &s.place, request->output_dir, "",
                                       s.directory, err);
    }
    if (status == EVQ_OK) {
        status = variant_send(&s, request->variant, "", s.jobs[0], err);
    }
    const bool both = s.place.both && s.place.merge && config->gateway.lmms.both_variants;
    if (status == EVQ_OK && both) {
        (void)snprintf(suffix, sizeof suffix, "__%s", other_of(request->variant));
        status = variant_send(&s, other_of(request->variant), suffix, s.jobs[1], err);
    }
    if (status == EVQ_OK) {
        status = ticket_put(&s, both ? other_of(request->variant) : "", sent, err);
    }
    free(settings);
    return status;
}

enum evq_status evq_lmms_submit_merge(const struct evq_config *config, struct evq_queue *queue,
                                      struct evq_pins *pins, const struct evq_lmms_merge *merge,
                                      struct evq_lmms_merging *merging, struct evq_error *err)
{
    struct evq_lmms_paths place;
    char job_id[EVQ_JOB_ID_BYTES_MAX];
    int64_t position = 0;
    char *text = NULL;

    enum evq_status status = evq_lmms_paths_merge(config, merge->path, merge->variant, &place, err);
    if (status == EVQ_OK) {
        status = evq_lmms_paths_output(config, config->gateway.lmms.results, &place,
                                       merge->output_path, merge->variant, merging->output, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (merging->id[0] == '\0') {
        uuid_make(merging->id);
    }
    // Each merge is a new job, because the files of an earlier one may have been removed.
    (void)snprintf(place.run, sizeof place.run, EVQ_JOB_RUN_INTERNAL "merge-%s", merging->id);
    json_t *record = json_pack("{s:s}", "output", merging->output);
    text = evq_json_memory_dumps(record, JSON_COMPACT);
    json_decref(record);
    struct evq_job *job = text != NULL ? job_make(&place, config->gateway.lmms.merge_suite,
                                                  merge->variant, "lmms_merge", text)
                                       : NULL;
    status = job != NULL ? job_send(queue, pins, job, job_id, err)
                         : evq_error_set(err, EVQ_E_NOMEM, "no memory for a job");
    if (status == EVQ_OK) {
        status = evq_queue_ticket_put(queue, merging->id, job_id, "", text, strlen(text), &position,
                                      err);
    }
    evq_job_free(job);
    free(text);
    return status;
}

/* Whether it was skipped because of its checkpoint, not because a newer step replaced it. */
static bool skipped_for_cause(const struct evq_ticket *ticket)
{
    return ticket->state == EVQ_TICKET_SKIPPED && strncmp(ticket->reason, "superseded", 10) != 0;
}

const char *evq_lmms_status(const struct evq_ticket *ticket)
{
    switch (ticket->state) {
    case EVQ_TICKET_QUEUED:
        return "queued";
    case EVQ_TICKET_RUNNING:
        return "running";
    case EVQ_TICKET_DONE:
        return "completed";
    case EVQ_TICKET_SKIPPED:
        return skipped_for_cause(ticket) ? "failed" : "cancelled";
    case EVQ_TICKET_CANCELLED:
        return "cancelled";
    case EVQ_TICKET_DEAD:
    case EVQ_TICKET_GONE:
        break;
    }
    return "failed";
}

/* Returns why it failed, in the words of LMMS-Eval's server, in the ticket's arena. NULL: out of
 * memory. */
static const char *failure_of(const struct evq_ticket *ticket)
{
    if (ticket->state == EVQ_TICKET_GONE) {
        return "Evaluation failed: its record was removed from the queue";
    }
    return evq_arena_printf(ticket->arena, "Evaluation failed: %s",
                            ticket->detail[0] != '\0' ? ticket->detail : ticket->reason);
}

void evq_lmms_format_time(int64_t unix_ms, char out[EVQ_LMMS_TIME_BYTES])
{
    char seconds_text[24] = "";
    struct tm parts;
    const time_t seconds = (time_t)(unix_ms / 1000);

    if (localtime_r(&seconds, &parts) == NULL ||
        strftime(seconds_text, sizeof seconds_text, "%Y-%m-%dT%H:%M:%S", &parts) == 0) {
        seconds_text[0] = '\0'; // The date cannot express this year.
    }
    (void)snprintf(out, EVQ_LMMS_TIME_BYTES, "%s.%06d", seconds_text, (int)(unix_ms % 1000) * 1000);
}

static json_t *time_json(int64_t unix_ms)
{
    char text[EVQ_LMMS_TIME_BYTES];

    if (unix_ms < 0) {
        return json_null();
    }
    evq_lmms_format_time(unix_ms, text);
    return json_string(text);
}

/* {MODEL: {...}}, and {MODEL__VARIANT: {...}} of the other variant, where there are results of it.
 */
static json_t *results_json(const struct evq_ticket *ticket, const json_t *record)
{
    char directory[PATH_MAX];
    char suffix[EVQ_JOB_NAME_BYTES_MAX + 3] = "";
    char name[2 * EVQ_LMMS_NAME_BYTES];
    json_t *all = json_object();

    for (int i = 0; i < (ticket->other[0] != '\0' ? 2 : 1); i++) {
        const bool other = i == 1;
        const size_t count =
            other ? ticket->result_count - ticket->job_results : ticket->job_results;
        if (other) {
            (void)snprintf(suffix, sizeof suffix, "__%.32s", evq_lmms_member_text(record, "other"));
        }
        (void)snprintf(name, sizeof name, "%.255s%s", evq_lmms_member_text(record, "model_dir"),
                       suffix);
        (void)snprintf(directory, sizeof directory, "%.*s/%s", PATH_MAX - (int)sizeof name - 2,
                       evq_lmms_member_text(record, "output"), name);
        const struct evq_lmms_output output = {
            .directory = directory,
            .job = other ? ticket->other : ticket->job,
            .variant = evq_lmms_member_text(record, other ? "other" : "variant"),
            .suffix = suffix,
            .model = evq_lmms_member_text(json_object_get(record, "request"), "model")};
        if (other && !ticket->other_done) {
            json_t *first = json_object_iter_value(json_object_iter(all));
            (void)json_object_set_new(first, "note",
                                      json_sprintf("the weights of variant %s: %s", output.variant,
                                                   ticket->other_reason));
            continue;
        }
        (void)json_object_set_new(
            all, name,
            evq_lmms_result(&output, ticket->results + (other ? ticket->job_results : 0), count));
    }
    return all;
}

/* Returns a time that is not before the request: an idle worker may begin before the ticket is
 * stored, and a repeated request may find a job that has ended. */
static int64_t not_before(int64_t created_ms, int64_t time_ms)
{
    return time_ms > 0 && time_ms < created_ms ? created_ms : time_ms;
}

json_t *evq_lmms_info(const char *id, const struct evq_ticket *ticket)
{
    const int64_t started_ms = not_before(ticket->created_ms, ticket->started_ms);
    const int64_t ended_ms = not_before(ticket->created_ms, ticket->ended_ms);
    const char *status = evq_lmms_status(ticket);
    const bool failed = strcmp(status, "failed") == 0;
    const char *failure = failed ? failure_of(ticket) : NULL;
    json_t *record = json_loads(ticket->request, 0, NULL);
    json_t *request = json_object_get(record, "request");

    json_t *info = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:O, s:o, s:o, s:o}", "job_id", id, "status", status,
        "created_at", time_json(ticket->created_ms), "started_at", time_json(started_ms),
        "completed_at", time_json(ended_ms), "request", request != NULL ? request : record,
        "result", ticket->state == EVQ_TICKET_DONE ? results_json(ticket, record) : json_null(),
        "error", failure != NULL ? json_string(failure) : json_null(), "position_in_queue",
        ticket->position >= 0 ? json_integer(ticket->position) : json_null());
    json_decref(record);
    return info;
}
