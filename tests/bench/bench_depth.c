/*
 * What a claim costs in a deep queue, and what its jobs weigh: DEPTH jobs over RUNS runs, WAITERS
 * workers blocked on another class's marker beside it. Tells the server's and the caller's
 * microseconds a claim, and Redis's bytes a queued job; with `drain` also a finished job's, with
 * one result each, and of those what the results stream holds.
 *
 *     bench_depth off|everysec|always DEPTH RUNS WAITERS [drain]
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

enum { BATCH = 500, CLAIMS = 500, SLOTS = 16, LEASE_MS = 3600000 };

static struct evq_error error;

static void must(enum evq_status status)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_depth: %s\n", error.message);
        exit(1);
    }
}

/* A number of INFO, 0 where it is not there. */
static double info(struct fixture *fx, const char *section, const char *name)
{
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", section, NULL);
    const char *found = strstr(reply->text, name);
    double value = found != NULL ? strtod(found + strlen(name), NULL) : 0;

    evq_reply_free(reply);
    return value;
}

/* Server time of FCALL in microseconds since the last RESETSTAT. */
static double fcall_us(struct fixture *fx)
{
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "commandstats", NULL);
    const char *line = strstr(reply->text, "cmdstat_fcall:");
    const char *found = line != NULL ? strstr(line, "usec=") : NULL;
    double value = found != NULL ? strtod(found + strlen("usec="), NULL) : 0;

    evq_reply_free(reply);
    return value;
}

static double memory(struct fixture *fx)
{
    return info(fx, "memory", "used_memory:");
}

/* A record of some 300 bytes, in the order in which trainings submit: step by step, each run in
 * turn. */
static void submit(struct fixture *fx, int64_t depth, int64_t runs)
{
    static const struct evq_pair params[] = {
        {"limit", "1000"},         {"batch_size", "32"},     {"template", "question-answer"},
        {"output_format", "json"}, {"generation", "greedy"}, {"seed", "1234"}};
    static struct evq_submitted submitted[BATCH];
    struct evq_job *jobs[BATCH];

    for (int64_t at = 0; at < depth; at += BATCH) {
        int64_t count = depth - at < BATCH ? depth - at : BATCH;
        for (int64_t i = 0; i < count; i++) {
            char id[EVQ_JOB_ID_BYTES_MAX];
            (void)snprintf(id, sizeof id, "run-%05lld/%lld/regular/quick",
                           (long long)((at + i) % runs), (long long)((at + i) / runs * 100));
            jobs[i] = fixture_job(id);
            jobs[i]->params = params;
            jobs[i]->param_count = sizeof params / sizeof params[0];
        }
        must(evq_queue_submit_batch(fx->queue, (const struct evq_job *const *)jobs, (size_t)count,
                                    submitted, NULL, &error));
        for (int64_t i = 0; i < count; i++) {
            evq_job_free(jobs[i]);
        }
    }
}

static uint32_t claim(struct fixture *fx, uint32_t class_number, struct evq_claim **claims,
                      uint32_t most)
{
    struct evq_claimed claimed = {0};
    char request[32];

    (void)snprintf(request, sizeof request, "r%llu", (unsigned long long)fx->request++);
    const struct evq_claim_request wanted = {.worker = fx->worker,
                                             .request = request,
                                             .lease_ms = LEASE_MS,
                                             .claims_max = most,
                                             .classes = &class_number,
                                             .class_count = 1};
    must(evq_queue_claim(fx->queue, &wanted, claims, &claimed, &error));
    return claimed.count;
}

/* One at a time and 16 at a time; claims are given back, so that the depth stays. */
static void measure_claims(struct fixture *fx, uint32_t class_number, const char *name)
{
    static struct evq_claim *claims[CLAIMS];
    static int64_t spent[CLAIMS];
    char text[192];

    for (uint32_t each = 1; each <= SLOTS; each += SLOTS - 1) {
        uint32_t all = 0;
        size_t calls = 0;
        evq_reply_free(fixture_call(fx->raw, "CONFIG", "RESETSTAT", NULL));
        for (uint32_t got = 1; got > 0 && all + each <= CLAIMS; all += got) {
            int64_t start = bench_now_ns();
            got = claim(fx, class_number, claims + all, each);
            spent[calls++] = bench_now_ns() - start;
        }
        (void)snprintf(text, sizeof text, "claim of %u, %s, server", each, name);
        bench_row(text, fcall_us(fx) / all, "us a job", all);
        if (each == 1) {
            (void)snprintf(text, sizeof text, "claim of 1, %s", name);
            bench_quantiles(text, spent, calls, "us", 1e3);
        }
        for (uint32_t i = 0; i < all; i++) {
            must(evq_queue_release(fx->queue, claims[i]->id, claims[i]->token, &error));
            evq_claim_free(claims[i]);
        }
    }
}

static void drain(struct fixture *fx, uint32_t class_number, double empty, const char *name)
{
    struct evq_claim *claims[SLOTS];
    struct evq_completion done[SLOTS];
    uint32_t count;
    int64_t all = 0;
    char text[192];

    while ((count = claim(fx, class_number, claims, SLOTS)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            fixture_publish(fx, claims[i], "t", 0.5);
            done[i] = (struct evq_completion){.id = claims[i]->id, .token = claims[i]->token};
        }
        must(evq_queue_complete_many(fx->queue, done, count, &error));
        for (uint32_t i = 0; i < count; i++) {
            evq_claim_free(claims[i]);
        }
        all += count;
    }
    double after = memory(fx) - empty;
    double stream = (double)fixture_call_integer(fx->raw, "MEMORY", "USAGE",
                                                 fixture_key(fx, "results"), "SAMPLES", "0", NULL);
    (void)snprintf(text, sizeof text, "bytes a finished job, %s", name);
    bench_row(text, after / (double)all, "B", all);
    (void)snprintf(text, sizeof text, "of them its results in the stream, %s", name);
    bench_row(text, stream / (double)all, "B", all);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int64_t depth = argc > 2 ? atoll(argv[2]) : 0;
    int64_t runs = argc > 3 ? atoll(argv[3]) : 0;
    int waiters = argc > 4 ? atoi(argv[4]) : -1;
    char name[96], text[192];

    if (bench_redis_options(mode) == NULL || depth < 1 || runs < 1 || waiters < 0 ||
        waiters > 10000) {
        (void)fprintf(stderr, "usage: bench_depth off|everysec|always DEPTH RUNS WAITERS "
                              "[drain], WAITERS 0 to 10000\n");
        return 2;
    }
    const struct fixture_redis_config config = {.options = bench_redis_options(mode)};
    struct fixture *fx = fixture_open(&config);
    uint32_t class_number = fx->classes[0];
    uint32_t other = fixture_suite(fx, "other");
    struct blocked *blocked = waiters > 0 ? blocked_open(fx->redis->socket, waiters, other) : NULL;
    double empty = memory(fx);

    (void)snprintf(name, sizeof name, "%lld jobs of %lld runs%s", (long long)depth, (long long)runs,
                   waiters > 0 ? ", workers waiting" : "");
    submit(fx, depth, runs);
    (void)snprintf(text, sizeof text, "bytes a queued job, %s", name);
    bench_row(text, (memory(fx) - empty) / (double)depth, "B", depth);
    measure_claims(fx, class_number, name);
    if (argc > 5) {
        drain(fx, class_number, empty, name);
    }
    blocked_close(blocked);
    fixture_close(fx);
    return 0;
}
