#include "producer/cli/feed.h"

#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"

#define RUNS_MAX 100000

struct followed {
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    int64_t cursor;
    bool active;
};

struct evq_feed {
    struct evq_queue *queue;
    bool every;
    struct followed *runs;
    size_t count;
    size_t capacity;
    struct followed *current; // During a poll.
    evq_result_fn on_result;
    void *context;
    size_t taken;
};

static bool follow(struct evq_feed *feed, const char *run)
{
    for (size_t i = 0; i < feed->count; i++) {
        if (strcmp(feed->runs[i].run, run) == 0) {
            return true;
        }
    }
    if (feed->count == feed->capacity) {
        size_t capacity = feed->capacity == 0 ? 8 : 2 * feed->capacity;
        struct followed *runs =
            capacity > RUNS_MAX ? NULL : realloc(feed->runs, capacity * sizeof *runs);
        if (runs == NULL) {
            return false;
        }
        feed->runs = runs;
        feed->capacity = capacity;
    }
    struct followed *added = &feed->runs[feed->count++];
    memset(added, 0, sizeof *added);
    memcpy(added->run, run, strnlen(run, EVQ_JOB_RUN_BYTES_MAX));
    return true;
}

struct evq_feed *evq_feed_new(struct evq_queue *queue, const char *run)
{
    struct evq_feed *feed = calloc(1, sizeof *feed);
    if (feed == NULL) {
        return NULL;
    }
    feed->queue = queue;
    feed->every = run == NULL;
    if (run != NULL && !follow(feed, run)) {
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

static enum evq_status find_runs(struct evq_feed *feed, struct evq_error *err)
{
    char *text = NULL;
    json_t *view = NULL;
    size_t index = 0;
    const json_t *item = NULL;
    enum evq_status status = evq_queue_runs(feed->queue, &text, err);
    if (status == EVQ_OK) {
        status = evq_json_take(text, &view, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    json_array_foreach(json_object_get(view, "runs"), index, item)
    {
        const char *run = evq_json_text(item, "run", NULL);
        if (run != NULL && !follow(feed, run)) {
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
    feed->taken++;
    if (feed->on_result != NULL) {
        feed->current->active = true;
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
        feed->current = &feed->runs[i];
        do {
            feed->taken = 0;
            status = evq_queue_run_results(feed->queue, feed->runs[i].run, &feed->runs[i].cursor,
                                           take, feed, err);
        } while (status == EVQ_OK && feed->taken > 0);
    }
    return status;
}

enum evq_status evq_feed_counts(struct evq_feed *feed, struct evq_run_counts *ret_counts,
                                struct evq_error *err)
{
    struct evq_run_counts sum = {0};
    for (size_t i = 0; i < feed->count; i++) {
        struct evq_run_counts one;
        enum evq_status status = evq_queue_run_counts(feed->queue, feed->runs[i].run, &one, err);
        if (status == EVQ_E_NOT_FOUND) {
            continue; // Forgotten meanwhile.
        }
        if (status != EVQ_OK) {
            return status;
        }
        for (size_t s = 0; s < EVQ_JOB_STATE_COUNT; s++) {
            sum.by_state[s] += one.by_state[s];
        }
        sum.open += one.open;
    }
    *ret_counts = sum;
    return EVQ_OK;
}

size_t evq_feed_run_count(const struct evq_feed *feed)
{
    return feed->count;
}

const char *evq_feed_run(const struct evq_feed *feed, size_t index)
{
    return feed->runs[index].run;
}

bool evq_feed_run_active(const struct evq_feed *feed, size_t index)
{
    return feed->runs[index].active;
}
