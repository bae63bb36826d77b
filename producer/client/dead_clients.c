#include "producer/client/dead_clients.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "producer/client/client.h"
#include "producer/client/submit_log/ring.h"
#include "producer/client/submit_log/ring_directory.h"
#include "shared/base/clock.h"

#define SHARE_MS 500 // The least time for one run.

struct runs {
    const char *queue;
    char **names;
    size_t count;
    bool failed;
};

static void add_run(void *context, const char *queue, const char *run)
{
    struct runs *runs = context;

    if (strcmp(queue, runs->queue) != 0) {
        return;
    }
    char **names = realloc(runs->names, (runs->count + 1) * sizeof(names[0]));
    if (names != NULL) {
        runs->names = names;
        names[runs->count] = strdup(run);
    }
    if (names == NULL || names[runs->count] == NULL) {
        runs->failed = true;
        return;
    }
    runs->count++;
}

static enum evq_status run_send(const struct evalq_options *options, const char *run,
                                int timeout_ms, struct evq_dead_clients *totals,
                                struct evq_error *err)
{
    struct evalq_options own = *options;
    struct evalq_client *client = NULL;
    struct evalq_stats stats;

    own.run = run;
    if (evalq_client_open(&own, &client) != EVALQ_OK) {
        return EVQ_OK; // All its ring files are in use, or they cannot be read.
    }
    int flushed = evalq_client_flush(client, timeout_ms);
    evalq_client_stats(client, &stats);
    totals->runs += stats.sent + stats.refused + stats.pending > 0;
    totals->sent += stats.sent;
    totals->refused += stats.refused;
    totals->kept += stats.pending;
    evalq_client_close(client);
    return flushed == EVALQ_UNAVAILABLE
               ? evq_error_set(err, EVQ_E_IO, "Redis is away: what is left of run '%s' stays", run)
               : EVQ_OK;
}

/* Divides the time between the runs that are left and one more share for other directories. A run
 * whose checkpoint was never completed uses up its share. */
static int share_ms(int64_t left_ms, size_t runs)
{
    const int64_t share = left_ms / (int64_t)(runs + 1);
    const int64_t least = left_ms < SHARE_MS ? left_ms : SHARE_MS;

    return (int)(share > least ? share : least);
}

/* Sends what is left in one ring directory. Each call begins with another run, because the time may
 * never be enough for all. */
static enum evq_status directory_send(const struct evalq_options *options, const char *directory,
                                      const char *queue, int64_t deadline_ms,
                                      struct evq_dead_clients *totals, struct evq_error *err)
{
    struct evalq_options own = *options;
    struct runs runs = {.queue = queue};

    own.ring_directory = directory;
    enum evq_status status = evq_ring_list(directory, add_run, &runs, err);
    if (status == EVQ_OK && runs.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "names of the runs in '%s'", directory);
    }
    const size_t first = runs.count > 0 ? evq_clock_random() % runs.count : 0;
    for (size_t at = 0; at < runs.count && status == EVQ_OK; at++) {
        const char *run = runs.names[(first + at) % runs.count];
        const int64_t left_ms = deadline_ms - evq_clock_mono_ms();
        totals->unseen += left_ms <= 0;
        status = left_ms > 0 ? run_send(&own, run, share_ms(left_ms, runs.count - at), totals, err)
                             : EVQ_OK;
    }
    for (size_t at = 0; at < runs.count; at++) {
        free(runs.names[at]);
    }
    free(runs.names);
    return status;
}

enum evq_status evq_dead_clients_send(const struct evalq_options *options, const char *queue,
                                      int timeout_ms, struct evq_dead_clients *ret_totals,
                                      struct evq_error *err)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + timeout_ms;
    struct evq_dead_clients totals = {.runs = 0};
    char home[PATH_MAX];
    unsigned at = 0;
    enum evq_status status = EVQ_OK;

    if (options->ring_directory != NULL && options->ring_directory[0] != '\0') {
        status = directory_send(options, options->ring_directory, queue, deadline_ms, &totals, err);
    } else {
        // Whichever had room at the time.
        while (status == EVQ_OK &&
               evq_ring_directory_find(&at, 0, home, sizeof(home), NULL) == EVQ_OK) {
            status = directory_send(options, home, queue, deadline_ms, &totals, err);
        }
    }
    if (status == EVQ_OK) {
        *ret_totals = totals;
    }
    return status;
}
