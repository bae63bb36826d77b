/* /v1/jobs...: lists and shows jobs and their logs, cancels and retries them. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/api/body.h"
#include "producer/gateway/api/routes.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "shared/queue/attempt_log.h"

#define PAGE_DEFAULT      100
#define PAGE_MAX          1000
#define EXPLAINED_MAX     100 // Each of these jobs costs a call to Redis.
#define RANK_DIGITS_MAX   15
#define LOOKS_MAX         20 // Calls to Redis for one page: each looks at up to 2,000 jobs.
#define LOG_BYTES_DEFAULT 16384
#define LOG_BYTES_MAX     (1 << 20)
#define RETRY_NAME_BYTES  33
#define RETRY_GIVEN_MAX   40 // The limit of the server-side function.

static const char *const states[] = {"running", "queued",    "delayed", "dead",
                                     "skipped", "cancelled", "done"};
#define STATE_COUNT (sizeof states / sizeof states[0])

/* Makes a job's id of four segments of the path. NULL: they are no id, and the reply says so. */
static const char *job_of(struct evq_http_request *request, struct evq_http_reply *reply)
{
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job_name name;
    struct evq_error err = {EVQ_OK, ""};
    const char *id = evq_arena_printf(request->arena, "%s/%s/%s/%s", request->params[0],
                                      request->params[1], request->params[2], request->params[3]);
    if (id == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for the request");
        return NULL;
    }
    if (evq_job_id_parse(id, scratch, &name, &err) != EVQ_OK) {
        evq_http_reply_fail(reply, EVQ_E_INVALID, &err);
        return NULL;
    }
    return id;
}

/* Parses a view. NULL: the reply says why. */
static json_t *parse_view(char *text, struct evq_http_reply *reply)
{
    json_t *view = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (!json_is_object(view)) {
        evq_http_reply_error(reply, 500, "corrupt", "the queue's answer is not a JSON object");
        json_decref(view);
        return NULL;
    }
    return view;
}

static void dump(struct evq_http_reply *reply, json_t *document)
{
    char *text = evq_json_memory_dumps(document, JSON_COMPACT);
    if (text == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for the reply");
    } else {
        evq_http_reply_take(reply, text);
    }
    json_decref(document);
}

/* Appends one page of a state to jobs. *ret_cursor: where the next page begins; "": the end. */
static enum evq_status list_state(struct evq_api *api, const char *state, const char *run,
                                  uint32_t count, json_t *jobs, char cursor[128],
                                  struct evq_error *err)
{
    char *text = NULL;
    enum evq_status status = evq_queue_jobs(api->queue, state, run, cursor, count, &text, err);
    if (status != EVQ_OK) {
        return status;
    }
    json_t *page = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    const char *next = json_string_value(json_object_get(page, "cursor"));
    if (next == NULL || strlen(next) >= 128 ||
        json_array_extend(jobs, json_object_get(page, "jobs")) != 0) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "the queue's answer is not a page of jobs");
    } else {
        (void)snprintf(cursor, 128, "%s", next);
    }
    json_decref(page);
    return status == EVQ_E_CORRUPT ? EVQ_E_BUG : status;
}

/* Ranks, as the queue gave them: numbers that it can count to, and colons. */
static bool ranks_valid(const char *text)
{
    while (*text != '\0') {
        const size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits > RANK_DIGITS_MAX) {
            return false;
        }
        text += digits;
        text += text[0] == ':' && text[1] != '\0';
    }
    return true;
}

/* Parses a cursor "STATE-CURSOR" of an earlier page: the state and the place in it. */
static bool read_cursor(const char *text, size_t *ret_state, char cursor[128])
{
    const size_t word = strcspn(text, "-");
    for (size_t i = 0; i < STATE_COUNT; i++) {
        if (word == strlen(states[i]) && memcmp(text, states[i], word) == 0) {
            const char *ranks = text + word + (text[word] == '-');
            *ret_state = i;
            (void)snprintf(cursor, 128, "%s", ranks);
            return strlen(ranks) < 128 && ranks_valid(ranks);
        }
    }
    return false;
}

/* Finds where a page begins. False: the reply says what is wrong. */
static bool read_start(const char *only, const char *from, size_t *ret_state, char cursor[128],
                       struct evq_http_reply *reply)
{
    size_t state = 0;
    if (only[0] != '\0' && (strchr(only, '-') != NULL || !read_cursor(only, &state, cursor))) {
        evq_http_reply_error(reply, 400, "invalid",
                             "state is '%.40s', expected queued, delayed, running, done, dead, "
                             "skipped or cancelled",
                             only);
        return false;
    }
    *ret_state = state;
    if (from[0] == '\0') {
        return true;
    }
    if (!read_cursor(from, ret_state, cursor) || (only[0] != '\0' && *ret_state != state)) {
        evq_http_reply_error(reply, 400, "invalid",
                             "the cursor is not one that an earlier page gave");
        return false;
    }
    return true;
}

/* Adds to each job `why` it waits, and in `cause` the first line of the log of its failure. Makes
 * one call to Redis for each job. */
static enum evq_status explain(struct evq_api *api, json_t *jobs, struct evq_error *err)
{
    size_t index = 0;
    json_t *job = NULL;
    json_array_foreach(jobs, index, job)
    {
        char *text = NULL;
        const char *id = json_string_value(json_object_get(job, "id"));
        const char *state = json_string_value(json_object_get(job, "state"));
        if (id == NULL || state == NULL || strcmp(state, "done") == 0 ||
            strcmp(state, "running") == 0) {
            continue;
        }
        const enum evq_status status = evq_queue_show(api->queue, id, &text, err);
        if (status != EVQ_OK && status != EVQ_E_NOT_FOUND && status != EVQ_E_INVALID) {
            return status;
        }
        json_t *view = text != NULL ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
        const char *why = json_string_value(json_object_get(view, "why"));
        const char *detail = json_string_value(json_object_get(view, "detail"));
        if (why != NULL && why[0] != '\0') {
            (void)json_object_set_new(job, "why", json_string(why));
        }
        if (detail != NULL && detail[0] != '\0') {
            (void)json_object_set_new(job, "cause", json_stringn(detail, strcspn(detail, "\n")));
        }
        json_decref(view);
        free(text);
    }
    return EVQ_OK;
}

void evq_api_jobs(struct evq_api *api, struct evq_http_request *request,
                  struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    char cursor[128] = "";
    char next[160] = "";
    int64_t count = PAGE_DEFAULT;
    int64_t explained = 0;
    size_t at = 0;
    const char *run = evq_http_query(request, "run", "");
    const char *only = evq_http_query(request, "state", "");
    const char *from = evq_http_query(request, "cursor", "");

    if ((run[0] != '\0' && !evq_http_run_valid(run, reply)) ||
        !evq_http_query_integer(request, reply, "explain", 0, 1, &explained) ||
        !evq_http_query_integer(request, reply, "count", 1, explained ? EXPLAINED_MAX : PAGE_MAX,
                                &count) ||
        !read_start(only, from, &at, cursor, reply)) {
        return;
    }
    json_t *jobs = json_array();
    enum evq_status status = EVQ_OK;
    int looks = 0;
    for (size_t i = at; status == EVQ_OK && i < STATE_COUNT; i++) {
        do {
            const size_t left = (size_t)count - json_array_size(jobs);
            status = list_state(api, states[i], run, (uint32_t)left, jobs, cursor, &err);
        } while (status == EVQ_OK && cursor[0] != '\0' && ++looks < LOOKS_MAX &&
                 json_array_size(jobs) < (size_t)count);
        const bool full = json_array_size(jobs) >= (size_t)count || cursor[0] != '\0';
        const bool last = only[0] != '\0' || i + 1 == STATE_COUNT;
        if (cursor[0] != '\0') {
            (void)snprintf(next, sizeof next, "%s-%s", states[i], cursor);
        } else if (full && !last) {
            (void)snprintf(next, sizeof next, "%s", states[i + 1]);
        }
        if (full || last) {
            break;
        }
    }
    if (status == EVQ_OK && explained != 0) {
        status = explain(api, jobs, &err);
    }
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        json_decref(jobs);
        return;
    }
    dump(reply, json_pack("{s:s, s:o}", "cursor", next, "jobs", jobs));
}

void evq_api_job(struct evq_api *api, struct evq_http_request *request,
                 struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    char *json = NULL;
    const char *id = job_of(request, reply);
    if (id == NULL) {
        return;
    }
    const enum evq_status status = evq_queue_show(api->queue, id, &json, &err);
    evq_http_reply_answer(reply, status, json, &err);
}

/* Replies with the end of the attempt's log: from the file if it is on this host, otherwise from
 * Redis, where the worker stored it. */
static void write_log(struct evq_api *api, const char *epoch, const char *id, const json_t *view,
                      int64_t attempt, size_t bytes_max, struct evq_http_reply *reply)
{
    const char *scratch = api->config->worker.scratch;
    char path[PATH_MAX];
    size_t bytes = 0;
    const json_t *job = json_object_get(view, "job");
    const char *attempts = json_string_value(json_object_get(job, "attempts"));
    const char *detail = json_string_value(json_object_get(view, "detail"));
    const int64_t last = attempts != NULL ? strtoll(attempts, NULL, 10) : 0;
    const int64_t which = attempt > 0 ? attempt : last;
    char *text = evq_attempt_log_path(scratch, epoch, id, which, path, sizeof path)
                     ? evq_attempt_log_tail(path, bytes_max, &bytes)
                     : NULL;
    if (text == NULL && which == last && detail != NULL) {
        text = strdup(detail);
        bytes = text != NULL ? strlen(text) : 0;
    }
    evq_buffer_text(&reply->body, "{\"id\": ");
    evq_buffer_json_text(&reply->body, id);
    evq_buffer_printf(&reply->body, ", \"attempt\": %" PRId64 ", \"log\": ", which);
    evq_buffer_json(&reply->body, text != NULL ? text : "", bytes); // The bytes need not be text.
    evq_buffer_text(&reply->body, "}\n");
    free(text);
}

void evq_api_job_log(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_queue_info info;
    char *json = NULL;
    int64_t attempt = 0;
    int64_t bytes_max = LOG_BYTES_DEFAULT;
    const char *id = job_of(request, reply);
    if (id == NULL || !evq_http_query_integer(request, reply, "attempt", 1, 1000000, &attempt) ||
        !evq_http_query_integer(request, reply, "bytes", 1, LOG_BYTES_MAX, &bytes_max)) {
        return;
    }
    enum evq_status status = evq_queue_info(api->queue, &info, &err);
    if (status == EVQ_OK) {
        status = evq_queue_show(api->queue, id, &json, &err);
    }
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    json_t *view = parse_view(json, reply);
    if (view != NULL) {
        write_log(api, info.epoch, id, view, attempt, (size_t)bytes_max, reply);
        json_decref(view);
    }
}

static void write_state(struct evq_http_reply *reply, const char *id, const char *state)
{
    evq_buffer_text(&reply->body, "{\"id\": ");
    evq_buffer_json_text(&reply->body, id);
    evq_buffer_printf(&reply->body, ", \"state\": \"%s\"}\n", state);
}

void evq_api_job_cancel(struct evq_api *api, struct evq_http_request *request,
                        struct evq_http_reply *reply)
{
    static const char *const known[] = {"reason", NULL};
    struct evq_error err = {EVQ_OK, ""};
    struct evq_body body;
    enum evq_job_state state = EVQ_JOB_CANCELLED;
    const char *id = job_of(request, reply);
    if (id == NULL || !evq_body_open(&body, request, reply, known)) {
        return;
    }
    const char *reason = evq_body_text(&body, "reason", "");
    if (!body.failed) {
        const enum evq_status status = evq_queue_cancel(api->queue, id, reason, &state, &err);
        if (status == EVQ_OK) {
            write_state(reply, id, evq_job_state_name(state));
        } else {
            evq_http_reply_fail(reply, status, &err);
        }
    }
    evq_body_close(&body);
}

/* Returns the name of the retry: that of the body, with which the client can repeat its request, or
 * one that stays the same while the handler is called again. NULL: the reply says why. */
static const char *retry_name(struct evq_http_request *request, struct evq_http_reply *reply,
                              struct evq_body *body)
{
    const char *given = evq_body_text(body, "request", "");
    const size_t bytes = strlen(given);
    for (size_t i = 0; i < bytes && !body->failed; i++) {
        if (bytes > RETRY_GIVEN_MAX || given[i] <= ' ' || given[i] > '~') {
            evq_body_fail(body,
                          "'request' is not a name of at most %d printable bytes without blanks",
                          RETRY_GIVEN_MAX);
        }
    }
    if (body->failed || bytes > 0) {
        return body->failed ? NULL : given;
    }
    char *name = evq_http_memory(request, RETRY_NAME_BYTES);
    if (name == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for the request");
    } else if (name[0] == '\0') {
        (void)snprintf(name, RETRY_NAME_BYTES, "%016" PRIx64 "%016" PRIx64, evq_clock_random(),
                       evq_clock_random());
    }
    return name;
}

void evq_api_job_retry(struct evq_api *api, struct evq_http_request *request,
                       struct evq_http_reply *reply)
{
    static const char *const known[] = {"request", NULL};
    struct evq_error err = {EVQ_OK, ""};
    struct evq_body body;
    char again[EVQ_JOB_ID_BYTES_MAX];
    const char *id = job_of(request, reply);
    if (id == NULL || !evq_body_open(&body, request, reply, known)) {
        return;
    }
    const char *name = retry_name(request, reply, &body);
    if (name != NULL) {
        const enum evq_status status = evq_queue_retry(api->queue, id, name, again, &err);
        if (status == EVQ_OK) {
            write_state(reply, again, "queued");
        } else {
            evq_http_reply_fail(reply, status == EVQ_E_INVALID ? EVQ_E_CONFLICT : status, &err);
        }
    }
    evq_body_close(&body);
}
