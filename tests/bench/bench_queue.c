/*
 * What the queue's verbs cost: jobs a second, and the server's microseconds and commands a job
 * (INFO commandstats), with the AOF off, everysec and always, through shared/queue/queue.h and by
 * hand on hiredis. A median of rounds, with the lowest and highest. Prints a table; asserts nothing
 * about speed.
 *
 *     bench_queue [JOBS [ROUNDS]]      Also: EVQ_BENCH_AOF=off measures that mode alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/queue/codec.h"
#include "tests/bench/by_hand.h"
#include "tests/bench/row.h"
#include "tests/fixture/queue.h"

enum {
    RUNS = 100,
    PIPELINE = 64,
    BATCH = 100,
    SLOTS = 16,
    ROUNDS_MAX = 25,
    ROWS_MAX = 16,
    DEEP = 100000
};

struct row {
    const char *name;
    double rate[ROUNDS_MAX];      // Jobs a second.
    double server_us[ROUNDS_MAX]; // Of FCALL, a job: by the wall clock.
    double
        cpu_us[ROUNDS_MAX]; // Of the server's main thread, a job: sockets too, other processes not.
    double commands[ROUNDS_MAX]; // That functions ran, a job.
    int rounds;
};

struct bench {
    struct fixture *fx;
    int jobs, rounds;
    struct evq_job **job;      // One for each.
    struct evq_buffer *record; // Encoded.
    struct by_hand *hand;
    struct row rows[ROWS_MAX];
    struct row *row; // Being measured.
    int64_t start_ns;
    double start_cpu_us;
};

static void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_queue: %s\n", err->message);
        exit(1);
    }
}

/* Server time of FCALL in microseconds, and how many other commands ran. */
static void server_cost(struct bench *bench, double *ret_us, double *ret_commands)
{
    struct evq_reply *reply = fixture_call(bench->fx->raw, "INFO", "commandstats", NULL);

    *ret_us = *ret_commands = 0;
    for (const char *line = reply->text; line != NULL && *line != '\0';) {
        char name[64];
        long long calls = 0, usec = 0;
        if (sscanf(line, "cmdstat_%63[^:]:calls=%lld,usec=%lld", name, &calls, &usec) == 3) {
            if (strcmp(name, "fcall") == 0) {
                *ret_us = (double)usec;
            } else if (strncmp(name, "config", 6) != 0 && strcmp(name, "info") != 0) {
                *ret_commands += (double)calls;
            }
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    evq_reply_free(reply);
}

/* CPU time of the server's main thread in microseconds. */
static double cpu_us(struct bench *bench)
{
    static const char *const names[] = {"used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"};
    struct evq_reply *reply = fixture_call(bench->fx->raw, "INFO", "cpu", NULL);
    double sum = 0;

    for (size_t i = 0; i < 2; i++) {
        const char *found = strstr(reply->text, names[i]);
        sum += found != NULL ? strtod(found + strlen(names[i]), NULL) * 1e6 : 0;
    }
    evq_reply_free(reply);
    return sum;
}

static void begin(struct bench *bench, const char *name)
{
    int at = 0;

    while (bench->rows[at].name != NULL && strcmp(bench->rows[at].name, name) != 0) {
        at++;
    }
    assert_true(at < ROWS_MAX);
    bench->row = &bench->rows[at];
    bench->row->name = name;
    evq_reply_free(fixture_call(bench->fx->raw, "CONFIG", "RESETSTAT", NULL));
    bench->start_cpu_us = cpu_us(bench);
    bench->start_ns = bench_now_ns();
}

static void end(struct bench *bench, int jobs)
{
    struct row *row = bench->row;
    double seconds = (double)(bench_now_ns() - bench->start_ns) / 1e9;
    double cpu = cpu_us(bench) - bench->start_cpu_us;
    double us, commands;

    server_cost(bench, &us, &commands);
    if (row->rounds < ROUNDS_MAX) {
        row->rate[row->rounds] = jobs / seconds;
        row->server_us[row->rounds] = us / jobs;
        row->cpu_us[row->rounds] = cpu / jobs;
        row->commands[row->rounds++] = commands / jobs;
    }
}

static void submit_pipelined(struct bench *bench)
{
    begin(bench, "submit, pipeline 64, hiredis by hand");
    for (int at = 0, sent = 0; at < bench->jobs; at++) {
        by_hand_submit(bench->hand, bench->job[at], &bench->record[at]);
        if (++sent == PIPELINE || at + 1 == bench->jobs) {
            by_hand_read(bench->hand, sent);
            sent = 0;
        }
    }
    end(bench, bench->jobs);
}

/* ahead: calls that the server works on while the next one is made. */
static void submit_batches_by_hand(struct bench *bench, const char *name, int ahead)
{
    int unread = 0;

    begin(bench, name);
    for (int at = 0; at + BATCH <= bench->jobs; at += BATCH) {
        by_hand_submit_batch(bench->hand, bench->job + at, bench->record + at, BATCH);
        if (++unread > ahead) {
            by_hand_read(bench->hand, 1);
            unread--;
        }
    }
    by_hand_read(bench->hand, unread);
    end(bench, bench->jobs / BATCH * BATCH);
}

static void submit_batches(struct bench *bench, const char *name)
{
    struct evq_error err = {EVQ_OK, ""};
    static struct evq_submitted submitted[BATCH];

    begin(bench, name);
    for (int at = 0; at + BATCH <= bench->jobs; at += BATCH) {
        must(evq_queue_submit_batch(bench->fx->queue,
                                    (const struct evq_job *const *)&bench->job[at], BATCH,
                                    submitted, NULL, &err),
             &err);
    }
    end(bench, bench->jobs / BATCH * BATCH);
}

static void drain_by_hand(struct bench *bench)
{
    begin(bench, "claim 16, complete 16, hiredis by hand");
    int all = by_hand_drain(bench->hand, bench->fx->classes[0]);
    end(bench, all);
}

static void submit_single(struct bench *bench)
{
    begin(bench, "submit, one after another, shared/queue/queue.h");
    for (int at = 0; at < bench->jobs; at++) {
        (void)fixture_submit_job(bench->fx, bench->job[at]);
    }
    end(bench, bench->jobs);
}

/* A claim of the worker's, a new one each time. text: 32 bytes, which it points to. */
static struct evq_claim_request request_new(struct bench *bench, uint32_t most, char *text)
{
    (void)snprintf(text, 32, "r%llu", (unsigned long long)bench->fx->request++);
    return (struct evq_claim_request){.worker = bench->fx->worker,
                                      .request = text,
                                      .lease_ms = EVQ_QUEUE_LEASE_MS,
                                      .claims_max = most,
                                      .classes = bench->fx->classes,
                                      .class_count = bench->fx->class_count};
}

static uint32_t claim(struct bench *bench, struct evq_claim **claims, uint32_t most)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claimed claimed = {0};
    char text[32];
    const struct evq_claim_request wanted = request_new(bench, most, text);

    must(evq_queue_claim(bench->fx->queue, &wanted, claims, &claimed, &err), &err);
    return claimed.count;
}

static void complete_pipelined(struct bench *bench, struct evq_claim **claims, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        by_hand_complete(bench->hand, claims[i]->id, claims[i]->token);
    }
    by_hand_read(bench->hand, (int)count);
}

/* Claims alone, completes alone: which costs what. Claims are kept until both are done. */
static void drain_apart(struct bench *bench)
{
    struct evq_claim **claims = calloc((size_t)bench->jobs + SLOTS, sizeof(struct evq_claim *));
    uint32_t all = 0, count = 0;

    assert_non_null(claims);
    begin(bench, "claim 16, shared/queue/queue.h");
    do {
        count = claim(bench, claims + all, SLOTS);
        all += count;
    } while (count > 0);
    end(bench, (int)all);
    begin(bench, "complete, pipeline 16, hiredis by hand");
    for (uint32_t at = 0; at < all; at += SLOTS) {
        complete_pipelined(bench, claims + at, all - at < SLOTS ? all - at : SLOTS);
    }
    end(bench, (int)all);
    for (uint32_t at = 0; at < all; at++) {
        evq_claim_free(claims[at]);
    }
    free(claims);
}

static void drain_together(struct bench *bench)
{
    struct evq_claim *claims[SLOTS];
    int all = 0;

    begin(bench, "claim 16, 16 pipelined completes");
    for (uint32_t count = 1; count > 0; all += (int)count) {
        count = claim(bench, claims, SLOTS);
        complete_pipelined(bench, claims, count);
        for (uint32_t i = 0; i < count; i++) {
            evq_claim_free(claims[i]);
        }
    }
    end(bench, all);
}

/* As a supervisor of 16 slots does: what ended together goes with the next claim, in one write. */
static void drain_many(struct bench *bench, const char *name)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *held[SLOTS];
    struct evq_completion done[SLOTS];
    int all = 0;

    begin(bench, name);
    for (uint32_t count = claim(bench, held, SLOTS); count > 0;) {
        struct evq_claim *next[SLOTS];
        struct evq_claimed claimed = {0};
        enum evq_status completed = EVQ_OK;
        char text[32];
        const struct evq_claim_request wanted = request_new(bench, SLOTS, text);
        for (uint32_t i = 0; i < count; i++) {
            done[i] = (struct evq_completion){.id = held[i]->id, .token = held[i]->token};
        }
        must(evq_queue_complete_many_and_claim(bench->fx->queue, done, count, &wanted, &completed,
                                               next, &claimed, &err),
             &err);
        must(completed, &err);
        for (uint32_t i = 0; i < count; i++) {
            must(done[i].status, &err);
            evq_claim_free(held[i]);
        }
        all += (int)count;
        count = claimed.count;
        memcpy(held, next, count * sizeof(struct evq_claim *));
    }
    end(bench, all);
}

static void beat(struct bench *bench)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claims[SLOTS];
    struct evq_beat beats[SLOTS];
    uint32_t count = claim(bench, claims, SLOTS);
    int calls = bench->jobs / SLOTS;

    for (uint32_t i = 0; i < count; i++) {
        beats[i] = (struct evq_beat){.id = claims[i]->id,
                                     .token = claims[i]->token,
                                     .done = 1,
                                     .total = 2,
                                     .status = "compute"};
    }
    begin(bench, "heartbeat of 16, an attempt");
    for (int i = 0; i < calls; i++) {
        must(evq_queue_heartbeat(bench->fx->queue, bench->fx->worker, "{}", EVQ_QUEUE_LEASE_MS,
                                 beats, count, NULL, &err),
             &err);
    }
    end(bench, calls * (int)count);
    complete_pipelined(bench, claims, count);
    for (uint32_t i = 0; i < count; i++) {
        evq_claim_free(claims[i]);
    }
}

static void drain_fused(struct bench *bench)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *held = NULL;
    int all = 0;

    begin(bench, "complete and claim in one call");
    for (uint32_t count = claim(bench, &held, 1); count > 0; all++) {
        struct evq_claim *next = NULL;
        struct evq_claimed claimed = {0};
        enum evq_status completed = EVQ_OK;
        char text[32];
        const struct evq_claim_request wanted = request_new(bench, 1, text);
        must(evq_queue_complete_and_claim(bench->fx->queue, held->id, held->token, &wanted,
                                          &completed, &next, &claimed, &err),
             &err);
        evq_claim_free(held);
        held = next;
        count = claimed.count;
    }
    end(bench, all);
}

static void make_jobs(struct bench *bench)
{
    struct evq_error err = {EVQ_OK, ""};
    static const struct evq_pair params[] = {
        {"limit", "1000"},         {"batch_size", "32"},
        {"seed", "1234"},          {"template", "question-answer"},
        {"output_format", "json"}, {"generation", "greedy"}};

    bench->job = calloc((size_t)bench->jobs, sizeof(struct evq_job *));
    bench->record = calloc((size_t)bench->jobs, sizeof(struct evq_buffer));
    assert_true(bench->job != NULL && bench->record != NULL);
    for (int at = 0; at < bench->jobs; at++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "run-%03d/%d/regular/quick", at % RUNS, at / RUNS * 100);
        bench->job[at] = fixture_job(id);
        bench->job[at]->params = params;
        bench->job[at]->param_count = sizeof params / sizeof params[0];
        must(evq_codec_job_encode(bench->job[at], &bench->record[at], &err), &err);
    }
}

/* The same jobs over so many runs, in step order; the prepared records stay those of RUNS. */
static void jobs_spread(struct bench *bench, int runs)
{
    static char names[RUNS][16];

    for (int at = 0; at < bench->jobs; at++) {
        (void)snprintf(names[at % runs], sizeof names[0], "run-%03d", at % runs);
        bench->job[at]->run = names[at % runs];
        bench->job[at]->step = at / runs * 100;
    }
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void report(struct bench *bench, const char *mode)
{
    (void)printf("\nAOF %s\n%-44s %8s %17s %9s %7s %7s %9s\n", mode, "", "jobs/s", "lowest-highest",
                 "server us", "lowest", "CPU us", "commands");
    for (struct row *row = bench->rows; row->name != NULL; row++) {
        size_t count = (size_t)row->rounds;
        qsort(row->rate, count, sizeof(double), by_value);
        qsort(row->server_us, count, sizeof(double), by_value);
        qsort(row->cpu_us, count, sizeof(double), by_value);
        qsort(row->commands, count, sizeof(double), by_value);
        (void)printf("%-44s %8.0f %8.0f-%-8.0f %9.1f %7.1f %7.1f %9.1f\n", row->name,
                     row->rate[count / 2], row->rate[0], row->rate[count - 1],
                     row->server_us[count / 2], row->server_us[0], row->cpu_us[count / 2],
                     row->commands[count / 2]);
    }
    memset(bench->rows, 0, sizeof bench->rows);
    (void)fflush(stdout);
}

static void measure(struct bench *bench, const char *mode)
{
    const char *const off[] = {"--appendonly", "no", "--save", "", NULL};
    const char *const everysec[] = {
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", NULL};
    const char *const always[] = {
        "--appendonly", "yes", "--appendfsync", "always", "--save", "", NULL};
    const struct fixture_redis_config config = {.options = mode[0] == 'o'   ? off
                                                           : mode[0] == 'e' ? everysec
                                                                            : always};

    bench->fx = fixture_open(&config);
    bench->hand = by_hand_open(bench->fx->redis->socket, evq_queue_prefix(bench->fx->queue),
                               bench->fx->worker);
    for (int round = 0; round < bench->rounds; round++) {
        fixture_reset(bench->fx);
        submit_pipelined(bench);
        drain_apart(bench);
        fixture_reset(bench->fx);
        submit_batches(bench, "submit, 100 a call, shared/queue/queue.h");
        drain_together(bench);
        fixture_reset(bench->fx);
        submit_batches_by_hand(bench, "submit, 100 a call, hiredis by hand", 0);
        beat(bench);
        drain_fused(bench);
        fixture_reset(bench->fx);
        submit_single(bench);
        drain_many(bench, "claim 16, complete 16, shared/queue/queue.h");
        fixture_reset(bench->fx);
        submit_batches(bench, "submit, 100 a call, shared/queue/queue.h");
        drain_by_hand(bench);
        fixture_reset(bench->fx);
        jobs_spread(bench, 1); // As a trainer's client sends them.
        submit_batches(bench, "submit, 100 a call, one run");
        drain_many(bench, "claim 16, complete 16, one run");
        fixture_reset(bench->fx);
        submit_batches_by_hand(bench, "submit, 100 a call, one run, two in flight", 1);
        jobs_spread(bench, RUNS);
    }
    report(bench, mode);
    by_hand_close(bench->hand);
    fixture_close(bench->fx);
}

/* Redis's own memory a queued job at 100,000 of them. */
static void measure_memory(struct bench *bench)
{
    struct evq_error err = {EVQ_OK, ""};
    static struct evq_submitted submitted[BATCH];

    bench->fx = fixture_open(NULL);
    int64_t before = 0, after = 0;
    for (int turn = 0; turn < 2; turn++) {
        struct evq_reply *reply = fixture_call(bench->fx->raw, "INFO", "memory", NULL);
        const char *used = strstr(reply->text, "used_memory:");
        before = after;
        after = used != NULL ? atoll(used + strlen("used_memory:")) : 0;
        evq_reply_free(reply);
        for (int at = 0; turn == 0 && at < DEEP; at += BATCH) {
            const struct evq_job *jobs[BATCH];
            for (int i = 0; i < BATCH; i++) {
                struct evq_job *job = bench->job[(at + i) % bench->jobs];
                job->step = (at + i) / RUNS * 100;
                jobs[i] = job;
            }
            must(evq_queue_submit_batch(bench->fx->queue, jobs, BATCH, submitted, NULL, &err),
                 &err);
        }
    }
    (void)printf("\n%d queued jobs, records of %zu bytes: %lld bytes a job\n", DEEP,
                 bench->record[0].bytes, (long long)(after - before) / DEEP);
    fixture_close(bench->fx);
}

int main(int argc, char **argv)
{
    struct bench bench = {.jobs = argc > 1 ? atoi(argv[1]) : 20000,
                          .rounds = argc > 2 ? atoi(argv[2]) : 5};
    const char *const modes[] = {"off", "everysec", "always"};
    const char *only = getenv("EVQ_BENCH_AOF");
    struct utsname machine;

    if (bench.jobs < DEEP / 100 || bench.rounds < 1 || bench.rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: bench_queue [JOBS, 1000 or more [ROUNDS, 1 to %d]]\n",
                      ROUNDS_MAX);
        return 2;
    }
    bench.jobs = bench.jobs / BATCH * BATCH;
    make_jobs(&bench);
    (void)uname(&machine);
    (void)printf("bench_queue: %s %s, %ld CPUs; %d jobs of %d runs in step order (no random "
                 "numbers), records of %zu bytes, "
                 "median of %d rounds\n",
                 machine.sysname, machine.machine, sysconf(_SC_NPROCESSORS_ONLN), bench.jobs, RUNS,
                 bench.record[0].bytes, bench.rounds);
    for (size_t i = 0; i < 3; i++) {
        if (only == NULL || strcmp(only, modes[i]) == 0) {
            measure(&bench, modes[i]);
        }
    }
    measure_memory(&bench);
    for (int at = 0; at < bench.jobs; at++) {
        evq_buffer_free(&bench.record[at]);
        evq_job_free(bench.job[at]);
    }
    free(bench.record);
    free(bench.job);
    return 0;
}
