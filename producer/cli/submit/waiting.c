#include "producer/cli/submit/waiting.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/inspect/result_table.h"
#include "producer/cli/json.h"
#include "producer/cli/poll_delay.h"
#include "producer/cli/view.h"
#include "shared/base/buffer.h"
#include "shared/base/clock.h"

#define QUIET_MS 1000 // A job that is blocked for this long says why.

struct waited {
    const char *id;
    enum evq_job_state state;
    char cause[EVQ_VIEW_CAUSE_BYTES]; // Why it ended so, escaped.
    bool ended;
    char blocked[256]; // Why the job waits; "": only for its turn, or not at all.
};

/* Says once why a job cannot run, and again if the reason changes. */
struct notice {
    int64_t since_ms; // When the wait began.
    char said[256];
};

struct collected { // The results of the waited-for jobs.
    const struct waited *jobs;
    size_t job_count;
    struct evq_result_table *results;
    struct evq_buffer json;
    size_t json_count;
};

static enum evq_status look_at(struct evq_cli *cli, struct waited *job, struct evq_error *err)
{
    json_t *view = NULL;
    enum evq_status status = evq_view_job(cli, job->id, &view, err);
    if (status != EVQ_OK) {
        return status;
    }
    const json_t *hash = evq_view_fields(view);
    const char *state = evq_json_text(hash, "state", "");
    if (strcmp(state, "bad") == 0) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "the job '%s' was set aside: %s", job->id,
                               evq_json_text(hash, "reason", "no reason is known"));
    } else if (evq_job_state_parse(state, &job->state) != EVQ_OK) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "the job '%s' has no known state", job->id);
    } else {
        job->ended = job->state >= EVQ_JOB_DONE;
        (void)evq_view_cause(view, job->cause, sizeof job->cause);
        (void)snprintf(
            job->blocked, sizeof job->blocked, "%s",
            json_is_true(json_object_get(view, "blocked")) ? evq_json_text(view, "why", "") : "");
    }
    json_decref(view);
    return status;
}

static void notice_say(const struct evq_cli *cli, struct notice *notice, const struct waited *job)
{
    char shown[512];

    if (evq_clock_mono_ms() - notice->since_ms < QUIET_MS ||
        strcmp(notice->said, job->blocked) == 0) {
        return;
    }
    (void)snprintf(notice->said, sizeof notice->said, "%s", job->blocked);
    if (job->blocked[0] != '\0') {
        evq_cli_say(cli, "evalq: %s waits: %s", job->id,
                    evq_error_escape(job->blocked, strlen(job->blocked), shown, sizeof shown));
    }
}

/* Says why a run waits. Its newest queued job stands for all. */
static void notice_run(struct evq_cli *cli, struct notice *notice, const char *run)
{
    json_t *jobs = json_array();

    if (jobs != NULL && evq_clock_mono_ms() - notice->since_ms >= QUIET_MS &&
        evq_view_jobs(cli, "queued", run, 1, &jobs, NULL) == EVQ_OK && json_array_size(jobs) > 0) {
        struct waited job = {.id = evq_json_text(json_array_get(jobs, 0), "id", "")};
        if (look_at(cli, &job, NULL) == EVQ_OK) {
            notice_say(cli, notice, &job);
        }
    }
    json_decref(jobs);
}

bool evq_waiting_passes(enum evq_status status, uint32_t looks)
{
    return status == EVQ_E_RETRY || (evq_conn_retryable(status) && looks > 0);
}

enum evq_status evq_waiting_open(struct evq_cli *cli, int64_t *timeout_s, struct evq_error *err)
{
    int64_t begin = evq_clock_mono_ms();
    int64_t deadline = *timeout_s >= 0 ? begin + 1000 * *timeout_s : 0;
    struct evq_queue_info info;
    uint32_t looks = 0;
    enum evq_status status = evq_cli_open_within(cli, 0, err);

    while (status != EVQ_OK && evq_waiting_passes(status, looks)) {
        if (deadline > 0 && evq_clock_mono_ms() >= deadline) {
            return evq_error_set(err, EVQ_E_TIMEOUT,
                                 "Redis asked to wait for all of the %" PRId64 " s", *timeout_s);
        }
        evq_poll_delay(&looks, deadline);
        status = evq_queue_info(cli->queue, &info, err);
    }
    if (*timeout_s >= 0) {
        int64_t left = *timeout_s - (evq_clock_mono_ms() - begin) / 1000;
        *timeout_s = left > 0 ? left : 0;
    }
    return status;
}

static void collect(void *context, const struct evq_result *result)
{
    struct collected *to = context;
    for (size_t i = 0; i < to->job_count; i++) {
        if (strcmp(to->jobs[i].id, result->job) == 0) {
            (void)evq_result_table_add(to->results, result); // A failure shows when printing.
            if (result->task[0] != '\0') {
                evq_buffer_text(&to->json, to->json_count++ > 0 ? "," : "");
                evq_result_json(result, &to->json);
            }
            return;
        }
    }
}

static enum evq_status print_json(const struct waited *jobs, size_t job_count,
                                  struct evq_buffer *results, struct evq_error *err)
{
    struct evq_buffer out;
    evq_buffer_init(&out, 0);
    evq_buffer_text(&out, "{\"jobs\": [");
    for (size_t i = 0; i < job_count; i++) {
        evq_buffer_text(&out, i > 0 ? ", {\"id\": " : "{\"id\": ");
        evq_buffer_json_text(&out, jobs[i].id);
        evq_buffer_printf(&out,
                          ", \"state\": \"%s\", \"reason\": ", evq_job_state_name(jobs[i].state));
        evq_buffer_json_text(&out, jobs[i].cause);
        evq_buffer_text(&out, "}");
    }
    evq_buffer_text(&out, "], \"results\": [");
    const char *text = evq_buffer_string(results);
    evq_buffer_text(&out, text != NULL ? text : "");
    evq_buffer_text(&out, "]}\n");
    const char *whole = evq_buffer_string(&out);
    enum evq_status status = EVQ_OK;
    if (whole == NULL || text == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
    } else {
        (void)fputs(whole, stdout);
    }
    evq_buffer_free(&out);
    return status;
}

static enum evq_status print_results(struct evq_cli *cli, const struct waited *jobs,
                                     size_t job_count, struct evq_error *err)
{
    struct collected to = {.jobs = jobs, .job_count = job_count, .results = evq_result_table_new()};
    enum evq_status status = EVQ_OK;
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job_name name;
    evq_buffer_init(&to.json, 0);
    if (to.results == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
    }
    if (status == EVQ_OK) {
        status = evq_job_id_parse(jobs[0].id, scratch, &name, err); // One submit: one run.
    }
    int64_t cursor = 0;
    for (int64_t before = -1; status == EVQ_OK && cursor != before;) {
        before = cursor;
        status = evq_queue_run_results(cli->queue, name.run, &cursor, collect, &to, err);
    }
    if (status == EVQ_OK) {
        status = cli->terminal.json
                     ? print_json(jobs, job_count, &to.json, err)
                     : evq_result_table_print(to.results, &cli->terminal, false, err);
    }
    evq_buffer_free(&to.json);
    evq_result_table_free(to.results);
    return status;
}

/* Waits until all jobs have ended. */
static enum evq_status await(struct evq_cli *cli, struct waited *jobs, size_t id_count,
                             int64_t timeout_s, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    int64_t deadline = timeout_s >= 0 ? evq_clock_mono_ms() + 1000 * timeout_s : 0;
    uint32_t looks = 0;
    struct notice notice = {.since_ms = evq_clock_mono_ms()};

    for (size_t i = 0; status == EVQ_OK && i < id_count;) {
        status = look_at(cli, &jobs[i], err);
        if (status == EVQ_OK && jobs[i].ended) {
            i++;
            continue;
        }
        if (status == EVQ_OK) {
            notice_say(cli, &notice, &jobs[i]);
        }
        if (status != EVQ_OK && !evq_waiting_passes(status, looks)) {
            break;
        }
        if (deadline > 0 && evq_clock_mono_ms() >= deadline) {
            status =
                evq_error_set(err, EVQ_E_TIMEOUT, "the job '%s' was still %s after %" PRId64 " s",
                              jobs[i].id, evq_job_state_name(jobs[i].state), timeout_s);
            break;
        }
        status = EVQ_OK;
        evq_poll_delay(&looks, deadline);
    }
    return status;
}

enum evq_status evq_waiting_one_job(struct evq_cli *cli, const char *id, int64_t timeout_s,
                                    struct evq_error *err)
{
    struct waited job = {.id = id};
    const enum evq_status status = await(cli, &job, 1, timeout_s, err);

    if (status == EVQ_OK && job.state != EVQ_JOB_DONE) {
        return evq_error_set(err, EVQ_E_CONFLICT, "the job '%s' ended as %s: %s", id,
                             evq_job_state_name(job.state), job.cause);
    }
    return status;
}

enum evq_status evq_waiting_jobs(struct evq_cli *cli, const char *const *ids, size_t id_count,
                                 int64_t timeout_s, struct evq_error *err)
{
    struct waited *jobs = calloc(id_count, sizeof *jobs);
    if (jobs == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu jobs", id_count);
    }
    for (size_t i = 0; i < id_count; i++) {
        jobs[i].id = ids[i];
    }
    enum evq_status status = await(cli, jobs, id_count, timeout_s, err);
    if (status == EVQ_OK) {
        status = print_results(cli, jobs, id_count, err);
    }
    for (size_t i = 0; status == EVQ_OK && i < id_count; i++) {
        if (jobs[i].state != EVQ_JOB_DONE) {
            evq_cli_say(cli, "evalq: %s ended as %s: %s", jobs[i].id,
                        evq_job_state_name(jobs[i].state), jobs[i].cause);
            cli->exit_code = EVQ_EXIT_JOB_FAILED;
        }
    }
    free(jobs);
    return status;
}

static void print_counts(const struct evq_cli *cli, const char *run,
                         const struct evq_run_counts *counts)
{
    if (cli->terminal.json) {
        (void)printf("{\"run\": \"%s\", \"counts\": {", run); // A run's name needs no escapes.
        for (size_t s = 0; s < EVQ_JOB_STATE_COUNT; s++) {
            (void)printf("%s\"%s\": %" PRId64, s > 0 ? ", " : "",
                         evq_job_state_name((enum evq_job_state)s), counts->by_state[s]);
        }
        (void)puts("}}");
        return;
    }
    (void)printf("%s", run);
    for (size_t s = EVQ_JOB_DONE; s < EVQ_JOB_STATE_COUNT; s++) {
        if (counts->by_state[s] > 0 || s == EVQ_JOB_DONE) {
            (void)printf("%c%" PRId64 " %s", cli->terminal.plain ? '\t' : ' ', counts->by_state[s],
                         evq_job_state_name((enum evq_job_state)s));
        }
    }
    (void)fputc('\n', stdout);
}

enum evq_status evq_waiting_run(struct evq_cli *cli, const char *run, int64_t timeout_s,
                                struct evq_error *err)
{
    int64_t deadline = timeout_s >= 0 ? evq_clock_mono_ms() + 1000 * timeout_s : 0;
    uint32_t looks = 0;
    struct evq_run_counts counts = {0};
    struct notice notice = {.since_ms = evq_clock_mono_ms()};
    for (;;) {
        enum evq_status status = evq_queue_run_counts(cli->queue, run, &counts, err);
        if (status != EVQ_OK && !evq_waiting_passes(status, looks)) {
            return status;
        }
        if (status == EVQ_OK && counts.open == 0) {
            break;
        }
        if (status == EVQ_OK) {
            notice_run(cli, &notice, run);
        }
        if (deadline > 0 && evq_clock_mono_ms() >= deadline) {
            return evq_error_set(err, EVQ_E_TIMEOUT,
                                 "%" PRId64 " job%s of '%s' %s still open after %" PRId64 " s",
                                 counts.open, counts.open == 1 ? "" : "s", run,
                                 counts.open == 1 ? "was" : "were", timeout_s);
        }
        evq_poll_delay(&looks, deadline);
    }
    const enum evq_status known = evq_cli_check_run(cli, run, &counts, err);
    if (known != EVQ_OK) {
        return known;
    }
    print_counts(cli, run, &counts);
    if (counts.by_state[EVQ_JOB_DEAD] > 0) {
        evq_cli_say(cli, "evalq: %" PRId64 " %s dead; `evalq dead` says why",
                    counts.by_state[EVQ_JOB_DEAD],
                    counts.by_state[EVQ_JOB_DEAD] == 1 ? "job is" : "jobs are");
        cli->exit_code = EVQ_EXIT_JOB_FAILED;
    }
    return EVQ_OK;
}
