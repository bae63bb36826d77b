/*
 * How soon a job starts on an idle worker: from before the submit call to the START_NS that
 * noop_evaluator notes in LOG, one job after another, each a pause after the last one's end, as a
 * worker is idle between checkpoints. And the machine's own limit after the same pause: a byte that
 * goes as many hops from process to process as a job's way has (here, Redis, supervisor, Redis,
 * supervisor, child, program), and one round trip of a PING.
 *
 *     bench_start URL ROOT PATH LOG JOBS PAUSE_MS      ROOT, PATH: of a checkpoint
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/queue/queue.h"
#include "shared/redis/conn.h"
#include "tests/bench/row.h"

enum { REDIS, SUPERVISOR, CHILD, PROGRAM, HERE, PROCESSES, DEADLINE_MS = 60000 };

static const int route[] = {REDIS, SUPERVISOR, REDIS, SUPERVISOR, CHILD, PROGRAM};
enum { HOPS = sizeof route / sizeof route[0] };

struct chain {
    int inbox[PROCESSES][2];
    pid_t pids[PROCESSES];
    volatile int64_t *arrived_ns; // Shared: when the last hop ended.
};

static struct evq_error error;

static void must(bool good, const char *what)
{
    if (!good) {
        (void)fprintf(stderr, "bench_start: %s: %s\n", what,
                      error.message[0] != '\0' ? error.message : strerror(errno));
        exit(1);
    }
}

static void rest(long pause_ms)
{
    struct timespec left = {.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000};

    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) != 0) {
    }
}

/* ---- the machine's limit ---- */

/* Passes on the bytes that come to one process; each is the number of its hop. */
static void relay(const struct chain *chain, int self)
{
    unsigned char hop = 0;

    while (read(chain->inbox[self][0], &hop, 1) == 1) {
        if (hop + 1 == HOPS) {
            *chain->arrived_ns = bench_now_ns();
        }
        hop++;
        const int next = hop < HOPS ? route[hop] : HERE;
        if (write(chain->inbox[next][1], &hop, 1) != 1) {
            break;
        }
    }
    _exit(0);
}

static void measure_chain(long jobs, long pause_ms)
{
    struct chain chain;
    int64_t *spent = calloc((size_t)jobs, sizeof *spent);
    unsigned char hop = 0;

    chain.arrived_ns =
        mmap(NULL, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(spent != NULL && chain.arrived_ns != MAP_FAILED, "memory");
    for (int i = 0; i < PROCESSES; i++) {
        must(pipe(chain.inbox[i]) == 0, "pipe");
    }
    for (int i = 0; i < HERE; i++) {
        chain.pids[i] = fork();
        must(chain.pids[i] >= 0, "fork");
        if (chain.pids[i] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            relay(&chain, i);
        }
    }
    for (long i = 0; i < jobs; i++) {
        rest(pause_ms);
        hop = 0;
        const int64_t began = bench_now_ns();
        must(write(chain.inbox[route[0]][1], &hop, 1) == 1, "write");
        must(read(chain.inbox[HERE][0], &hop, 1) == 1, "read");
        spent[i] = *chain.arrived_ns - began;
    }
    for (int i = 0; i < HERE; i++) {
        (void)kill(chain.pids[i], SIGKILL);
        (void)waitpid(chain.pids[i], NULL, 0);
    }
    bench_quantiles("six hops between processes that do nothing", spent, (size_t)jobs, "us", 1e3);
    free(spent);
}

static void measure_ping(struct evq_conn *conn, long jobs, long pause_ms)
{
    static const char *const words[] = {"PING"};
    int64_t *spent = calloc((size_t)jobs, sizeof *spent);

    must(spent != NULL, "memory");
    for (long i = 0; i < jobs; i++) {
        struct evq_reply *reply = NULL;
        rest(pause_ms);
        const int64_t began = bench_now_ns();
        must(evq_conn_call(conn, 1, words, NULL, 0, &reply, &error) == EVQ_OK, "PING");
        spent[i] = bench_now_ns() - began;
        evq_reply_free(reply);
    }
    bench_quantiles("round trip of a PING", spent, (size_t)jobs, "us", 1e3);
    free(spent);
}

/* ---- jobs ---- */

/* Reads the log's new lines. Returns the START_NS of the attempt that ended in them; 0: none did.
 */
static int64_t ended(FILE *log)
{
    char line[512];
    long long start = 0;
    long long end = 0;

    clearerr(log);
    while (fgets(line, sizeof line, log) != NULL) {
        if (sscanf(line, "%*s %*d %*d %lld %lld", &start, &end) == 2 && end != 0) {
            return start;
        }
    }
    return 0;
}

static void submit(struct evq_queue *queue, const char *root, const char *path, long step)
{
    struct evq_submitted submitted;
    struct evq_job *job = evq_job_new();

    must(job != NULL, "memory");
    job->run = "bench";
    job->step = step;
    job->suite = "noop";
    job->root = root;
    job->path = path;
    must(evq_queue_submit(queue, job, 0, &submitted, &error) == EVQ_OK, "submit");
    must(submitted.answer == EVQ_SUBMIT_QUEUED, "the job is not queued");
    evq_job_free(job);
}

static void measure_jobs(struct evq_queue *queue, char **words, FILE *log, long jobs, long pause_ms)
{
    int64_t *started = calloc((size_t)jobs, sizeof *started);
    int64_t *called = calloc((size_t)jobs, sizeof *called);

    must(started != NULL && called != NULL, "memory");
    for (long i = -1; i < jobs; i++) { // The first one is not counted: it warms the way.
        const int64_t began = bench_now_ns();
        int64_t start = 0;
        submit(queue, words[2], words[3], i + 1);
        const int64_t answered = bench_now_ns();
        while ((start = ended(log)) == 0) {
            must(bench_now_ns() - began < (int64_t)DEADLINE_MS * 1000000, "the job does not end");
            rest(2); // Long after the start: looking must not be what the processors do.
        }
        if (i >= 0) {
            started[i] = start - began;
            called[i] = answered - began;
        }
        rest(pause_ms);
    }
    bench_quantiles("the submit call alone", called, (size_t)jobs, "us", 1e3);
    bench_quantiles("submit call to the program's start", started, (size_t)jobs, "us", 1e3);
    free(started);
    free(called);
}

int main(int argc, char **argv)
{
    struct evq_conn *conn = NULL;
    struct evq_queue *queue = NULL;
    const struct evq_conn_config config = {.url = argc == 7 ? argv[1] : "", .name = "bench-start"};

    if (argc != 7) {
        (void)fprintf(stderr, "usage: bench_start URL ROOT PATH LOG JOBS PAUSE_MS\n");
        return 2;
    }
    const long jobs = strtol(argv[5], NULL, 10);
    const long pause_ms = strtol(argv[6], NULL, 10);
    FILE *log = fopen(argv[4], "r");
    must(log != NULL && fseek(log, 0, SEEK_END) == 0, argv[4]);
    must(jobs > 0 && pause_ms >= 0, "JOBS or PAUSE_MS");
    must(evq_conn_open(&config, &conn, &error) == EVQ_OK, "open");
    must(evq_queue_open(conn, NULL, &queue, &error) == EVQ_OK, "open");
    measure_jobs(queue, argv, log, jobs, pause_ms);
    measure_ping(conn, jobs, pause_ms);
    measure_chain(jobs, pause_ms);
    (void)fclose(log);
    evq_queue_close(queue);
    evq_conn_close(conn);
    return 0;
}
