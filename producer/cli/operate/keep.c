/*
 * evalq keep: keeps the best checkpoints of a run. Of all others it removes the pins, the
 * training's files beneath the directories of --own, and the samples.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/inspect/feed.h"
#include "producer/cli/json.h"
#include "producer/cli/operate/retention.h"
#include "producer/cli/table.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "producer/client/pins/pin.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/checkpoint/pin_path.h"
#include "shared/samples/samples_remove.h"
#include "shared/verify/saved_weights.h"

#define OPEN_JOBS_MAX 100000
#define OWN_MAX       64

struct pruning {
    struct evq_cli *cli;
    struct evq_retention retention;
    const char *own[OWN_MAX];
    size_t own_count;
    char (*targets)[PATH_MAX]; // For each checkpoint the path to remove; "": none.
    size_t removed;
    int64_t samples; // Files removed with their checkpoints.
};

static void on_result(void *context, const struct evq_result *result)
{
    evq_retention_add(context, result);
}

/* Marks the checkpoints of steps that have an open job of any variant or suite. */
static enum evq_status open_mark(struct pruning *pruning, const char *run, struct evq_error *err)
{
    static const char *const states[] = {"queued", "delayed", "running", NULL};
    json_t *jobs = NULL;
    enum evq_status status = EVQ_OK;
    size_t index = 0;
    const json_t *job = NULL;

    for (size_t i = 0; states[i] != NULL && status == EVQ_OK; i++) {
        status = evq_view_jobs(pruning->cli, states[i], run, OPEN_JOBS_MAX, &jobs, err);
    }
    if (status == EVQ_OK && json_array_size(jobs) >= OPEN_JOBS_MAX) {
        status =
            evq_error_set(err, EVQ_E_LIMIT, "run '%s' has over %d open jobs", run, OPEN_JOBS_MAX);
    }
    json_array_foreach(jobs, index, job)
    {
        const int64_t step = evq_json_integer(job, "step", -1);
        for (size_t i = 0; i < pruning->retention.count; i++) {
            if (pruning->retention.checkpoints[i].step == step) {
                pruning->retention.checkpoints[i].why = EVQ_RETENTION_IN_USE;
            }
        }
    }
    json_decref(jobs);
    return status;
}

/* Reads the job's record. A checkpoint whose message has `keep` is a milestone and stays. It also
 * stays if the record was removed, because it could be one. Takes the fingerprint of the weights,
 * too. */
static enum evq_status milestone_mark(struct pruning *pruning, struct evq_retention_checkpoint *one,
                                      struct evq_error *err)
{
    json_t *job = NULL;
    enum evq_status status = evq_view_job(pruning->cli, one->job, &job, err);

    if (status == EVQ_E_NOT_FOUND) {
        one->why = EVQ_RETENTION_UNKNOWN;
        return EVQ_OK;
    }
    const json_t *message = json_object_get(job, "message");
    if (status == EVQ_OK && !json_is_object(message)) {
        one->why = EVQ_RETENTION_UNKNOWN;
    } else if (status == EVQ_OK && evq_json_true(message, "keep")) {
        one->why = EVQ_RETENTION_MILESTONE;
    }
    (void)snprintf(one->fingerprint, sizeof one->fingerprint, "%s",
                   evq_json_text(message, "fingerprint", ""));
    json_decref(job);
    return status;
}

/* Finds the training's own files of a checkpoint. They may be removed if they are beneath an owned
 * directory, still are the weights that were evaluated, and no checkpoint that stays has the same
 * path (a training may save every step under one name). */
static enum evq_status own_find(const struct pruning *pruning,
                                const struct evq_retention_checkpoint *one, const char *root,
                                char target[PATH_MAX], struct evq_error *err)
{
    const struct evq_retention_checkpoint *other = evq_retention_sharer(&pruning->retention, one);
    enum evq_status status = evq_retention_removable_path(
        root, one->path, pruning->own, pruning->own_count, target, PATH_MAX, err);

    if (status == EVQ_OK && other != NULL) {
        status = evq_error_set(err, EVQ_E_CONFLICT, "step %" PRId64 " stays, and has it too",
                               other->step);
    }
    if (status == EVQ_OK && one->fingerprint[0] != '\0') {
        status = evq_checkpoint_verify_fingerprint(root, one->path, one->fingerprint, err);
    }
    return status;
}

/* Marks one of the best checkpoints if its weights were removed or replaced by others. */
static enum evq_status lost_mark(const struct pruning *pruning,
                                 struct evq_retention_checkpoint *one, struct evq_error *err)
{
    char checkpoint[sizeof one->root + sizeof one->path];

    (void)snprintf(checkpoint, sizeof checkpoint, "%s:%s", one->root, one->path);
    const enum evq_status status = evq_saved_weights_verify(
        pruning->cli->queue, pruning->cli->config, NULL, one->value_job, checkpoint, err);
    one->lost = evq_saved_weights_lost(status);
    return one->lost ? EVQ_OK : status;
}

/* Finds what to remove of a checkpoint: the training's own files if we own them, otherwise our pin.
 */
static void target_find(const struct pruning *pruning, const struct evq_retention_checkpoint *one,
                        char target[PATH_MAX], char *why, size_t why_bytes)
{
    const struct evq_root *root = evq_config_root_find(pruning->cli->config, one->root);
    struct evq_error err = {0};

    target[0] = '\0';
    if (root == NULL) {
        (void)snprintf(why, why_bytes, "this machine has no root '%s'", one->root);
        return;
    }
    if (own_find(pruning, one, root->path, target, &err) == EVQ_OK) {
        (void)snprintf(why, why_bytes, "goes");
        return;
    }
    target[0] = '\0';
    (void)snprintf(why, why_bytes, "%s", err.status == EVQ_E_NOT_FOUND ? "is gone" : err.message);
    if (one->pinned[0] == '\0') {
        return;
    }
    const char *const roots[] = {root->path};
    if (evq_retention_removable_path(root->path, one->pinned, roots, 1, target, PATH_MAX, &err) ==
        EVQ_OK) {
        target[evq_pin_path_bytes(target)] = '\0'; // The pin is the directory that contains it.
        (void)snprintf(why, why_bytes, "its pin goes");
    } else {
        target[0] = '\0';
    }
}

/* Removes a path that belongs to two steps only once. */
static void target_once(const struct pruning *pruning, size_t at, char *why, size_t why_bytes)
{
    char *target = pruning->targets[at];

    for (size_t i = 0; target[0] != '\0' && i < at; i++) {
        if (strcmp(pruning->targets[i], target) == 0) {
            (void)snprintf(why, why_bytes, "goes with step %" PRId64,
                           pruning->retention.checkpoints[i].step);
            target[0] = '\0';
        }
    }
}

static const char *why_text(const struct evq_retention_checkpoint *one, char *out, size_t out_bytes)
{
    static const char *const words[] = {[EVQ_RETENTION_NEWEST] = "newest",
                                        [EVQ_RETENTION_IN_USE] = "in use: a job is not done",
                                        [EVQ_RETENTION_MILESTONE] = "submitted with keep",
                                        [EVQ_RETENTION_UNKNOWN] = "too little is known of it"};

    if (one->why == EVQ_RETENTION_TOP) {
        (void)snprintf(out, out_bytes, "number %zu%s", one->rank,
                       one->lost ? ", but its weights were not kept" : "");
        return out;
    }
    return words[one->why];
}

static enum evq_status decide(struct pruning *pruning, struct evq_table *table, size_t *ret_count,
                              struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char why[600];

    *ret_count = 0;
    for (size_t i = 0; i < pruning->retention.count && status == EVQ_OK; i++) {
        struct evq_retention_checkpoint *one = &pruning->retention.checkpoints[i];
        if (one->why == EVQ_RETENTION_NOT) {
            status = milestone_mark(pruning, one, err);
        } else if (one->why == EVQ_RETENTION_TOP) {
            status = lost_mark(pruning, one, err);
        }
    }
    for (size_t i = 0; i < pruning->retention.count && status == EVQ_OK; i++) {
        const struct evq_retention_checkpoint *one = &pruning->retention.checkpoints[i];
        const char *text = why;
        if (one->why == EVQ_RETENTION_NOT) {
            target_find(pruning, one, pruning->targets[i], why, sizeof why);
            target_once(pruning, i, why, sizeof why);
        } else {
            text = why_text(one, why, sizeof why);
        }
        const bool goes = pruning->targets[i][0] != '\0';
        *ret_count += goes;
        evq_table_row(table);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64, one->step);
        if (one->has_value) {
            evq_table_cell(table, EVQ_COLOUR_NONE, "%.8g", one->value);
        } else {
            evq_table_cell(table, EVQ_COLOUR_DIM, "-");
        }
        evq_table_cell(table, goes ? EVQ_COLOUR_RED : EVQ_COLOUR_NONE, "%s",
                       goes ? "remove" : "keep");
        evq_table_cell(table, EVQ_COLOUR_DIM, "%s", text);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", one->path);
    }
    return status;
}

static enum evq_status targets_remove(struct pruning *pruning, const char *run,
                                      struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < pruning->retention.count && status == EVQ_OK; i++) {
        const char *target = pruning->targets[i];
        if (target[0] == '\0') {
            continue;
        }
        const bool pin = strstr(target, "/.evalq/pins/") != NULL;
        status = pin ? evq_pin_release(target, err) : evq_retention_remove(target, err);
        if (status == EVQ_OK) {
            const struct evq_retention_checkpoint *one = &pruning->retention.checkpoints[i];
            const char *directory = pruning->cli->config->samples.directory;
            pruning->removed++;
            pruning->samples += evq_samples_remove(directory, run, one->step);
        }
    }
    return status;
}

static enum evq_status plan_and_do(struct pruning *pruning, struct evq_error *err)
{
    struct evq_cli *cli = pruning->cli;
    char question[128];
    size_t count = 0;
    struct evq_table *table = evq_table_new();

    pruning->targets = calloc(pruning->retention.count, sizeof *pruning->targets);
    if (table == NULL || pruning->targets == NULL) {
        evq_table_free(table);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    evq_table_column(table, "STEP", true);
    evq_table_column(table, "VALUE", true);
    evq_table_column(table, "", false);
    evq_table_column(table, "WHY", false);
    evq_table_column(table, "CHECKPOINT", false);
    enum evq_status status = decide(pruning, table, &count, err);
    if (status == EVQ_OK && !cli->terminal.json) {
        status = evq_table_print(table, &cli->terminal, 0, stdout, err);
    }
    evq_table_free(table);
    if (status == EVQ_OK && count > 0 && !evq_option_flag(&cli->options, "dry-run")) {
        (void)snprintf(question, sizeof question, "Remove %zu of %zu checkpoint%s?", count,
                       pruning->retention.count, pruning->retention.count == 1 ? "" : "s");
        status = evq_cli_confirm(cli, question, err);
        if (status == EVQ_OK) {
            status = targets_remove(pruning, evq_cli_arg(cli, 0), err);
            evq_cli_say(cli, "evalq: %zu of %zu checkpoint%s removed", pruning->removed,
                        pruning->retention.count, pruning->retention.count == 1 ? "" : "s");
        }
    }
    return status;
}

static enum evq_status json_print(const struct pruning *pruning, struct evq_error *err)
{
    json_t *list = json_array();

    for (size_t i = 0; i < pruning->retention.count; i++) {
        const struct evq_retention_checkpoint *one = &pruning->retention.checkpoints[i];
        const char *target = pruning->targets[i];
        char why[64];
        json_t *row =
            json_pack("{s:I, s:s, s:b, s:s}", "step", (json_int_t)one->step, "checkpoint",
                      one->path, "keep", target[0] == '\0', "why",
                      one->why == EVQ_RETENTION_NOT ? "" : why_text(one, why, sizeof why));
        if (one->has_value) {
            (void)json_object_set_new(row, "value", json_real(one->value)); // Finite.
        }
        if (target[0] != '\0') {
            (void)json_object_set_new(row, "removes", json_string(target));
        }
        (void)json_array_append_new(list, row);
    }
    return evq_json_print(json_pack("{s:s, s:I, s:I, s:o}", "metric", pruning->retention.metric,
                                    "removed", (json_int_t)pruning->removed, "samples",
                                    (json_int_t)pruning->samples, "checkpoints", list),
                          err);
}

/* The metric that decides: --metric, or the run's first metric by name. */
static enum evq_status metric_choose(struct pruning *pruning, const char *run,
                                     struct evq_error *err)
{
    const char *given = evq_option_text(&pruning->cli->options, "metric", NULL);
    const char *direction = evq_option_text(&pruning->cli->options, "direction", "");
    struct evq_best best;
    enum evq_status status = EVQ_OK;

    pruning->retention.direction = strcmp(direction, "max") == 0   ? 1
                                   : strcmp(direction, "min") == 0 ? 0
                                                                   : -1;
    status = evq_queue_best_find(pruning->cli->queue, run, given, &best, err);
    if (status == EVQ_OK) {
        given = best.metric;
    } else if (status == EVQ_E_NOT_FOUND && given != NULL) {
        status = EVQ_OK; // A time or a rate has no best of its own; --direction makes it one.
    }
    if (status == EVQ_OK) {
        (void)snprintf(pruning->retention.metric, sizeof pruning->retention.metric, "%s", given);
    }
    return status;
}

static enum evq_status keep_run(struct evq_cli *cli, struct evq_error *err)
{
    struct pruning pruning = {.cli = cli};
    const char *run = evq_cli_arg(cli, 0);
    struct evq_feed *feed = NULL;

    for (size_t i = 0; i < OWN_MAX; i++) {
        pruning.own[i] = evq_option_item(&cli->options, "own", i);
        pruning.own_count += pruning.own[i] != NULL;
    }
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status = metric_choose(&pruning, run, err);
    }
    if (status == EVQ_OK && (feed = evq_feed_new(cli->queue, run)) == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
    }
    if (status == EVQ_OK) {
        status = evq_feed_poll(feed, on_result, &pruning.retention, err);
    }
    if (status == EVQ_OK && pruning.retention.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
    }
    if (status == EVQ_OK && pruning.retention.direction < 0) {
        status = evq_error_set(err, EVQ_E_NOT_FOUND,
                               "run '%s' has no result of '%s' that is better one way: give "
                               "--metric, and --direction for a time or a rate",
                               run, pruning.retention.metric);
    }
    if (status == EVQ_OK) {
        status = open_mark(&pruning, run, err);
    }
    if (status == EVQ_OK) {
        evq_retention_rank(&pruning.retention, (size_t)evq_option_integer(&cli->options, "top", 3),
                           (size_t)evq_option_integer(&cli->options, "last", 1));
        status = plan_and_do(&pruning, err);
    }
    if (status == EVQ_OK && cli->terminal.json) {
        status = json_print(&pruning, err);
    }
    evq_feed_free(feed);
    free(pruning.targets);
    evq_retention_free(&pruning.retention);
    return status;
}

static const struct evq_option options[] = {
    {"top", 'k', EVQ_OPTION_INTEGER, "K", "keep the best K; default 3", 1, 1000000},
    {"last", 0, EVQ_OPTION_INTEGER, "N", "also keep the newest N; default 1", 0, 1000000},
    {"metric", 'm', EVQ_OPTION_TEXT, "KEY",
     "rank by this metric, such as eval/digits/accuracy; default: the run's first by name", 0, 0},
    {"direction", 0, EVQ_OPTION_CHOICE, "max|min",
     "which values are better; default: as the metric defines it", 0, 0},
    {"own", 0, EVQ_OPTION_LIST, "DIR", "allow removing checkpoints below DIR; may be repeated", 0,
     0},
    {"dry-run", 'n', EVQ_OPTION_FLAG, NULL, "only print what would be removed", 0, 0},
    {"yes", 'y', EVQ_OPTION_FLAG, NULL, "do not ask", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_keep = {
    .name = "keep",
    .arguments = "RUN [--top K] [--last N] [--metric KEY] [--own DIR]...",
    .summary = "Keep a run's best checkpoints and remove others that evalq owns",
    .description =
        "Ranks the evaluated checkpoints of a run. These stay: the best K by the metric (of "
        "equal ones, the earlier), the newest N, those with a job that is not done, those "
        "submitted with --keep, and those without a value of the metric. Of the others, "
        "evalq removes the copies that it made itself (--pin), and checkpoints below a "
        "directory that --own names. The samples of a removed checkpoint go with it. Without "
        "--own, no file of the training is touched. A "
        "checkpoint that was saved again under the same name is never removed.\n\nevalq "
        "knows results for 7 days by default. Older checkpoints stay. If this verb removes "
        "checkpoints, the training must not remove any (no save_total_limit).\n\nExamples: "
        "`evalq keep my-run --dry-run`, `evalq keep my-run --own out --yes`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN,
    .run = keep_run,
};
