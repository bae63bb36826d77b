/*
 * How soon a job is claimed by a worker that waits for one, with 1 to 10,000 workers blocked:
 * microseconds from before the submit to the claim's reply, and how long as many jobs as workers
 * take, submitted at once.
 *
 *     bench_idle off|everysec|always SUBMITS WORKERS...
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/bench/blocked.h"
#include "tests/bench/row.h"
#include "tests/fixture/queue.h"

enum { BATCH = 500, DEADLINE_MS = 300000 };

static struct evq_error error;
static int64_t steps;

static void must(enum evq_status status)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_idle: %s\n", error.message);
        exit(1);
    }
}

static struct evq_job *job_next(void)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    (void)snprintf(id, sizeof id, "run-%03d/%lld/regular/quick", (int)(steps % 100),
                   (long long)steps);
    steps++;
    return fixture_job(id);
}

/* Those that a marker without a job woke claim in vain first. */
static void wait_blocked(struct fixture *fx, struct blocked *workers, int count)
{
    int64_t deadline = bench_now_ns() + (int64_t)DEADLINE_MS * 1000000;
    int blocked = 0;

    while (blocked < count && bench_now_ns() < deadline) {
        struct evq_reply *reply = fixture_call(fx->raw, "INFO", "clients", NULL);
        const char *found = strstr(reply->text, "blocked_clients:");
        blocked = found != NULL ? atoi(found + strlen("blocked_clients:")) : 0;
        evq_reply_free(reply);
        struct blocked_claim none;
        int empty = 0;
        (void)blocked_claim(workers, &none, 1, 5, &empty);
    }
    if (blocked < count) {
        (void)fprintf(stderr, "bench_idle: %d of %d workers wait after 300 s\n", blocked, count);
        exit(1);
    }
}

static void complete(struct fixture *fx, const struct blocked_claim *claims, int count)
{
    for (int i = 0; i < count; i++) {
        must(evq_queue_complete(fx->queue, claims[i].id, claims[i].token, &error));
    }
}

static void claimed_all(int got, int wanted)
{
    if (got != wanted) {
        (void)fprintf(stderr, "bench_idle: %d of %d jobs were claimed within 300 s\n", got, wanted);
        exit(1);
    }
}

static void measure_single(struct fixture *fx, struct blocked *blocked, const char *name,
                           int submits)
{
    int64_t *spent = calloc((size_t)submits, sizeof *spent);
    int empty_all = 0;

    assert_non_null(spent);
    for (int i = 0; i < submits; i++) {
        struct blocked_claim claim;
        struct evq_submitted submitted;
        struct evq_job *job = job_next();
        int empty = 0;
        int64_t start = bench_now_ns();
        must(evq_queue_submit(fx->queue, job, 0, &submitted, &error));
        claimed_all(blocked_claim(blocked, &claim, 1, DEADLINE_MS, &empty), 1);
        spent[i] = claim.claimed_ns - start;
        empty_all += empty;
        evq_job_free(job);
        complete(fx, &claim, 1);
    }
    bench_quantiles(name, spent, (size_t)submits, "us", 1e3);
    free(spent);
}

static void measure_burst(struct fixture *fx, struct blocked *blocked, const char *name,
                          int workers)
{
    struct blocked_claim *claims = calloc((size_t)workers, sizeof *claims);
    char text[96];
    int empty = 0;

    assert_non_null(claims);
    wait_blocked(fx, blocked, workers);
    int64_t start = bench_now_ns();
    for (int at = 0; at < workers; at += BATCH) {
        static struct evq_submitted submitted[BATCH];
        struct evq_job *jobs[BATCH];
        int count = workers - at < BATCH ? workers - at : BATCH;
        for (int i = 0; i < count; i++) {
            jobs[i] = job_next();
        }
        must(evq_queue_submit_batch(fx->queue, (const struct evq_job *const *)jobs, (size_t)count,
                                    submitted, NULL, &error));
        for (int i = 0; i < count; i++) {
            evq_job_free(jobs[i]);
        }
    }
    claimed_all(blocked_claim(blocked, claims, workers, DEADLINE_MS, &empty), workers);
    (void)snprintf(text, sizeof text, "%s burst", name);
    bench_row(text, (double)(claims[workers - 1].claimed_ns - start) / 1e6, "ms", workers);
    (void)snprintf(text, sizeof text, "%s burst, claims in vain", name);
    bench_row(text, empty, "", workers);
    complete(fx, claims, workers);
    free(claims);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int submits = argc > 2 ? atoi(argv[2]) : 0;

    if (bench_redis_options(mode) == NULL || submits < 1 || argc < 4) {
        (void)fprintf(stderr, "usage: bench_idle off|everysec|always SUBMITS WORKERS...\n");
        return 2;
    }
    const struct fixture_redis_config config = {.options = bench_redis_options(mode)};
    struct fixture *fx = fixture_open(&config);
    for (int i = 3; i < argc; i++) {
        int workers = atoi(argv[i]);
        char name[64];
        if (workers < 1 || workers > 10000) {
            (void)fprintf(stderr, "bench_idle: '%s' workers, expected 1 to 10000\n", argv[i]);
            return 2;
        }
        struct blocked *blocked = blocked_open(fx->redis->socket, workers, fx->classes[0]);
        (void)snprintf(name, sizeof name, "claim of %d idle", workers);
        wait_blocked(fx, blocked, workers);
        measure_single(fx, blocked, name, submits);
        measure_burst(fx, blocked, name, workers);
        blocked_close(blocked);
    }
    fixture_close(fx);
    return 0;
}
