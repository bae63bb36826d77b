/*
 * The endpoints of LMMS-Eval's server, backed by the queue (docs/lmms.md). Answers, status words
 * and error bodies are those of that server. Unlike it, this one forgets no job, runs several at a
 * time and never reports results of an older job.
 */
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/api/routes.h"
#include "producer/gateway/lmms/lmms_job.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"

#define MERGE_LOOK_MS     250
#define MERGE_PATIENCE_MS 10000 // How long to wait for a worker that offers the suite.
#define AWAY_LOOK_MS      500
#define AWAY_POLL_MS                                                                               \
    60000 // LMMs-Engine forgets a job after one failed poll, so a poll waits for Redis.
#define AWAY_SUBMIT_MS 10000 // The training waits during this time.

static void reply_json(struct evq_http_reply *reply, int code, json_t *document)
{
    char *text = evq_json_memory_dumps(document, 0);

    json_decref(document);
    if (text == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for an answer");
        return;
    }
    reply->code = code;
    evq_http_reply_take(reply, text);
}

/* Refuses a request that is not valid: 422 with a list of errors. */
static void reply_fault(struct evq_http_reply *reply, enum evq_status status, json_t *fault)
{
    if (status == EVQ_E_INVALID) {
        reply_json(reply, 422, fault);
    } else {
        evq_http_reply_error(reply, 500, "nomem", "no memory for a request");
    }
}

static void reply_not_found(struct evq_http_reply *reply, const char *id)
{
    evq_http_reply_error(reply, 404, "not_found", "Job %.200s not found", id);
}

/* A missing root is an error of the request (400). Errors of the queue are not. */
static void reply_refused(struct evq_http_reply *reply, enum evq_status status,
                          const struct evq_error *err)
{
    if (status == EVQ_E_NOT_FOUND) {
        evq_http_reply_error(reply, 400, "no_root", "%s", err->message);
    } else {
        evq_http_reply_fail(reply, status, err);
    }
}

/* Answers later if Redis does not answer, because these clients give up after the first error and
 * set no time limit. false: another error, or Redis was away for longer than patience_ms. */
static bool answer_later(int64_t since_ms, enum evq_status status, int64_t patience_ms,
                         struct evq_http_reply *reply)
{
    if (!evq_conn_retryable(status) || evq_clock_mono_ms() - since_ms > patience_ms) {
        return false;
    }
    reply->again_ms = AWAY_LOOK_MS;
    return true;
}

/* The open tickets; free() them. NULL: the reply says why there are none. */
static struct evq_tickets *tickets_read(struct evq_api *api, struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_tickets *tickets = malloc(sizeof *tickets);
    const enum evq_status status = tickets == NULL ? evq_error_set(&err, EVQ_E_NOMEM, "no memory")
                                                   : evq_queue_tickets(api->queue, tickets, &err);
    if (status != EVQ_OK) {
        free(tickets);
        evq_http_reply_fail(reply, status, &err);
        return NULL;
    }
    return tickets;
}

/* How many of the open tickets wait for a worker. */
static json_int_t waiting_count(const struct evq_tickets *tickets)
{
    json_int_t waiting = tickets->open;

    for (size_t i = 0; i < tickets->count; i++) {
        waiting -= tickets->list[i].running ? 1 : 0;
    }
    return waiting;
}

void evq_lmms_health(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    char now[EVQ_LMMS_TIME_BYTES];
    struct evq_tickets *tickets = tickets_read(api, reply);

    (void)request;
    if (tickets != NULL) {
        evq_lmms_format_time(evq_clock_unix_ms(), now);
        reply_json(reply, 200,
                   json_pack("{s:s, s:s, s:I}", "status", "healthy", "timestamp", now, "queue_size",
                             waiting_count(tickets)));
    }
    free(tickets);
}

void evq_lmms_queue(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    struct evq_tickets *tickets = tickets_read(api, reply);

    (void)request;
    if (tickets == NULL) {
        return;
    }
    json_t *queued = json_array();
    // The server's own field `running_job` has room for one name. Here several jobs may run.
    json_t *running = json_array();
    for (size_t i = 0; i < tickets->count; i++) {
        (void)json_array_append_new(tickets->list[i].running ? running : queued,
                                    json_string(tickets->list[i].name));
    }
    reply_json(reply, 200,
               json_pack("{s:I, s:s?, s:o, s:I, s:I, s:o}", "queue_size", waiting_count(tickets),
                         "running_job", json_string_value(json_array_get(running, 0)),
                         "queued_jobs", queued, "completed_jobs", (json_int_t)tickets->done,
                         "failed_jobs", (json_int_t)tickets->dead, "running_jobs", running));
    free(tickets);
}

void evq_lmms_evaluate(struct evq_api *api, struct evq_http_request *request,
                       struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_lmms_request *asked = NULL;
    json_t *fault = NULL;

    struct evq_lmms_sent *sent = evq_http_memory(request, sizeof *sent);
    enum evq_status status =
        sent == NULL ? EVQ_E_NOMEM
                     : evq_lmms_request_read(request->body, request->body_len, &asked, &fault);
    if (status != EVQ_OK) {
        reply_fault(reply, status, fault);
        return;
    }
    status = evq_lmms_submit(api->config, api->queue, api->pins, asked, sent, &err);
    evq_lmms_request_free(asked);
    if (answer_later(request->started_ms, status, AWAY_SUBMIT_MS, reply)) {
        return;
    }
    if (status != EVQ_OK) {
        reply_refused(reply, status, &err);
        return;
    }
    reply_json(reply, 200,
               json_pack("{s:s, s:s, s:I, s:o}", "job_id", sent->id, "status", "queued",
                         "position_in_queue", (json_int_t)sent->position, "message",
                         json_sprintf("Job queued successfully. Position in queue: %lld",
                                      (long long)sent->position)));
}

void evq_lmms_job(struct evq_api *api, struct evq_http_request *request,
                  struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_ticket *ticket = NULL;
    const char *id = request->params[0];

    const enum evq_status status = strlen(id) == EVQ_LMMS_ID_BYTES - 1
                                       ? evq_queue_ticket(api->queue, id, &ticket, &err)
                                       : EVQ_E_NOT_FOUND;
    if (status == EVQ_E_NOT_FOUND || (status == EVQ_OK && ticket->state == EVQ_TICKET_GONE)) {
        reply_not_found(reply, id);
    } else if (answer_later(request->started_ms, status, AWAY_POLL_MS, reply)) {
        // The ticket is asked for again.
    } else if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
    } else {
        reply_json(reply, 200, evq_lmms_info(id, ticket));
    }
    evq_ticket_free(ticket);
}

void evq_lmms_cancel(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    enum evq_ticket_state state = EVQ_TICKET_GONE;
    const char *id = request->params[0];
    bool done = false;

    bool *lost = evq_http_memory(
        request,
        sizeof *lost); // An earlier attempt of this request was sent, but its answer was lost.
    const enum evq_status status =
        strlen(id) == EVQ_LMMS_ID_BYTES - 1
            ? evq_queue_ticket_cancel(api->queue, id, api->config->gateway.lmms.cancel_running,
                                      "cancelled by its client", &done, &state, &err)
            : EVQ_E_NOT_FOUND;
    // A cancelled job is then the work of this request.
    done = done || (lost != NULL && *lost && status == EVQ_OK && state == EVQ_TICKET_CANCELLED);
    if (lost != NULL) {
        *lost = status == EVQ_E_IO;
    }
    if (status == EVQ_E_NOT_FOUND || (status == EVQ_OK && state == EVQ_TICKET_GONE)) {
        reply_not_found(reply, id);
    } else if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
    } else if (done) {
        reply_json(reply, 200, json_pack("{s:o}", "message", json_sprintf("Job %s cancelled", id)));
    } else if (state == EVQ_TICKET_RUNNING) {
        evq_http_reply_error(reply, 400, "running", "Cannot cancel a running job");
    } else {
        evq_http_reply_error(reply, 400, "ended", "Job already finished or cancelled");
    }
}

/* Replies with one list of the catalogue. The original server never answers with an error here
 * either. */
static void reply_catalog(struct evq_api *api, const char *name, struct evq_http_reply *reply)
{
    const char *file = api->config->gateway.lmms.catalog;
    json_error_t problem = {.text = ""};
    json_t *list = NULL;

    json_t *catalog = file[0] != '\0' ? json_load_file(file, 0, &problem) : NULL;
    list = json_object_get(catalog, name);
    if (json_is_array(list)) {
        reply_json(reply, 200, json_pack("{s:O}", name, list));
    } else if (file[0] == '\0') {
        reply_json(reply, 200,
                   json_pack("{s:[], s:s}", name, "error",
                             "no catalogue: gateway.lmms.catalog names no file"));
    } else {
        reply_json(reply, 200,
                   json_pack("{s:[], s:o}", name, "error",
                             json_sprintf("the catalogue '%s': %s", file,
                                          catalog != NULL ? "it has no such list" : problem.text)));
    }
    json_decref(catalog);
}

void evq_lmms_tasks(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    (void)request;
    reply_catalog(api, "tasks", reply);
}

void evq_lmms_models(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    (void)request;
    reply_catalog(api, "models", reply);
}

struct merging { // State of one POST /merge request. The request stays open until its job ends.
    struct evq_lmms_merging job;
    int64_t sent_ms; // When it was submitted, monotonic. 0: not yet.
    int64_t seen_ms; // When Redis last answered.
};

static void merge_begin(struct evq_api *api, struct evq_http_request *request,
                        struct merging *merging, struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_lmms_merge asked;
    json_t *fault = NULL;

    enum evq_status status = evq_lmms_merge_read(request->body, request->body_len, &asked, &fault);
    if (status != EVQ_OK) {
        evq_lmms_merge_free(&asked);
        reply_fault(reply, status, fault);
        return;
    }
    status = evq_lmms_submit_merge(api->config, api->queue, api->pins, &asked, &merging->job, &err);
    evq_lmms_merge_free(&asked);
    if (answer_later(request->started_ms, status, AWAY_SUBMIT_MS, reply)) {
        return;
    }
    if (status == EVQ_E_GONE) {
        evq_http_reply_error(reply, 404, "gone", "%s", err.message);
    } else if (status != EVQ_OK) {
        reply_refused(reply, status, &err);
    } else {
        merging->sent_ms = merging->seen_ms = evq_clock_mono_ms();
        reply->again_ms = MERGE_LOOK_MS;
    }
}

/* Whether the job waits because no worker offers its suite. */
static bool merge_is_hopeless(struct evq_api *api, const struct merging *merging,
                              const struct evq_ticket *ticket, char *why, size_t why_bytes)
{
    char *text = NULL;

    if (ticket->state != EVQ_TICKET_QUEUED ||
        evq_clock_mono_ms() - merging->sent_ms < MERGE_PATIENCE_MS ||
        evq_queue_show(api->queue, ticket->job, &text, NULL) != EVQ_OK) {
        return false;
    }
    json_t *view = json_loads(text, 0, NULL);
    const char *said = json_string_value(json_object_get(view, "why"));
    const bool hopeless = said != NULL && strncmp(said, "no worker offers", 16) == 0;
    (void)snprintf(why, why_bytes, "%s", hopeless ? said : "");
    json_decref(view);
    free(text);
    return hopeless;
}

static void merge_continue(struct evq_api *api, struct merging *merging,
                           struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    enum evq_ticket_state state;
    struct evq_ticket *ticket = NULL;
    char why[256];
    bool done = false;

    const enum evq_status status = evq_queue_ticket(api->queue, merging->job.id, &ticket, &err);
    if (answer_later(merging->seen_ms, status, AWAY_POLL_MS, reply)) {
        return;
    }
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    merging->seen_ms = evq_clock_mono_ms();
    if (merge_is_hopeless(api, merging, ticket, why, sizeof why)) {
        evq_http_reply_error(reply, 500, "no_worker", "lmms_engine not available: %s", why);
        if (evq_queue_ticket_cancel(api->queue, merging->job.id, true, "nobody can merge", &done,
                                    &state, &err) != EVQ_OK) {
            reply->status = err.status; // The job stays in the queue. The log says why.
        }
    } else if (ticket->state == EVQ_TICKET_DONE) {
        reply_json(reply, 200,
                   json_pack("{s:b, s:s, s:s}", "success", 1, "message",
                             "Checkpoint merged successfully", "merged_path", merging->job.output));
    } else if (ticket->state == EVQ_TICKET_QUEUED || ticket->state == EVQ_TICKET_RUNNING) {
        reply->again_ms = MERGE_LOOK_MS;
    } else {
        evq_http_reply_error(reply, 500, "merge_failed", "Merge failed: %s",
                             ticket->detail[0] != '\0' ? ticket->detail : ticket->reason);
    }
    evq_ticket_free(ticket);
}

void evq_lmms_merge(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    struct merging *merging = evq_http_memory(request, sizeof *merging);

    if (merging == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for a request");
    } else if (merging->sent_ms == 0) {
        merge_begin(api, request, merging, reply);
    } else {
        merge_continue(api, merging, reply);
    }
}
