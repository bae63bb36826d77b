/*
 * evalq gc: removes what is no longer needed: old records in Redis, pins whose jobs have ended, and
 * samples that nobody will ask for.
 */
#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/cli/cli.h"
#include "producer/cli/json.h"
#include "producer/cli/samples/sample_gc.h"
#include "producer/cli/verbs.h"
#include "producer/client/pins/pin_releaser.h"

#define DEPTH_MAX 8
// How long a pin stays whose submit never reached Redis.
#define UNSENT_MS ((int64_t)7 * 86400 * 1000)

// A run that still has pins, in one or more directories.
struct run_pins {
    char *run;
    struct evq_pin_releaser releaser;
};

struct collection {
    struct evq_cli *cli;
    struct run_pins *runs;
    size_t run_count;
    int64_t records;
    int64_t pins_released;
    int64_t pins_left;
    int64_t samples;                 // Files.
    struct evq_pin_releaser_ask ask; // After a failed call to Redis, nothing is released.
};

/* Adds a pin that stays to its run. If memory runs out, the next gc handles it. */
static void note_left(void *context, const struct evq_pin_info *pin)
{
    struct collection *gc = context;
    size_t at = 0;

    if (strcmp(pin->queue, evq_queue_name(gc->cli->queue)) != 0) {
        return;
    }
    while (at < gc->run_count && strcmp(gc->runs[at].run, pin->run) != 0) {
        at++;
    }
    if (at == gc->run_count) {
        struct run_pins *runs = realloc(gc->runs, (at + 1) * sizeof(runs[0]));
        char *run = strdup(pin->run);
        if (runs != NULL) {
            gc->runs = runs;
        }
        if (runs == NULL || run == NULL) {
            free(run);
            return;
        }
        runs[gc->run_count++] = (struct run_pins){.run = run};
    }
    evq_pin_releaser_add(&gc->runs[at].releaser, pin->directory, pin->copied_bytes);
}

/* Releases the pins of dead jobs of each run, except the newest. */
static void trim_dead(struct collection *gc, const struct evq_queue_info *info)
{
    for (size_t at = 0; at < gc->run_count; at++) {
        const size_t gone =
            evq_pin_releaser_trim_dead(&gc->runs[at].releaser, gc->cli->queue, info);
        gc->pins_released += (int64_t)gone;
        gc->pins_left -= (int64_t)gone;
    }
}

static void runs_free(struct collection *gc)
{
    for (size_t at = 0; at < gc->run_count; at++) {
        evq_pin_releaser_free(&gc->runs[at].releaser);
        free(gc->runs[at].run);
    }
    free(gc->runs);
}

/* Handles the pins of one output directory. */
static void collect_pins(struct collection *gc, const char *output_dir)
{
    int64_t released = 0;
    int64_t left = 0;
    struct evq_error err = {0};
    enum evq_status status =
        evq_pin_gc(output_dir, evq_queue_name(gc->cli->queue), evq_pin_releaser_job_state, &gc->ask,
                   UNSENT_MS, &released, &left, &err);
    if (status != EVQ_OK) {
        evq_cli_say(gc->cli, "evalq: %s", err.message);
    }
    gc->pins_released += released;
    gc->pins_left += left;
    if (status == EVQ_OK && left > 0 && gc->ask.keep_dead) {
        (void)!evq_pin_list(output_dir, note_left, gc, NULL); // It was readable before.
    }
}

/* Walks a root. Pins are in DIR/.evalq/pins; other hidden directories are skipped. */
static enum evq_status walk(struct collection *gc, const char *root, struct evq_error *err)
{
    char *path = strdup(root);
    char *paths[] = {path, NULL};
    FTSENT *entry = NULL;
    FTS *tree = path != NULL ? fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (tree == NULL) {
        free(path);
        return evq_error_set(err, EVQ_E_IO, "walk '%s': %s", root, strerror(errno));
    }
    while (!gc->ask.failed && (entry = fts_read(tree)) != NULL) {
        if (entry->fts_info != FTS_D || entry->fts_level == 0) {
            continue;
        }
        if (strcmp(entry->fts_name, ".evalq") == 0) {
            char *parent = strndup(entry->fts_path, entry->fts_pathlen - strlen("/.evalq"));
            if (parent != NULL) {
                collect_pins(gc, parent);
            }
            free(parent);
        }
        if (entry->fts_name[0] == '.' || entry->fts_level >= DEPTH_MAX) {
            (void)fts_set(tree, entry, FTS_SKIP); // Fails only for a bad instruction.
        }
    }
    (void)fts_close(tree); // The tree was only read.
    free(path);
    return EVQ_OK;
}

static enum evq_status collect_records(struct collection *gc, struct evq_error *err)
{
    int64_t removed = 0;
    enum evq_status status = EVQ_OK;
    do {
        status = evq_queue_gc(gc->cli->queue, &removed, err);
        gc->records += status == EVQ_OK ? removed : 0;
    } while (status == EVQ_OK && removed > 0);
    return status;
}

static enum evq_status print_collected(struct collection *gc, struct evq_error *err)
{
    if (gc->cli->terminal.json) {
        return evq_json_print(
            json_pack("{s:I, s:I, s:I, s:I}", "records_removed", (json_int_t)gc->records,
                      "pins_released", (json_int_t)gc->pins_released, "pins_left",
                      (json_int_t)gc->pins_left, "samples_removed", (json_int_t)gc->samples),
            err);
    }
    (void)printf("%" PRId64 " record%s removed, %" PRId64 " pin%s released, %" PRId64
                 " pin%s still needed, %" PRId64 " file%s of samples removed\n",
                 gc->records, gc->records == 1 ? "" : "s", gc->pins_released,
                 gc->pins_released == 1 ? "" : "s", gc->pins_left, gc->pins_left == 1 ? "" : "s",
                 gc->samples, gc->samples == 1 ? "" : "s");
    return EVQ_OK;
}

/* Checks that the directory exists. Otherwise a typing error would look as if nothing was left. */
static enum evq_status check_directory(const char *path, struct evq_error *err)
{
    struct stat info;
    const bool there = stat(path, &info) == 0;

    if (there && S_ISDIR(info.st_mode)) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_NOT_FOUND, "the directory '%s': %s", path,
                         strerror(there ? ENOTDIR : errno));
}

static enum evq_status gc_run(struct evq_cli *cli, struct evq_error *err)
{
    struct evq_queue_info info;
    struct collection gc = {.cli = cli, .ask = {.epoch = info.epoch}};
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        gc.ask.queue = cli->queue;
        status = evq_queue_info(cli->queue, &info, err);
        gc.ask.now_ms = status == EVQ_OK ? info.now_ms : 0;
        gc.ask.keep_dead = !evq_option_flag(&cli->options, "dead");
    }
    if (status == EVQ_OK) {
        status = collect_records(&gc, err);
    }
    for (int i = 0; status == EVQ_OK && i < cli->options.arg_count; i++) {
        status = check_directory(cli->options.args[i], err);
    }
    for (int i = 0; status == EVQ_OK && i < cli->options.arg_count; i++) {
        status = walk(&gc, cli->options.args[i], err);
    }
    for (size_t i = 0;
         status == EVQ_OK && cli->options.arg_count == 0 && i < cli->config->root_count; i++) {
        if (access(cli->config->roots[i].path, R_OK | X_OK) == 0) {
            status = walk(&gc, cli->config->roots[i].path, err);
        }
    }
    if (status == EVQ_OK && gc.ask.failed) {
        status = evq_error_set(err, gc.ask.error.status, "%s", gc.ask.error.message);
    }
    if (status == EVQ_OK) {
        trim_dead(&gc, &info);
        status = evq_sample_gc(cli, &gc.samples, err);
    }
    if (status == EVQ_OK) {
        status = print_collected(&gc, err);
    }
    runs_free(&gc);
    return status;
}

static const struct evq_option options[] = {
    {"dead", 0, EVQ_OPTION_FLAG, NULL, "also remove pins that are kept for a retry of dead jobs", 0,
     0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_gc = {
    .name = "gc",
    .arguments = "[--dead] [DIR...]",
    .summary = "Remove old records and samples, and pinned checkpoints whose jobs have ended",
    .description =
        "Workers and training processes remove their own files. This verb removes what a "
        "process left behind when it was killed. It looks for pins in directories "
        ".evalq/pins, at most 8 levels below each DIR, or below the configured roots on this "
        "machine.\n\nSome pins stay. A pin whose submit never reached Redis, or whose job "
        "was lost with Redis' data, stays for 7 days. The newest four pins of dead jobs of a "
        "run stay for one day, so that `evalq retry` can use them.\n\nOf samples.directory on this "
        "machine it removes temporary files of killed workers, and the samples of runs that the "
        "queue forgot (90 days after their last submit).\n\nExamples: `evalq gc`, "
        "`evalq gc --dead out`",
    .options = options,
    .arg_min = 0,
    .arg_max = -1,
    .role = "admin",
    .run = gc_run,
};
