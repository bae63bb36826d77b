#include "producer/cli/view.h"

#include <stdio.h>
#include <string.h>

enum evq_status evq_view_stats(struct evq_cli *cli, json_t **ret, struct evq_error *err)
{
    char *text = NULL;
    enum evq_status status = evq_queue_stats(cli->queue, &text, err);
    return status == EVQ_OK ? evq_json_take(text, ret, err) : status;
}

enum evq_status evq_view_job(struct evq_cli *cli, const char *id, json_t **ret,
                             struct evq_error *err)
{
    char *text = NULL;
    enum evq_status status = evq_queue_show(cli->queue, id, &text, err);
    return status == EVQ_OK ? evq_json_take(text, ret, err) : status;
}

const json_t *evq_view_fields(const json_t *job)
{
    const json_t *hash = json_object_get(job, "job");
    return json_is_object(hash) ? hash : job;
}

/* Whether a worker gave this reason and the queue may have cut it. The queue keeps 64 bytes, and
 * fewer if the cut falls into a character. */
static bool reason_may_be_cut(const char *reason)
{
    return strlen(reason) > 60 && strncmp(reason, "lost: ", 6) != 0;
}

char *evq_view_cause(const json_t *job, char *out, size_t out_bytes)
{
    const json_t *hash = evq_view_fields(job);
    const char *reason = evq_json_text(hash, "reason", "");
    const char *detail = evq_json_text(job, "detail", "");
    const size_t whole = strcspn(detail, "\n"); // The worker begins the detail with the reason.
    // Whoever cancelled the job gave that reason. The detail is of an earlier attempt.
    const bool cancelled = strcmp(evq_json_text(hash, "state", ""), "cancelled") == 0;

    return !cancelled && whole > 0 && reason_may_be_cut(reason)
               ? evq_error_escape(detail, whole, out, out_bytes)
               : evq_error_escape(reason, strlen(reason), out, out_bytes);
}

char *evq_view_cause_of(struct evq_cli *cli, const char *id, const char *reason, char *out,
                        size_t out_bytes)
{
    json_t *view = NULL;

    if (reason_may_be_cut(reason) && evq_view_job(cli, id, &view, NULL) == EVQ_OK) {
        (void)evq_view_cause(view, out, out_bytes);
    } else {
        (void)evq_error_escape(reason, strlen(reason), out, out_bytes);
    }
    json_decref(view);
    return out;
}

void evq_view_causes(struct evq_cli *cli, json_t *jobs)
{
    char cause[EVQ_VIEW_CAUSE_BYTES];
    json_t *job = NULL;
    size_t i = 0;

    json_array_foreach(jobs, i, job)
    {
        const char *reason = evq_json_text(job, "reason", "");
        (void)evq_view_cause_of(cli, evq_json_text(job, "id", ""), reason, cause, sizeof cause);
        (void)json_object_set_new(job, "reason", json_string(cause));
    }
}

/* Appends each job's view, or with ids_alone its id. */
static enum evq_status jobs_append(struct evq_cli *cli, const char *state, const char *run,
                                   size_t count, bool ids_alone, json_t **ret,
                                   struct evq_error *err)
{
    char cursor[256] = "";
    enum evq_status status = EVQ_OK;
    json_t *all = *ret != NULL ? *ret : json_array();
    *ret = all;
    size_t left = count;
    do {
        char *text = NULL;
        json_t *page = NULL;
        uint32_t want = left > 100 ? 100 : (uint32_t)left;
        status = evq_queue_jobs(cli->queue, state, run, cursor, want, &text, err);
        if (status == EVQ_OK) {
            status = evq_json_take(text, &page, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
        size_t index = 0;
        json_t *job = NULL;
        json_array_foreach(json_object_get(page, "jobs"), index, job)
        {
            json_t *wanted = ids_alone ? json_object_get(job, "id") : job;
            if (left > 0 && json_array_append(all, wanted) == 0) {
                left--;
            }
        }
        const char *next = evq_json_text(page, "cursor", "");
        bool more = next[0] != '\0' && strcmp(next, "0") != 0 && strcmp(next, cursor) != 0 &&
                    strlen(next) < sizeof cursor;
        memset(cursor, 0, sizeof cursor);
        if (more) {
            memcpy(cursor, next, strlen(next));
        }
        json_decref(page);
    } while (left > 0 && cursor[0] != '\0');
    return EVQ_OK;
}

enum evq_status evq_view_jobs(struct evq_cli *cli, const char *state, const char *run, size_t count,
                              json_t **ret, struct evq_error *err)
{
    return jobs_append(cli, state, run, count, false, ret, err);
}

enum evq_status evq_view_ids(struct evq_cli *cli, const char *state, const char *run, json_t **ret,
                             struct evq_error *err)
{
    return jobs_append(cli, state, run, SIZE_MAX, true, ret, err);
}

/* Visits one page of runs. cursor becomes that of the next page, "" after the last. */
static enum evq_status visit_page(struct evq_cli *cli, char cursor[32], evq_view_run_fn on_run,
                                  void *context, struct evq_error *err)
{
    char *text = NULL;
    json_t *page = NULL;
    size_t index = 0;
    const json_t *row = NULL;
    enum evq_status status = evq_queue_runs(cli->queue, cursor, &text, err);
    if (status == EVQ_OK) {
        status = evq_json_take(text, &page, err);
    }
    json_array_foreach(json_object_get(page, "runs"), index, row)
    {
        const char *run = evq_json_text(row, "run", NULL);
        if (run != NULL && status == EVQ_OK) {
            status = on_run(context, run, err);
        }
    }
    (void)snprintf(cursor, 32, "%s", evq_json_text(page, "cursor", ""));
    json_decref(page);
    return status;
}

enum evq_status evq_view_each_run(struct evq_cli *cli, evq_view_run_fn on_run, void *context,
                                  struct evq_error *err)
{
    char cursor[32] = "";
    enum evq_status status = EVQ_OK;
    do {
        status = visit_page(cli, cursor, on_run, context, err);
    } while (status == EVQ_OK && cursor[0] != '\0');
    return status;
}
