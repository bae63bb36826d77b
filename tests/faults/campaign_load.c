/*
 * fault_load submit URL NAME HISTORY SEED RUN COUNT BATCH PAUSE_MS
 *     steps 1 to COUNT, up to PAUSE_MS between batches; goes on after those that its history has as
 *     acknowledged
 * fault_load work URL NAME HISTORY SEED LEASE_MS
 * fault_load operate URL NAME HISTORY SEED RUN COUNT
 *     cancels, retries and looks; both until SIGTERM
 */
#include "tests/faults/campaign_load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"

enum { CALL_TIMEOUT_MS = 5000, BATCH_MAX = 200 };

volatile sig_atomic_t load_stop;

static void stop(int number)
{
    (void)number;
    load_stop = 1;
}

uint64_t load_random(struct load *load)
{
    uint64_t mixed = (load->random += UINT64_C(0x9e3779b97f4a7c15)); // splitmix64.

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

bool load_chance(struct load *load, uint32_t per_mille)
{
    return load_random(load) % 1000 < per_mille;
}

static void load_pause(struct load *load, int64_t ms)
{
    if (evq_conn_wait(load->conn, ms, NULL) != EVQ_OK) {
        load_stop = 1; // Only when it was interrupted.
    }
}

bool load_again(struct load *load, enum evq_status status, const struct evq_error *err,
                const char *what)
{
    uint64_t random = load->random | 1;

    if (evq_conn_retryable(status)) {
        load_pause(load, evq_clock_backoff_ms(&random, load->tries++, 2, 100));
        return true;
    }
    load->tries = 0;
    if (status != EVQ_OK && status != EVQ_E_LEASE_LOST && status != EVQ_E_NOT_FOUND &&
        status != EVQ_E_CHANGED && status != EVQ_E_CONFLICT) {
        (void)fprintf(stderr, "fault_load: %s: %s: %s\n", load->name, what, err->message);
        exit(1);
    }
    return false;
}

/* One step's message. Some flows keep the newest alone, some jobs wait, some are split. */
static void fill(struct evq_job *job, const char *run, uint64_t step, char path[64],
                 char fingerprint[40])
{
    (void)snprintf(path, 64, "%s/%" PRIu64, run, step);
    (void)snprintf(fingerprint, 40, "%032" PRIx64, step);
    job->run = run;
    job->session_ms = 1;
    job->step = (int64_t)step;
    job->variant = step % 23 == 0 ? "latest" : "regular";
    job->policy = step % 23 == 0 ? EVQ_POLICY_LATEST : EVQ_POLICY_ALL;
    job->suite = step % 37 == 0 ? LOAD_SHARDED : LOAD_SUITE;
    job->root = "ckpt";
    job->path = path;
    job->fingerprint = fingerprint;
}

static void note_submits(struct load *load, uint64_t call, const struct evq_job *const *jobs,
                         size_t count, enum evq_status status,
                         const struct evq_submitted *submitted)
{
    static const char *const answers[] = {"queued", "duplicate", "replaced", "followed", "skipped"};
    char id[EVQ_JOB_ID_BYTES_MAX];

    for (size_t i = 0; i < count; i++) {
        evq_job_id(jobs[i], id);
        if (status == EVQ_OK) {
            history_line(&load->history, call, "ok", "submit", submitted[i].id, NULL,
                         answers[submitted[i].answer]);
        } else {
            history_line(&load->history, call, "unknown", "submit", id, NULL,
                         evq_status_name(status));
        }
    }
    history_flush(&load->history);
}

static void submit(struct load *load, const struct evq_job *const *jobs, size_t count)
{
    struct evq_submitted submitted[BATCH_MAX];
    struct evq_error err;
    enum evq_status status = EVQ_OK;
    char id[EVQ_JOB_ID_BYTES_MAX];

    do {
        const uint64_t call = history_call(&load->history);
        for (size_t i = 0; i < count; i++) {
            evq_job_id(jobs[i], id);
            history_line(&load->history, call, "invoke", "submit", id, NULL, NULL);
        }
        history_flush(&load->history);
        status = count == 1
                     ? evq_queue_submit(load->queue, jobs[0], load_chance(load, 200) ? 40 : 0,
                                        submitted, &err)
                     : evq_queue_submit_batch(load->queue, jobs, count, submitted, NULL, &err);
        note_submits(load, call, jobs, count, status, submitted);
    } while (load_again(load, status, &err, "submit"));
}

int load_submit(struct load *load, const char *run, uint64_t count, uint32_t batch,
                uint32_t pause_ms)
{
    struct evq_job *jobs[BATCH_MAX];
    char paths[BATCH_MAX][64];
    char fingerprints[BATCH_MAX][40];

    if (batch < 1 || batch > BATCH_MAX) {
        return 2;
    }
    for (uint32_t i = 0; i < batch; i++) {
        jobs[i] = evq_job_new();
        if (jobs[i] == NULL) {
            return 1;
        }
    }
    // Whole batches are acknowledged in order, so that their number is the last step.
    for (uint64_t step = history_count(load->history_path, " ok submit ") + 1;
         step <= count && !load_stop;) {
        uint32_t many = load_chance(load, 100) ? 1 : batch;
        many = count - step + 1 < many ? (uint32_t)(count - step + 1) : many;
        for (uint32_t i = 0; i < many; i++) {
            fill(jobs[i], run, step + i, paths[i], fingerprints[i]);
        }
        submit(load, (const struct evq_job *const *)jobs, many);
        step += many;
        if (pause_ms > 0) {
            load_pause(load, (int64_t)(load_random(load) % pause_ms));
        }
    }
    for (uint32_t i = 0; i < batch; i++) {
        evq_job_free(jobs[i]);
    }
    return 0;
}

/* What an operator does to a job that he happens upon; any answer is fine. */
static void operate(struct load *load, const char *id)
{
    char again[EVQ_JOB_ID_BYTES_MAX];
    struct evq_error err;
    enum evq_job_state state = EVQ_JOB_QUEUED;
    enum evq_status status = EVQ_OK;
    const bool cancel = load_chance(load, 300);
    const char *op = cancel ? "cancel" : "retry";

    do {
        const uint64_t call = history_call(&load->history);
        history_line(&load->history, call, "invoke", op, id, NULL, NULL);
        history_flush(&load->history);
        status = cancel ? evq_queue_cancel(load->queue, id, "not wanted", &state, &err)
                        : evq_queue_retry(load->queue, id, "", again, &err);
        history_line(&load->history, call,
                     evq_conn_retryable(status) ? "unknown"
                     : status == EVQ_OK         ? "ok"
                                                : "fail",
                     op, id, NULL, evq_status_name(status));
        history_flush(&load->history);
        status = status == EVQ_E_INVALID ? EVQ_OK : status; // Refused: it is in another state.
    } while (load_again(load, status, &err, op));
}

/* Views and housekeeping: what they say is not looked at. */
static void look(struct load *load, const char *run)
{
    struct evq_error err;
    struct evq_run_counts counts;
    char *json = NULL;
    int64_t number = 0;
    uint64_t free_suites = 0;
    const char *const suites[] = {LOAD_SUITE};
    enum evq_status status = EVQ_OK;
    const uint64_t which = load_random(load) % 7;

    do {
        status = which == 0   ? evq_queue_stats(load->queue, &json, &err)
                 : which == 1 ? evq_queue_run_counts(load->queue, run, &counts, &err)
                 : which == 2 ? evq_queue_gc(load->queue, &number, &err)
                 : which == 3 ? evq_queue_pause(load->queue, EVQ_PAUSE_RUN, run, false, &err)
                 : which == 4 ? evq_queue_limit(load->queue, "weight", run, 100, &err)
                 : which == 5 ? evq_queue_free_workers_take(load->queue, run, NULL, suites, 1,
                                                            &free_suites, &err)
                              : evq_queue_jobs(load->queue, "dead", run, "", 20, &json, &err);
        free(json);
        json = NULL;
    } while (load_again(load, status, &err, "look"));
}

int load_operate(struct load *load, const char *run, uint64_t count)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    while (!load_stop) {
        const uint64_t step = 1 + load_random(load) % count;
        (void)snprintf(id, sizeof id, "%s/%" PRIu64 "/%s/%s", run, step,
                       step % 23 == 0 ? "latest" : "regular",
                       step % 37 == 0 ? LOAD_SHARDED : LOAD_SUITE);
        operate(load, id);
        look(load, run);
        load_pause(load, 20);
    }
    return 0;
}

static int run(struct load *load, int argc, char **argv)
{
    const uint64_t count = argc > 7 ? strtoull(argv[7], NULL, 10) : 0;

    if (strcmp(argv[1], "submit") == 0 && argc == 10) {
        return load_submit(load, argv[6], count, (uint32_t)strtoul(argv[8], NULL, 10),
                           (uint32_t)strtoul(argv[9], NULL, 10));
    }
    if (strcmp(argv[1], "work") == 0 && argc == 7) {
        return load_work(load, (uint32_t)strtoul(argv[6], NULL, 10));
    }
    if (strcmp(argv[1], "operate") == 0 && argc == 8 && count > 0) {
        return load_operate(load, argv[6], count);
    }
    return 2;
}

int main(int argc, char **argv)
{
    struct load load = {.name = argc > 3 ? argv[3] : ""};
    struct evq_error err = {EVQ_OK, ""};
    struct sigaction action = {.sa_handler = stop};

    if (argc < 6) {
        (void)fprintf(stderr, "usage: fault_load submit|work|operate URL NAME HISTORY SEED ...\n");
        return 2;
    }
    load.url = argv[2];
    load.history_path = argv[4];
    // The pid too: one that took the place of a killed one does otherwise.
    load.random = strtoull(argv[5], NULL, 10) ^ ((uint64_t)getpid() << 32);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    history_open(&load.history, argv[4], argv[3]);
    if (evq_conn_open(&(struct evq_conn_config){.url = load.url,
                                                .name = load.name,
                                                .call_timeout_ms = CALL_TIMEOUT_MS},
                      &load.conn, &err) != EVQ_OK ||
        evq_queue_open(load.conn, NULL, &load.queue, &err) != EVQ_OK) {
        (void)fprintf(stderr, "fault_load: %s\n", err.message);
        return 1;
    }
    const int code = run(&load, argc, argv);
    evq_queue_close(load.queue);
    evq_conn_close(load.conn);
    history_close(&load.history);
    return code;
}
