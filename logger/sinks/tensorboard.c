/*
 * TensorBoard: one directory of our own event files a run, right for late and repeated results
 * (logger/tensorboard/tfrun.h). A point waits while a smaller step of its flow is still open, at
 * most max_hold_seconds, so that curves mostly grow in order.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "logger/sinks/sink.h"
#include "logger/tensorboard/rundirs.h"
#include "logger/tensorboard/tfevent.h"
#include "logger/tensorboard/tfrun.h"
#include "shared/base/clock.h"

#define OPEN_RUNS_MAX      64
#define HOLD_SECONDS       60
#define OPEN_STEP_FRESH_MS 100 // How long an answer about open steps is used again.
#define OPEN_FLOWS         64  // So many take turns without asking for each result.

struct open_step {
    char flow[EVQ_JOB_ID_BYTES_MAX];
    int64_t step; // The smallest that is open; -1: none.
    int64_t asked_ms;
};

struct tensorboard {
    const struct evq_sink_context *context;
    struct evq_rundirs *dirs;
    int64_t hold_ms;
    struct open_step open[OPEN_FLOWS]; // By the flow's hash; the last to ask has the place.
};

static enum evq_status run_open(void *context, const char *directory, void **ret_run,
                                struct evq_error *err)
{
    (void)context; // A run's files need nothing of the sink.
    struct evq_tfrun *run = NULL;
    enum evq_status status = evq_tfrun_open(directory, &run, err);

    if (status == EVQ_OK) {
        *ret_run = run;
    }
    return status;
}

static enum evq_status run_flush(void *run, struct evq_error *err)
{
    return evq_tfrun_flush(run, err);
}

static void run_close(void *run)
{
    struct evq_error ignored;

    // The files are right as they are; the next close tries again.
    enum evq_status compacted = evq_tfrun_compact(run, &ignored);
    (void)compacted;
    evq_tfrun_close(run);
}

static void tensorboard_close(void *state)
{
    struct tensorboard *sink = state;

    if (sink != NULL) {
        if (sink->dirs != NULL) {
            evq_rundirs_visit(sink->dirs, evq_tfrun_is_unsorted); // Of loggers that were killed.
        }
        evq_rundirs_close(sink->dirs);
        free(sink);
    }
}

static enum evq_status tensorboard_open(const struct evq_sink_context *context, void **ret_state,
                                        struct evq_error *err)
{
    static const struct evq_rundirs_ops ops = {run_open, run_flush, run_close};
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
        status =
            evq_rundirs_open(base, leaf, lock_name, OPEN_RUNS_MAX, &ops, sink, &sink->dirs, err);
    }
    if (status != EVQ_OK) {
        tensorboard_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

/* What is known of the result's flow, asked for again when it is not fresh; NULL: Redis does not
 * say. */
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
    if (evq_queue_flow_open(sink->context->queue, result->run, result->variant, result->suite,
                            &open->step, &ignored) != EVQ_OK) {
        return NULL;
    }
    memcpy(open->flow, flow, strlen(flow) + 1);
    open->asked_ms = now_ms;
    return open;
}

/* Whether a smaller step of the result's flow is still open and worth waiting for. */
static bool held_back(struct tensorboard *sink, const struct evq_result *result)
{
    const int64_t age_ms = evq_clock_unix_ms() - result->finished_ms;

    // Where the clocks are that far apart, how long it waited already is not known.
    if (sink->context->crowded || age_ms >= sink->hold_ms || -age_ms > sink->hold_ms) {
        return false;
    }
    // Order is a courtesy; a late point is mended by the write rule.
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
        return evq_error_set(err, EVQ_E_INCOMPLETE, "a smaller step of %s/%s/%s is open",
                             result->run, result->variant, result->suite);
    }
    enum evq_status status = evq_rundirs_get(sink->dirs, result->run, &run, err);
    for (size_t i = 0; i < result->metric_count && status == EVQ_OK; i++) {
        struct evq_point point = {result->step, (double)result->finished_ms / 1000.0,
                                  (float)result->metrics[i].value};
        evq_result_metric_key(result, &result->metrics[i], tag, sizeof(tag));
        status = evq_tfrun_put(run, tag, &point, err);
    }
    evq_rundirs_wrote(sink->dirs, run, status);
    return status;
}

static enum evq_status tensorboard_flush(void *state, struct evq_error *err)
{
    return evq_rundirs_flush(((struct tensorboard *)state)->dirs, err);
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
