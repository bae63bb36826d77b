/*
 * The sink `best`: the best checkpoint of each run and metric. It is stored in Redis, for the
 * training and `evalq best`, and as symbolic links: DIRECTORY/RUN/best-METRIC, and RUN/best for the
 * metric of the option `metric` (default: the run's first by name).
 *
 * evq_metric_direction() says whether higher is better; a time or rate has no best. NaN, infinities
 * and results with a NaN flag never win. Of equal values the earlier step wins.
 *
 * A link points only to weights that exist. It is removed if they are deleted or if other weights
 * have their name. The sink checks this when a result of the run arrives, for the metrics of that
 * result. A repeated result changes nothing, because the state is in Redis and only a better value
 * replaces it.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "logger/run_directories.h"
#include "logger/sinks/sink.h"
#include "shared/base/file.h"
#include "shared/checkpoint/pin_path.h"
#include "shared/verify/saved_weights.h"

#define LOOK_MS 2000 // Most time to wait for a file server; other runs' results wait too.

struct best {
    const struct evq_sink_context *context;
    struct evq_timed_verify *verify;
    const char *metric; // "": the first by name.
    int direction;      // Option `direction`: 1 higher is better, 0 lower, -1 not given.
    char looked[EVQ_JOB_ID_BYTES_MAX]; // The job whose weights this write() checked; "": none.
    bool lost;                         // Those weights no longer exist.
};

static enum evq_status best_open(const struct evq_sink_context *context, void **ret_state,
                                 struct evq_error *err)
{
    struct best *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
    }
    sink->context = context;
    sink->metric = evq_pair_get(context->sink->options, context->sink->option_count, "metric", "");
    const char *direction = evq_sink_option(context->sink, "direction");
    const bool known =
        direction == NULL || strcmp(direction, "max") == 0 || strcmp(direction, "min") == 0;
    if (!known || (direction != NULL && sink->metric[0] == '\0')) {
        free(sink);
        return evq_error_set(err, EVQ_E_INVALID,
                             "sink '%s': direction is '%.40s', expected max or min, beside metric",
                             context->sink->name, direction);
    }
    sink->direction = direction == NULL ? -1 : strcmp(direction, "max") == 0;
    const enum evq_status status = evq_timed_verify_open(LOOK_MS, &sink->verify, err);
    if (status != EVQ_OK) {
        free(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

static bool is_better(const struct evq_best *candidate, const struct evq_best *present, int higher)
{
    if (candidate->value == present->value) {
        return candidate->step < present->step;
    }
    return higher ? candidate->value > present->value : candidate->value < present->value;
}

/* Makes a new link to target and renames it over the old one, so that a link that existed always
 * exists. lost: removes the link, because the weights are gone. */
static enum evq_status link_point(const char *directory, const char *name, const char *target,
                                  bool lost, struct evq_error *err)
{
    char path[PATH_MAX + NAME_MAX];
    char fresh[PATH_MAX + NAME_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int)sizeof(path) ||
        snprintf(fresh, sizeof(fresh), "%s/.%s.new", directory, name) >= (int)sizeof(fresh)) {
        return evq_error_set(err, EVQ_E_LIMIT, "link '%s' in '%s' has too long a path", name,
                             directory);
    }
    (void)unlink(fresh); // Left by a process that died between the next two calls.
    if (lost) {
        return unlink(path) == 0 || errno == ENOENT
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_IO, "remove link '%s': %s", path, strerror(errno));
    }
    if (symlink(target, fresh) != 0 || rename(fresh, path) != 0) {
        return evq_error_set(err, EVQ_E_IO, "link '%s' to '%s': %s", path, target, strerror(errno));
    }
    return EVQ_OK;
}

/* Sets sink->lost if the weights of the best checkpoint no longer exist. Checks once for all
 * metrics of a result. */
static enum evq_status lost_find(struct best *sink, const struct evq_best *best,
                                 struct evq_error *err)
{
    if (strcmp(sink->looked, best->job) == 0) {
        return EVQ_OK;
    }
    const enum evq_status status =
        evq_saved_weights_verify(sink->context->queue, sink->context->config, sink->verify,
                                 best->job, best->checkpoint, err);
    if (status != EVQ_OK && !evq_saved_weights_lost(status)) {
        return status;
    }
    sink->lost = evq_saved_weights_lost(status);
    (void)snprintf(sink->looked, sizeof(sink->looked), "%s", best->job);
    return EVQ_OK;
}

static enum evq_status links_point(struct best *sink, const struct evq_best *best,
                                   struct evq_error *err)
{
    char directory[PATH_MAX];
    char target[PATH_MAX];
    char name[NAME_MAX + 1];
    struct evq_best primary;

    if (!evq_run_directories_name_valid(best->run) ||
        snprintf(directory, sizeof(directory), "%s/%s", sink->context->directory, best->run) >=
            (int)sizeof(directory)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' cannot name a run's directory", best->run);
    }
    enum evq_status status = evq_file_make_directories(directory, 0755, err);
    if (status == EVQ_OK) {
        status = lost_find(sink, best, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_config_checkpoint_path(sink->context->config, best->checkpoint, target, sizeof(target));
    char mapped[129];
    char dotted[sizeof(best->metric)];
    (void)snprintf(dotted, sizeof(dotted), "%s", best->metric);
    // A slash cannot be in a name: a dot for each, where it has none itself (a.b/c and a/b.c would
    // be one); what else cannot is mapped.
    for (char *at = dotted; strchr(best->metric, '.') == NULL && (at = strchr(at, '/')) != NULL;) {
        *at = '.';
    }
    evq_job_map_name(dotted, sizeof(mapped) - 1, mapped);
    (void)snprintf(name, sizeof(name), "best-%s", mapped);
    status = link_point(directory, name, target, sink->lost, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = evq_queue_best_get(sink->context->queue, best->run, sink->metric, &primary, err);
    if (status == EVQ_E_NOT_FOUND) {
        return EVQ_OK; // The metric that the operator named has no value yet.
    }
    if (status == EVQ_OK && strcmp(primary.metric, best->metric) == 0) {
        status = link_point(directory, "best", target, sink->lost, err);
    }
    return status;
}

/* Removes the links to the best checkpoint if its weights no longer exist: the training may have
 * deleted them or saved others under their name. The links are not made again, because the
 * fingerprint of the best checkpoint may be unknown by then. */
static enum evq_status links_lose(struct best *sink, const struct evq_best *best,
                                  struct evq_error *err)
{
    const enum evq_status status = lost_find(sink, best, err);

    return status == EVQ_OK && sink->lost ? links_point(sink, best, err) : status;
}

/* Finds the checkpoint that the training saved, not its pin: a pin is removed when its jobs have
 * ended. */
static void checkpoint_saved(const char *checkpoint, char *out, size_t out_bytes)
{
    const char *colon = strchr(checkpoint, ':');
    const size_t root = colon != NULL ? (size_t)(colon - checkpoint) + 1 : 0;

    (void)snprintf(out, out_bytes, "%.*s", (int)root, checkpoint);
    if (root < out_bytes) {
        (void)evq_pin_path_saved(checkpoint + root, out + root, out_bytes - root);
    }
}

static enum evq_status metric_consider(struct best *sink, const struct evq_result *result,
                                       const struct evq_metric *metric, struct evq_error *err)
{
    struct evq_best candidate = {.value = metric->value, .step = result->step};
    struct evq_best present;

    if (!isfinite(metric->value) || strncmp(metric->name, "nan_", 4) == 0) {
        return EVQ_OK; // A count of NaN (nan_tokens, ...) is a flag that only broken models carry.
    }
    evq_result_metric_key(result, metric, candidate.metric, sizeof(candidate.metric));
    const bool named = strcmp(candidate.metric, sink->metric) == 0;
    const int direction =
        named && sink->direction >= 0 ? sink->direction : evq_metric_direction(metric);
    if (direction < 0 && !named) {
        return EVQ_OK; // A time is no reason to keep a checkpoint, unless the operator says so.
    }
    (void)snprintf(candidate.run, sizeof(candidate.run), "%s", result->run);
    (void)snprintf(candidate.job, sizeof(candidate.job), "%s", result->job);
    checkpoint_saved(result->checkpoint, candidate.checkpoint, sizeof(candidate.checkpoint));
    enum evq_status status =
        evq_queue_best_get(sink->context->queue, candidate.run, candidate.metric, &present, err);
    if (status == EVQ_OK && !is_better(&candidate, &present, direction)) {
        if (strcmp(candidate.job, present.job) == 0) {
            // The same result again: the process may have died between Redis and the links.
            return links_point(sink, &present, err);
        }
        return links_lose(sink, &present, err);
    }
    if (status != EVQ_OK && status != EVQ_E_NOT_FOUND) {
        return status;
    }
    status = evq_queue_best_put(sink->context->queue, &candidate, err);
    return status == EVQ_OK ? links_point(sink, &candidate, err) : status;
}

static enum evq_status best_write(void *state, const struct evq_result *result,
                                  struct evq_error *err)
{
    struct best *sink = state;
    enum evq_status status = EVQ_OK;

    sink->looked[0] = '\0';
    for (size_t i = 0; i < result->metric_count && status == EVQ_OK; i++) {
        status = metric_consider(sink, result, &result->metrics[i], err);
    }
    return status;
}

static enum evq_status best_flush(void *state, struct evq_error *err)
{
    (void)state; // Each write is complete in itself.
    (void)err;
    return EVQ_OK;
}

static void best_close(void *state)
{
    struct best *sink = state;

    if (sink != NULL) {
        evq_timed_verify_close(sink->verify);
        free(sink);
    }
}

static const char *const options[] = {"metric", "direction", NULL};

const struct evq_sink_ops evq_sink_best = {
    .kind = "best",
    .options = options,
    .each = true,
    .open = best_open,
    .write = best_write,
    .flush = best_flush,
    .close = best_close,
};
