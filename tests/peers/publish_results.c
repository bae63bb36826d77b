/*
 * Publishes results as workers do, for tests of what becomes of them: publish_results URL RUN COUNT
 * SEED [TRACKER=VALUE...]. Submits COUNT jobs of steps 10, 20, ..., claims them, and shuffles them.
 * Then, for each number N that comes on standard input, publishes the next N and prints of each
 * "STEP ACCURACY LOSS" and of all "done". The loss of every 97th step is NaN.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/function_library.h"
#include "shared/queue/queue.h"
#include "shared/redis/conn.h"
#include "tests/fixture/claim_result.h"

#define COUNT_MAX    100000
#define LEASE_MS     3600000
#define TRACKERS_MAX 8

static struct evq_error error;

static void check(enum evq_status status, const char *what)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "publish_results: %s: %s\n", what, error.message);
        exit(1);
    }
}

static void job_submit(struct evq_queue *queue, const char *run, int64_t step)
{
    struct evq_submitted submitted;
    char path[64];
    struct evq_job *job = evq_job_new();

    if (job == NULL) {
        exit(1);
    }
    (void)snprintf(path, sizeof path, "step-%" PRId64, step);
    job->run = run;
    job->step = step;
    job->suite = "quick";
    job->root = "here";
    job->path = path;
    check(evq_queue_submit(queue, job, 0, &submitted, &error), "submit");
    evq_job_free(job);
}

static void jobs_claim(struct evq_queue *queue, const char *run, const uint32_t *class,
                       struct evq_claim **claims, uint32_t count)
{
    struct evq_claimed claimed;
    char request[96];

    for (uint32_t total = 0; total < count; total += claimed.count) {
        (void)snprintf(request, sizeof request, "%s-%u", run,
                       total); // A new one: the same again gives the same claims.
        struct evq_claim_request ask = {.worker = "publisher",
                                        .request = request,
                                        .lease_ms = LEASE_MS,
                                        .claims_max = count - total < 64 ? count - total : 64,
                                        .classes = class,
                                        .class_count = 1};
        check(evq_queue_claim(queue, &ask, claims + total, &claimed, &error), "claim");
        if (claimed.count == 0) {
            (void)fprintf(stderr, "publish_results: claimed %u of %u\n", total, count);
            exit(1);
        }
    }
}

static void result_publish(struct evq_queue *queue, const struct evq_claim *claim,
                           const struct evq_pair *trackers, size_t tracker_count)
{
    bool duplicate = false;
    char checkpoint[64];
    const double step = (double)claim->job->step;
    const double loss = claim->job->step / 10 % 97 == 0 ? NAN : 3.0 / (1.0 + step / 700.0);
    const struct evq_metric metrics[] = {
        {.name = "accuracy",
         .value = 1.0 - 1.0 / (1.0 + step / 300.0),
         .higher_is_better = 1,
         .std_error = NAN},
        {.name = "loss,none", .value = loss, .higher_is_better = -1, .std_error = 0.25}};
    struct evq_result *result = claim_result(claim, "digits");

    result->metrics = metrics;
    result->metric_count = 2;
    result->trackers = trackers;
    result->tracker_count = tracker_count;
    (void)snprintf(checkpoint, sizeof checkpoint, "here:step-%" PRId64, result->step);
    result->checkpoint = checkpoint;
    check(evq_queue_publish(queue, claim->id, claim->token, result, &duplicate, &error), "publish");
    check(evq_queue_complete(queue, claim->id, claim->token, &error), "complete");
    (void)printf("%" PRId64 " %.17g %.17g\n", result->step, metrics[0].value, metrics[1].value);
    evq_result_free(result);
}

static void shuffle(struct evq_claim **claims, size_t count, uint64_t random)
{
    for (size_t i = count - 1; i > 0; i--) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const size_t other = (size_t)(random >> 33) % (i + 1);
        struct evq_claim *moved = claims[i];
        claims[i] = claims[other];
        claims[other] = moved;
    }
}

int main(int argc, char **argv)
{
    struct evq_conn *conn = NULL;
    struct evq_queue *queue = NULL;
    struct evq_suite_offer offer = {.name = "quick",
                                    .digest = "00000000000000000000000000000001",
                                    .needs = "",
                                    .shards = 1,
                                    .every = 1,
                                    .definition = "{}",
                                    .where = "publish_results"};
    struct evq_pair trackers[TRACKERS_MAX];
    size_t tracker_count = 0;
    uint32_t class = 0;
    int64_t build = 0;
    uint32_t next = 0;
    unsigned wanted = 0;

    const unsigned long count = argc > 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (count < 1 || count > COUNT_MAX || argc > 5 + TRACKERS_MAX) {
        (void)fprintf(stderr, "usage: publish_results URL RUN COUNT SEED [TRACKER=VALUE...]\n");
        return 2;
    }
    for (int i = 5; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (equals != NULL) {
            *equals = '\0';
            trackers[tracker_count++] = (struct evq_pair){argv[i], equals + 1};
        }
    }
    struct evq_claim **claims = calloc(count, sizeof *claims);
    if (claims == NULL) {
        return 1;
    }
    check(evq_conn_open(&(struct evq_conn_config){.url = argv[1], .name = "publisher"}, &conn,
                        &error),
          "connect");
    check(evq_function_library_install(conn, &build, &error), "install");
    check(evq_queue_open(conn, "main", &queue, &error), "open");
    check(evq_queue_suite_register(queue, &offer, false, &class, &error), "register the suite");
    for (unsigned long i = 0; i < count; i++) {
        job_submit(queue, argv[2], 10 * (int64_t)(i + 1));
    }
    jobs_claim(queue, argv[2], &class, claims, (uint32_t)count);
    shuffle(claims, count, strtoull(argv[4], NULL, 10));
    (void)puts("ready");
    (void)fflush(stdout);
    while (scanf("%u", &wanted) == 1) {
        for (; wanted > 0 && next < count; wanted--, next++) {
            result_publish(queue, claims[next], trackers, tracker_count);
            evq_claim_free(claims[next]);
        }
        (void)puts("done");
        (void)fflush(stdout);
    }
    free(claims);
    evq_queue_close(queue);
    evq_conn_close(conn);
    return 0;
}
