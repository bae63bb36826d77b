/*
 * The sink `csv`: one table RUN/results.csv for each run, with a line for each step and a column
 * for each metric. A flush writes the whole table to a new file, syncs it and renames it. A
 * repeated result has its own cell, so that nothing is there twice.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "logger/run_directories.h"
#include "logger/sinks/csv_table.h"
#include "logger/sinks/sink.h"
#include "shared/base/file.h"

#define OPEN_RUNS_MAX  32
#define FILE_BYTES_MAX ((size_t)512 << 20)
#define NAME           "results.csv"
#define TEMPORARY      ".results.csv.new"

struct csv_run {
    char directory[PATH_MAX];
    struct evq_csv_table table;
    bool changed; // Since the last flush.
};

struct csv {
    struct evq_run_directories *dirs;
};

static void run_close(void *state)
{
    struct csv_run *run = state;

    if (run != NULL) {
        evq_csv_table_free(&run->table);
        free(run);
    }
}

static enum evq_status run_read(struct csv_run *run, struct evq_error *err)
{
    char path[PATH_MAX + sizeof(NAME)];
    struct evq_buffer text;

    (void)snprintf(path, sizeof(path), "%s/%s", run->directory, NAME);
    evq_buffer_init(&text, FILE_BYTES_MAX);
    enum evq_status status = evq_file_read(AT_FDCWD, path, 0, FILE_BYTES_MAX - 1, &text, err);
    if (status == EVQ_OK) {
        status = evq_csv_table_read(&run->table, text.data != NULL ? (const char *)text.data : "",
                                    text.bytes, err);
        if (status == EVQ_E_CORRUPT) { // Another program's file, or one that was edited.
            evq_error_prefix(err, "'%s' was changed by another program: move it away", path);
            status = EVQ_E_IO;
        }
    } else if (status == EVQ_E_NOT_FOUND) {
        status = EVQ_OK;
    }
    evq_buffer_free(&text);
    return status;
}

static enum evq_status run_open(void *context, const char *directory, void **ret_run,
                                struct evq_error *err)
{
    struct csv_run *run = calloc(1, sizeof(*run));

    (void)context; // A run's file needs nothing of the sink.
    if (run == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", directory);
    }
    (void)snprintf(run->directory, sizeof(run->directory), "%s", directory); // It fits: PATH_MAX.
    enum evq_status status = run_read(run, err);
    if (status != EVQ_OK) {
        run_close(run);
        return status;
    }
    *ret_run = run;
    return EVQ_OK;
}

static enum evq_status file_write(int directory, const struct evq_buffer *text,
                                  struct evq_error *err)
{
    const int fd =
        openat(directory, TEMPORARY, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);

    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", TEMPORARY, strerror(errno));
    }
    enum evq_status status = evq_file_write(fd, text->data, text->bytes, TEMPORARY, err);
    if (status == EVQ_OK) {
        status = evq_file_sync(fd, TEMPORARY, err);
    }
    (void)close(fd); // Synced, or what failed is reported.
    if (status == EVQ_OK &&
        (renameat(directory, TEMPORARY, directory, NAME) != 0 || fsync(directory) != 0)) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s': %s", TEMPORARY, strerror(errno));
    }
    if (status != EVQ_OK) {
        (void)unlinkat(directory, TEMPORARY, 0); // A full disk gets its room back.
    }
    return status;
}

static enum evq_status run_flush(void *state, struct evq_error *err)
{
    struct csv_run *run = state;
    struct evq_buffer text;

    if (!run->changed) {
        return EVQ_OK;
    }
    evq_buffer_init(&text, FILE_BYTES_MAX);
    evq_csv_table_csv(&run->table, &text);
    int directory = open(run->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum evq_status status = EVQ_OK;
    if (text.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "'%s/%s'", run->directory, NAME);
    } else if (directory < 0) {
        status = evq_error_set(err, EVQ_E_IO, "open '%s': %s", run->directory, strerror(errno));
    } else {
        status = file_write(directory, &text, err);
    }
    evq_file_close(&directory);
    evq_buffer_free(&text);
    run->changed = status != EVQ_OK;
    return status;
}

static void csv_close(void *state)
{
    struct csv *sink = state;

    if (sink != NULL) {
        evq_run_directories_close(sink->dirs);
        free(sink);
    }
}

static enum evq_status csv_open(const struct evq_sink_context *context, void **ret_state,
                                struct evq_error *err)
{
    static const struct evq_run_directories_ops ops = {run_open, run_flush, run_close};
    const char *given = evq_sink_option(context->sink, "directory");
    struct csv *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
    }
    enum evq_status status =
        evq_run_directories_open(given != NULL ? given : context->directory, "",
                                 ".results.csv.lock", OPEN_RUNS_MAX, &ops, sink, &sink->dirs, err);
    if (status != EVQ_OK) {
        csv_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

static enum evq_status csv_write(void *state, const struct evq_result *result,
                                 struct evq_error *err)
{
    struct csv *sink = state;
    char key[512];
    void *found = NULL;

    if (result->metric_count == 0) {
        return EVQ_OK; // The end of a job: no number.
    }
    enum evq_status status = evq_run_directories_get(sink->dirs, result->run, &found, err);
    struct csv_run *run = found;
    for (size_t i = 0; i < result->metric_count && status == EVQ_OK; i++) {
        bool changed = false;
        evq_result_metric_key(result, &result->metrics[i], key, sizeof(key));
        status = evq_csv_table_put(&run->table, result->step, key, result->metrics[i].value,
                                   &changed, err);
        run->changed = run->changed || changed;
    }
    evq_run_directories_wrote(sink->dirs, run, status);
    return status;
}

static enum evq_status csv_flush(void *state, struct evq_error *err)
{
    return evq_run_directories_flush(((struct csv *)state)->dirs, err);
}

static const char *const options[] = {"directory", NULL};

const struct evq_sink_ops evq_sink_csv = {
    .kind = "csv",
    .options = options,
    .gathers = true,
    .open = csv_open,
    .write = csv_write,
    .flush = csv_flush,
    .close = csv_close,
};
