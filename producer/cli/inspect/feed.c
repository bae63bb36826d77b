#include "producer/cli/inspect/feed.h"

#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"

#define RUNS_MAX 100000

struct followed {
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    int64_t cursor;
    struct evq_run_counts counts;   // Counts at the last poll.
    struct evq_run_counts baseline; // Counts at the poll that skipped old results.
    bool moved;                     // The counts have differed from the baseline.
    bool returned;                  // evq_feed_next_run() returned this run.
    bool fresh; // Something may have been published since its results were read.
};

struct evq_feed {
    struct evq_queue *queue;
    bool every;
    struct followed *runs;
    size_t count;
    size_t capacity;
    evq_result_fn on_result;
    void *context;
};

/* The run's record, made when it is new; NULL when out of memory. */
static struct followed *follow(struct evq_feed *feed, const char *run)
{
    for (size_t i = 0; i < feed->count; i++) {
        if (strcmp(feed->runs[i].run, run) == 0) {
            return &feed->runs[i];
        }
    }
    if (feed->count == feed->capacity) {
        size_t capacity = feed->capacity == 0 ? 8 : 2 * feed->capacity;
        struct followed *runs =
            capacity > RUNS_MAX ? NULL : realloc(feed->runs, capacity * sizeof *runs);
        if (runs == NULL) {
            return NULL;
        }
        feed->runs = runs;
        feed->capacity = capacity;
    }
    struct followed *added = &feed->runs[feed->count++];
    memset(added, 0, sizeof *added);
    memcpy(added->run, run, strnlen(run, EVQ_JOB_RUN_BYTES_MAX));
    added->fresh = true;
    return added;
}

struct evq_feed *evq_feed_new(struct evq_queue *queue, const char *run)
{
    struct evq_feed *feed = calloc(1, sizeof *feed);
    if (feed == NULL) {
        return NULL;
    }
    feed->queue = queue;
    feed->every = run == NULL;
    if (run != NULL && follow(feed, run) == NULL) {
        evq_feed_free(feed);
        return NULL;
    }
    return feed;
}

void evq_feed_free(struct evq_feed *feed)
{
    if (feed != NULL) {
        free(feed->runs);
        free(feed);
    }
}

/* Counts as the view of runs gives them. */
static void note_counts(struct followed *one, const json_t *counts)
{
    struct evq_run_counts seen = {0};
    for (size_t i = 0; i < EVQ_JOB_STATE_COUNT; i++) {
        seen.by_state[i] = evq_json_integer(counts, evq_job_state_name((enum evq_job_state)i), 0);
    }
    seen.open = seen.by_state[EVQ_JOB_QUEUED] + seen.by_state[EVQ_JOB_DELAYED] +
                seen.by_state[EVQ_JOB_RUNNING];
    // A task can be published while its job still runs. The counts do not show that.
    one->fresh = one->fresh || seen.by_state[EVQ_JOB_RUNNING] > 0 ||
                 memcmp(&seen, &one->counts, sizeof seen) != 0;
    one->counts = seen;
    one->moved = one->moved || memcmp(&seen, &one->baseline, sizeof seen) != 0;
}

static enum evq_status find_runs(struct evq_feed *feed, struct evq_error *err)
{
    char *text = NULL;
    json_t *view = NULL;
    size_t index = 0;
    const json_t *item = NULL;
    enum evq_status status = evq_queue_runs(feed->queue, "", &text, err); // The newest.
    if (status == EVQ_OK) {
        status = evq_json_take(text, &view, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    json_array_foreach(json_object_get(view, "runs"), index, item)
    {
        const char *run = evq_json_text(item, "run", NULL);
        struct followed *one = run != NULL ? follow(feed, run) : NULL;
        if (one != NULL) {
            note_counts(one, json_object_get(item, "counts"));
        } else if (run != NULL) {
            status =
                evq_error_set(err, EVQ_E_NOMEM, "no memory to follow %zu runs", feed->count + 1);
            break;
        }
    }
    json_decref(view);
    return status;
}

static void take(void *context, const struct evq_result *result)
{
    struct evq_feed *feed = context;
    if (feed->on_result != NULL) {
        feed->on_result(feed->context, result);
    }
}

enum evq_status evq_feed_poll(struct evq_feed *feed, evq_result_fn on_result, void *context,
                              struct evq_error *err)
{
    enum evq_status status = feed->every ? find_runs(feed, err) : EVQ_OK;
    feed->on_result = on_result;
    feed->context = context;
    for (size_t i = 0; status == EVQ_OK && i < feed->count; i++) {
        struct followed *one = &feed->runs[i];
        if (on_result == NULL) {
            one->baseline = one->counts;
            one->moved = false;
        }
        if (!one->fresh && feed->every) {
            continue;
        }
        for (int64_t before = -1; status == EVQ_OK && one->cursor != before;) {
            before = one->cursor;
            status = evq_queue_run_results(feed->queue, one->run, &one->cursor, take, feed, err);
        }
        one->fresh = status != EVQ_OK;
    }
    return status;
}

enum evq_status evq_feed_counts(struct evq_feed *feed, struct evq_run_counts *ret_counts,
                                struct evq_error *err)
{
    struct evq_run_counts sum = {0};
    for (size_t i = 0; i < feed->count; i++) {
        struct followed *one = &feed->runs[i];
        enum evq_status status = EVQ_OK;
        if (!feed->every) {
            one->moved = true;
            status = evq_queue_run_counts(feed->queue, one->run, &one->counts, err);
        }
        if (status == EVQ_E_NOT_FOUND || !one->moved) {
            continue;
        }
        if (status != EVQ_OK) {
            return status;
        }
        for (size_t s = 0; s < EVQ_JOB_STATE_COUNT; s++) {
            int64_t before = s >= EVQ_JOB_DONE ? one->baseline.by_state[s] : 0;
            int64_t now = one->counts.by_state[s];
            sum.by_state[s] += now > before ? now - before : 0;
        }
        sum.open += one->counts.open;
    }
    *ret_counts = sum;
    return EVQ_OK;
}

const char *evq_feed_next_run(struct evq_feed *feed)
{
    for (size_t i = 0; i < feed->count; i++) {
        struct followed *one = &feed->runs[i];
        if (one->moved && !one->returned) {
            one->returned = true;
            return one->run;
        }
    }
    return NULL;
}
