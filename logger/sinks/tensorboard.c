/*
 * The sink `tensorboard`: one event file for each run (logger/tensorboard/event_file.h). A result
 * waits while a smaller step of its flow is still open, at most max_hold_seconds, because a point
 * in order costs an append and a late point costs a rewrite.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "logger/run_directories.h"
#include "logger/sinks/sink.h"
#include "logger/tensorboard/event_file.h"
#include "logger/tensorboard/tfevent.h"
#include "shared/base/clock.h"

#define OPEN_RUNS_MAX      64
#define HOLD_SECONDS       60
#define OPEN_STEP_FRESH_MS 100 // How long a cached answer is used.
#define OPEN_FLOWS         64

struct open_step {
    char flow[EVQ_JOB_ID_BYTES_MAX];
    int64_t step;     // The smallest open step, or -1.
    int64_t asked_ms; // When Redis gave it.
};

struct tensorboard {
    const struct evq_sink_context *context;
    struct evq_run_directories *directories;
    int64_t hold_ms;
    struct open_step open[OPEN_FLOWS]; // A cache, indexed by the hash of the flow.
};

static enum evq_status run_open(void *context, const char *directory, void **ret_run,
                                struct evq_error *err)
{
    (void)context; // A run's file needs nothing of the sink.
    struct evq_event_file *file = NULL;
    const enum evq_status status = evq_event_file_open(directory, &file, err);

    if (status == EVQ_OK) {
        *ret_run = file;
    }
    return status;
}

static enum evq_status run_flush(void *run, struct evq_error *err)
{
    return evq_event_file_flush(run, err);
}

static void run_close(void *run)
{
    evq_event_file_close(run);
}

static void tensorboard_close(void *state)
{
    struct tensorboard *sink = state;

    if (sink != NULL) {
        evq_run_directories_close(sink->directories);
        free(sink);
    }
}

static enum evq_status tensorboard_open(const struct evq_sink_context *context, void **ret_state,
                                        struct evq_error *err)
{
    static const struct evq_run_directories_ops ops = {run_open, run_flush, run_close};
    const struct evq_sink_config *config = context->sink;
    char base[PATH_MAX];
    char lock_name[64];
    double hold_seconds = 0;
    struct tensorboard *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", config->name);
    }
    sink->context = context;
    (void)snprintf(lock_name, sizeof(lock_name), ".%.40s.lock", config->name);
    const char *given = evq_pair_get(config->options, config->option_count, "directory", NULL);
    int length = given != NULL ? snprintf(base, sizeof(base), "%s", given)
                               : snprintf(base, sizeof(base), "%s/tensorboard", context->directory);
    enum evq_status status =
        evq_sink_option_seconds(config, "max_hold_seconds", HOLD_SECONDS, &hold_seconds, err);
    sink->hold_ms = (int64_t)(hold_seconds * 1000);
    if (status == EVQ_OK && length >= (int)sizeof(base)) {
        status = evq_error_set(err, EVQ_E_LIMIT, "sink '%s': directory is too long", config->name);
    }
    if (status == EVQ_OK) {
        const char *leaf = evq_pair_get(config->options, config->option_count, "subdirectory", "");
        status = evq_run_directories_open(base, leaf, lock_name, OPEN_RUNS_MAX, &ops, sink,
                                          &sink->directories, err);
    }
    if (status != EVQ_OK) {
        tensorboard_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

/* Returns the smallest open step of the result's flow, from the cache or from Redis. NULL: Redis
 * does not answer. */
static const struct open_step *open_step_of(struct tensorboard *sink,
                                            const struct evq_result *result)
{
    char flow[EVQ_JOB_ID_BYTES_MAX];
    struct evq_error ignored;
    const int64_t now_ms = evq_clock_mono_ms();

    (void)snprintf(flow, sizeof(flow), "%s/%s/%s", result->run, result->variant, result->suite);
    struct open_step *open = &sink->open[XXH3_64bits(flow, strlen(flow)) % OPEN_FLOWS];
    if (strcmp(flow, open->flow) == 0 && now_ms - open->asked_ms <= OPEN_STEP_FRESH_MS) {
        return open;
    }
    open->flow[0] = '\0';
    if (evq_queue_smallest_open_step(sink->context->queue, result->run, result->variant,
                                     result->suite, &open->step, &ignored) != EVQ_OK) {
        return NULL;
    }
    memcpy(open->flow, flow, strlen(flow) + 1);
    open->asked_ms = now_ms;
    return open;
}

/* Whether a smaller step of the result's flow is still open and the result can wait for it. */
static bool held_back(struct tensorboard *sink, const struct evq_result *result)
{
    const int64_t age_ms = evq_clock_unix_ms() - result->finished_ms;

    // With clocks that far apart, nobody knows how long the result has waited.
    if (sink->context->must_take || age_ms >= sink->hold_ms || -age_ms > sink->hold_ms) {
        return false;
    }
    const struct open_step *open = open_step_of(sink, result);
    return open != NULL && open->step >= 0 && open->step < result->step;
}

static enum evq_status tensorboard_write(void *state, const struct evq_result *result,
                                         struct evq_error *err)
{
    struct tensorboard *sink = state;
    char tag[EVQ_TFEVENT_TAG_BYTES_MAX];
    void *run = NULL;

    if (result->metric_count == 0) {
        return EVQ_OK; // The end of a job: no number to draw.
    }
    if (held_back(sink, result)) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "an earlier step of %s/%s/%s is not evaluated yet", result->run,
                             result->variant, result->suite);
    }
    enum evq_status status = evq_run_directories_get(sink->directories, result->run, &run, err);
    for (size_t i = 0; i < result->metric_count && status == EVQ_OK; i++) {
        struct evq_point point = {result->step, (double)result->finished_ms / 1000.0,
                                  (float)result->metrics[i].value};
        evq_result_metric_key(result, &result->metrics[i], tag, sizeof(tag));
        if (i == 0 && !sink->context->must_take && evq_event_file_defers(run, tag, point.step)) {
            return evq_error_set(err, EVQ_E_INCOMPLETE,
                                 "the event file of '%s' was rewritten a "
                                 "moment ago",
                                 result->run);
        }
        status = evq_event_file_put(run, tag, &point, err);
    }
    evq_run_directories_wrote(sink->directories, run, status);
    return status;
}

static enum evq_status tensorboard_flush(void *state, struct evq_error *err)
{
    return evq_run_directories_flush(((struct tensorboard *)state)->directories, err);
}

static const char *const options[] = {"directory", "subdirectory", "max_hold_seconds", NULL};

const struct evq_sink_ops evq_sink_tensorboard = {
    .kind = "tensorboard",
    .options = options,
    .gathers = true,
    .open = tensorboard_open,
    .write = tensorboard_write,
    .flush = tensorboard_flush,
    .close = tensorboard_close,
};
