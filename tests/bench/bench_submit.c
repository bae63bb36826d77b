/*
 * What evalq_client_submit costs the training thread: p50, p99 and the most, with Redis healthy,
 * slow (stopped for 50 ms of every 100), stopped (SIGSTOP) and away, one submit after another and
 * with pauses between them as in training. Prints a table, and what the slowest of calls with
 * pauses waited for: page faults, the scheduler, or neither. Asserts nothing.
 *
 *     bench_submit [SUBMITS [RING_DIRECTORY]]      Also: EVQ_BENCH_AOF=off|everysec|always; off by
 * default.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/evalq.h"
#include "tests/bench/row.h"
#include "tests/fixture/queue.h"
#include "tests/fixture/safetensors.h"

/* Training's own work between two submits: keeps the core and the caches busy. */
static void work(int64_t ns)
{
    static volatile unsigned char memory[1 << 20];
    int64_t end = bench_now_ns() + ns;

    while (bench_now_ns() < end) {
        for (size_t at = 0; at < sizeof(memory); at += 64) {
            memory[at]++;
        }
    }
}

struct waits {
    long faults, switches; // Of this thread.
};

static struct waits waits_so_far(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_THREAD, &usage);
    return (struct waits){.faults = usage.ru_minflt + usage.ru_majflt,
                          .switches = usage.ru_nvcsw + usage.ru_nivcsw};
}

/* A name for each step, as a training has. */
static void step_path(const char *directory, int step, char out[160])
{
    (void)snprintf(out, 160, "%s/step-%d.safetensors", directory, step);
}

/* The slowest of those calls that neither met a page fault nor gave the processor away is what
 * cold caches and the machine cost. */
static void watch(struct evalq_client *client, const char *directory, int submits)
{
    struct waits all = {0};
    int64_t slowest = 0;

    for (int at = 0; at < submits; at++) {
        char path[160];
        step_path(directory, at, path);
        struct evalq_checkpoint checkpoint = {.path = path, .step = at, .suites = "quick"};
        work(10000000);
        const struct waits before = waits_so_far();
        const int64_t start = bench_now_ns();
        (void)evalq_client_submit(client, &checkpoint);
        const int64_t spent = bench_now_ns() - start;
        const struct waits after = waits_so_far();
        const bool waited = after.faults > before.faults || after.switches > before.switches;
        all.faults += after.faults - before.faults;
        all.switches += after.switches - before.switches;
        slowest = spent > slowest && !waited ? spent : slowest;
    }
    printf("watched: %d submits with 10 ms of work between them: %ld page faults and %ld switches "
           "inside them; the slowest without either %.2f us\n",
           submits, all.faults, all.switches, 1e-3 * (double)slowest);
}

static void measure(const char *name, const char *redis, const char *directory, const char *rings,
                    int submits, int64_t pause_ns)
{
    char config[160];
    char path[160];
    char run[64];
    struct evalq_client *client = NULL;
    int64_t *spent = calloc((size_t)submits, sizeof(*spent));
    int full = 0;

    snprintf(config, sizeof(config), "%s/evalq.yaml", directory);
    snprintf(run, sizeof(run), "bench-%s", name);
    struct evalq_options options = {
        .url = redis, .config = config, .run = run, .ring_directory = rings, .quiet = 1};
    if (spent == NULL || evalq_client_open(&options, &client) != EVALQ_OK) {
        fprintf(stderr, "open: %s\n", evalq_client_error(NULL));
        exit(1);
    }
    for (int at = 0; at < submits; at++) {
        step_path(directory, at, path);
        struct evalq_checkpoint checkpoint = {.path = path, .step = at, .suites = "quick"};
        if (pause_ns > 0) {
            work(pause_ns);
        }
        int64_t start = bench_now_ns();
        full += evalq_client_submit(client, &checkpoint) != EVALQ_OK;
        spent[at] = bench_now_ns() - start;
    }
    qsort(spent, (size_t)submits, sizeof(*spent), bench_by_value);
    printf("%-22s %8d %9.2f %9.2f %9.2f %9.2f %8d\n", name, submits,
           1e-3 * (double)spent[submits / 2], 1e-3 * (double)spent[submits * 99 / 100],
           1e-3 * (double)spent[submits * 999 / 1000], 1e-3 * (double)spent[submits - 1], full);
    fflush(stdout);
    if (strcmp(name, "healthy-each-10ms") == 0) {
        watch(client, directory, submits);
    }
    evalq_client_close(client);
    free(spent);
}

/* A child that stops Redis for half of the time, until it is killed. */
static pid_t slow_start(pid_t redis)
{
    const struct timespec half = {.tv_nsec = 50000000};
    pid_t child = fork();

    while (child == 0) {
        (void)kill(redis, SIGSTOP);
        (void)nanosleep(&half, NULL);
        (void)kill(redis, SIGCONT);
        (void)nanosleep(&half, NULL);
        if (getppid() == 1) {
            _exit(0);
        }
    }
    return child;
}

static void slow_stop(pid_t child, pid_t redis)
{
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    (void)kill(redis, SIGCONT);
}

int main(int argc, char **argv)
{
    int submits = argc > 1 ? atoi(argv[1]) : 2000;
    char directory[64];
    char text[256];
    const char *mode = getenv("EVQ_BENCH_AOF") != NULL ? getenv("EVQ_BENCH_AOF") : "off";
    const struct fixture_redis_config redis = {.options = bench_redis_options(mode)};

    if (redis.options == NULL || submits < 10) {
        fprintf(stderr, "usage: EVQ_BENCH_AOF=off|everysec|always bench_submit [SUBMITS, 10 or "
                        "more [RING_DIRECTORY]]\n");
        return 2;
    }
    struct fixture *fx = fixture_open(&redis);
    fixture_dir_make(directory);
    const char *rings = argc > 2 ? argv[2] : directory;
    snprintf(text, sizeof(text), "%s/evalq.yaml", directory);
    FILE *file = fopen(text, "w");
    fprintf(file, "roots:\n  bench: %s\n", directory);
    fclose(file);
    float values[1024] = {0};
    struct fixture_tensor tensor = {
        .name = "w", .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {1024}, .data = values};
    char first[160];
    step_path(directory, 0, first);
    fixture_safetensors(first, &tensor, 1);
    for (int step = 1; step < submits; step++) { // All steps have one file.
        char path[160];
        step_path(directory, step, path);
        if (link(first, path) != 0) {
            perror(path);
            return 1;
        }
    }
    printf("%-22s %8s %9s %9s %9s %9s %8s\n", "evalq_client_submit", "submits", "p50 us", "p99 us",
           "p99.9 us", "max us", "full");
    measure("healthy", fx->redis->url, directory, rings, submits, 0);
    measure("healthy-each-10ms", fx->redis->url, directory, rings, submits / 10, 10000000);
    pid_t slow = slow_start(fx->redis->pid);
    measure("slow", fx->redis->url, directory, rings, submits, 0);
    measure("slow-each-10ms", fx->redis->url, directory, rings, submits / 10, 10000000);
    slow_stop(slow, fx->redis->pid);
    fixture_redis_suspend(fx->redis);
    measure("stopped", fx->redis->url, directory, rings, submits, 0);
    measure("stopped-each-10ms", fx->redis->url, directory, rings, submits / 10, 10000000);
    fixture_redis_resume(fx->redis);
    fixture_redis_kill(fx->redis);
    measure("away", fx->redis->url, directory, rings, submits, 0);
    measure("away-each-10ms", fx->redis->url, directory, rings, submits / 10, 10000000);
    fixture_redis_restart(fx->redis);
    fixture_dir_remove(directory);
    fixture_close(fx);
    return 0;
}
