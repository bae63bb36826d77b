/*
 * evalq's queue for tests/bench/peers/speed.py, through shared/queue/queue.h: submits jobs, or
 * claims and completes them 16 at a time as a supervisor of 16 slots does, one task's result each
 * with `publish`. Prints the seconds it took.
 *
 *     evalq_noop URL submit COUNT BATCH | drain COUNT | publish COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/queue/function_library.h"
#include "shared/queue/queue.h"
#include "shared/redis/conn.h"

enum { SLOTS = 16, LEASE_MS = 60000 };

static struct evq_error error;

static void check(enum evq_status status)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "evalq_noop: %s\n", error.message);
        exit(1);
    }
}

static uint32_t suite(struct evq_queue *queue)
{
    const struct evq_suite_offer offer = {.name = "quick",
                                          .digest = "00000000000000000000000000000001",
                                          .needs = "",
                                          .shards = 1,
                                          .every = 1,
                                          .definition = "{}",
                                          .where = "evalq_noop"};
    uint32_t class_number = 0;

    check(evq_queue_suite_register(queue, &offer, false, &class_number, &error));
    return class_number;
}

static void submit(struct evq_queue *queue, long count, long batch)
{
    static struct evq_submitted submitted[EVQ_QUEUE_BATCH_MAX];
    static char prints[EVQ_QUEUE_BATCH_MAX][EVQ_JOB_FINGERPRINT_CHARS + 1];

    for (long at = 0; at < count; at += batch) {
        struct evq_job *jobs[EVQ_QUEUE_BATCH_MAX];
        size_t jobs_now = (size_t)(count - at < batch ? count - at : batch);
        for (size_t i = 0; i < jobs_now; i++) {
            jobs[i] = evq_job_new();
            if (jobs[i] == NULL) {
                exit(1);
            }
            jobs[i]->run = "peer";
            jobs[i]->step = at + (long)i;
            jobs[i]->suite = "quick";
            jobs[i]->root = "here";
            jobs[i]->path = "step.safetensors";
            (void)snprintf(prints[i], sizeof prints[i], "%032ld", at + (long)i);
            jobs[i]->fingerprint = prints[i]; // As every checkpoint's that its client has read.
        }
        check(evq_queue_submit_batch(queue, (const struct evq_job *const *)jobs, jobs_now,
                                     submitted, NULL, &error));
        for (size_t i = 0; i < jobs_now; i++) {
            evq_job_free(jobs[i]);
        }
    }
}

static void publish(struct evq_queue *queue, const struct evq_claim *claim)
{
    const struct evq_metric metric = {.name = "one", .value = 1, .std_error = 0};
    struct evq_result *result = evq_result_new();
    bool duplicate = false;

    if (result == NULL) {
        exit(1);
    }
    result->job = claim->id;
    result->run = claim->job->run;
    result->step = claim->job->step;
    result->variant = claim->job->variant;
    result->suite = claim->job->suite;
    result->task = "t";
    result->metrics = &metric;
    result->metric_count = 1;
    check(evq_queue_publish(queue, claim->id, claim->token, result, &duplicate, &error));
    evq_result_free(result);
}

static void drain(struct evq_queue *queue, uint32_t class_number, long count, bool with_result)
{
    struct evq_claim *claims[SLOTS];
    struct evq_completion done[SLOTS];

    for (long all = 0, call = 0; all < count; call++) {
        struct evq_claimed claimed = {0};
        char request[32];
        (void)snprintf(request, sizeof request, "r%ld", call);
        const struct evq_claim_request wanted = {.worker = "evalq-noop",
                                                 .request = request,
                                                 .lease_ms = LEASE_MS,
                                                 .claims_max = SLOTS,
                                                 .classes = &class_number,
                                                 .class_count = 1};
        check(evq_queue_claim(queue, &wanted, claims, &claimed, &error));
        if (claimed.count == 0) {
            (void)fprintf(stderr, "evalq_noop: %ld of %ld jobs were there\n", all, count);
            exit(1);
        }
        for (uint32_t i = 0; i < claimed.count; i++) {
            if (with_result) {
                publish(queue, claims[i]);
            }
            done[i] = (struct evq_completion){.id = claims[i]->id, .token = claims[i]->token};
        }
        check(evq_queue_complete_many(queue, done, claimed.count, &error));
        for (uint32_t i = 0; i < claimed.count; i++) {
            check(done[i].status);
            evq_claim_free(claims[i]);
        }
        all += claimed.count;
    }
}

int main(int argc, char **argv)
{
    struct evq_conn *conn = NULL;
    struct evq_queue *queue = NULL;
    int64_t build = 0;
    long count = argc > 3 ? atol(argv[3]) : 0;
    long batch = argc > 4 ? atol(argv[4]) : 1;

    if (count < 1 || batch < 1 || batch > EVQ_QUEUE_BATCH_MAX) {
        (void)fprintf(stderr,
                      "usage: evalq_noop URL submit COUNT BATCH | drain COUNT | publish COUNT\n");
        return 2;
    }
    check(evq_conn_open(&(struct evq_conn_config){.url = argv[1], .name = "evalq-noop"}, &conn,
                        &error));
    check(evq_function_library_install(conn, &build, &error));
    check(evq_queue_open(conn, NULL, &queue, &error));
    uint32_t class_number = suite(queue);
    int64_t start_us = evq_clock_mono_us();
    if (strcmp(argv[2], "submit") == 0) {
        submit(queue, count, batch);
    } else {
        drain(queue, class_number, count, strcmp(argv[2], "publish") == 0);
    }
    (void)printf("%.6f\n", (double)(evq_clock_mono_us() - start_us) / 1e6);
    evq_queue_close(queue);
    evq_conn_close(conn);
    return 0;
}
