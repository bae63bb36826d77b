#include "logger/tensorboard/tfrun.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "logger/tensorboard/tfevent.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define NAME_PREFIX "events.out.tfevents."
#define NAME_SUFFIX ".evalq"
#define TEMPORARY   ".evalq-compact.tmp"
#define UNSORTED    ".evalq-unsorted"
#define FILES_MAX   4096
#define WRITE_BYTES ((size_t)1 << 20) // At a time.

struct evq_tfrun {
    char directory[PATH_MAX];
    struct evq_point_buffer_set set;
    int fd;               // -1: no file of this process yet.
    int64_t name_seconds; // Highest number in a file name.
    size_t file_count;    // Ours in the directory.
    bool disordered;      // Some file holds a point at or before an earlier one of its tag.
    bool broken;          // A write failed: memory may be ahead of the files.
};

static bool name_is_ours(const char *name)
{
    size_t length = strlen(name);

    return length > sizeof(NAME_PREFIX) + sizeof(NAME_SUFFIX) &&
           strncmp(name, NAME_PREFIX, sizeof(NAME_PREFIX) - 1) == 0 &&
           strcmp(name + length - (sizeof(NAME_SUFFIX) - 1), NAME_SUFFIX) == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(char **names, size_t count)
{
    for (size_t i = 0; names != NULL && i < count; i++) {
        free(names[i]);
    }
    free(names);
}

/* Our files of the directory in name order. */
static enum evq_status names_list(const char *directory, char ***ret_names, size_t *ret_count,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char **names = calloc(FILES_MAX, sizeof(*names));
    size_t count = 0;
    DIR *handle = opendir(directory);

    if (names == NULL || handle == NULL) {
        status = evq_error_set(err, names == NULL ? EVQ_E_NOMEM : EVQ_E_IO, "list '%s': %s",
                               directory, strerror(errno));
        goto out;
    }
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (!name_is_ours(entry->d_name)) {
            continue;
        }
        if (count == FILES_MAX) {
            status = evq_error_set(err, EVQ_E_LIMIT, "'%s' holds over %d event files", directory,
                                   FILES_MAX);
            goto out;
        }
        names[count] = strdup(entry->d_name);
        if (names[count] == NULL) {
            status = evq_error_set(err, EVQ_E_NOMEM, "list '%s'", directory);
            goto out;
        }
        count++;
    }
    qsort(names, count, sizeof(*names), by_name);
    *ret_names = names;
    *ret_count = count;
    names = NULL;
out:
    names_free(names, count);
    if (handle != NULL) {
        (void)closedir(handle); // Opened for reading.
    }
    return status;
}

/* Takes every whole record at the front of text into the set; *ret_torn: the file is unreadable
 * from here on. */
static enum evq_status records_take(struct evq_tfrun *run, struct evq_buffer *text, bool *ret_torn,
                                    struct evq_error *err)
{
    struct evq_tfevent event;
    struct evq_error ignored;
    enum evq_point_buffer_change change;
    size_t start = 0;
    size_t length;
    enum evq_status status;

    while ((status = evq_tfevent_read(text->data + start, text->bytes - start, &event, &length,
                                      &ignored)) == EVQ_OK) {
        start += length;
        if (event.tag[0] == '\0') {
            continue;
        }
        struct evq_point point = {event.step, event.wall_seconds, event.value};
        status = evq_point_buffer_load(&run->set, event.tag, &point, &change, err);
        if (status != EVQ_OK) {
            return status;
        }
        run->disordered = run->disordered || change == EVQ_SERIES_EARLIER;
    }
    evq_buffer_consume(text, start);
    *ret_torn = status != EVQ_E_INCOMPLETE;
    return EVQ_OK;
}

static enum evq_status file_load(struct evq_tfrun *run, const char *name, struct evq_error *err)
{
    char path[PATH_MAX + NAME_MAX];
    char block[65536];
    struct evq_buffer text;
    enum evq_status status = EVQ_OK;
    bool torn = false;
    ssize_t got = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", run->directory, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    evq_buffer_init(&text, 2 * EVQ_TFEVENT_RECORD_BYTES_MAX);
    // A torn or damaged tail was never acknowledged: what it held is delivered again and goes to a
    // new file.
    while (status == EVQ_OK && !torn && (got = read(fd, block, sizeof(block))) > 0) {
        evq_buffer_append(&text, block, (size_t)got);
        status = text.failed ? evq_error_set(err, EVQ_E_NOMEM, "read '%s'", path)
                             : records_take(run, &text, &torn, err);
    }
    run->disordered = run->disordered || text.bytes > 0;
    evq_buffer_free(&text);
    (void)close(fd); // Opened for reading.
    return status == EVQ_OK && got < 0
               ? evq_error_set(err, EVQ_E_IO, "read '%s': %s", path, strerror(errno))
               : status;
}

static enum evq_status run_load(struct evq_tfrun *run, struct evq_error *err)
{
    char **names = NULL;
    size_t count = 0;
    enum evq_status status = names_list(run->directory, &names, &count, err);

    evq_point_buffer_free(&run->set);
    evq_file_close(&run->fd); // Its content is read back below.
    run->disordered = false;
    run->name_seconds = 0;
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        int64_t seconds = strtoll(names[i] + sizeof(NAME_PREFIX) - 1, NULL, 10);
        if (seconds > run->name_seconds) {
            run->name_seconds = seconds;
        }
        status = file_load(run, names[i], err);
    }
    run->file_count = count;
    run->broken = status != EVQ_OK;
    names_free(names, count);
    return status;
}

enum evq_status evq_tfrun_open(const char *directory, struct evq_tfrun **ret_run,
                               struct evq_error *err)
{
    struct evq_tfrun *run = calloc(1, sizeof(*run));

    if (run == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", directory);
    }
    run->fd = -1;
    run->set.directory = run->directory;
    if (snprintf(run->directory, sizeof(run->directory), "%s", directory) >=
        (int)sizeof(run->directory)) {
        evq_tfrun_close(run);
        return evq_error_set(err, EVQ_E_LIMIT, "directory path '%.80s...' is too long", directory);
    }
    enum evq_status status = run_load(run, err);
    if (status != EVQ_OK) {
        evq_tfrun_close(run);
        return status;
    }
    *ret_run = run;
    return EVQ_OK;
}

enum evq_status evq_tfrun_put(struct evq_tfrun *run, const char *tag, const struct evq_point *point,
                              struct evq_error *err)
{
    enum evq_point_buffer_change change;

    if (run->broken) {
        enum evq_status loaded = run_load(run, err);
        if (loaded != EVQ_OK) {
            return loaded;
        }
    }
    if (strlen(tag) >= EVQ_TFEVENT_TAG_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "tag '%.40s...' is over %d bytes", tag,
                             EVQ_TFEVENT_TAG_BYTES_MAX - 1);
    }
    const enum evq_status status = evq_point_buffer_put(&run->set, tag, point, &change, err);
    run->disordered = run->disordered || (status == EVQ_OK && change == EVQ_SERIES_EARLIER);
    run->broken = status != EVQ_OK;
    return status;
}

/* A name that sorts after every file of ours in the directory. */
static void name_next(struct evq_tfrun *run, char *out, size_t out_bytes)
{
    char host[128] = "host";
    int64_t now = evq_clock_unix_ms() / 1000;

    run->name_seconds = now > run->name_seconds ? now : run->name_seconds + 1;
    (void)gethostname(host, sizeof(host) - 1); // Decoration: the default serves.
    (void)snprintf(out, out_bytes, "%s%010lld.%s.%ld.0%s", NAME_PREFIX,
                   (long long)run->name_seconds, host, (long)getpid(), NAME_SUFFIX);
}

static enum evq_status directory_sync(const char *directory, struct evq_error *err)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) != 0) {
        enum evq_status status =
            evq_error_set(err, EVQ_E_IO, "sync '%s': %s", directory, strerror(errno));
        evq_file_close(&fd); // The failed sync is what is reported.
        return status;
    }
    (void)close(fd); // Synced above.
    return EVQ_OK;
}

/* Appends series' points above step to out; what grows large is written to fd on the way. */
static enum evq_status series_write(struct evq_tfrun *run, const struct evq_point_buffer *series,
                                    int64_t step, int fd, struct evq_buffer *out,
                                    struct evq_error *err)
{
    const struct evq_point *points = NULL;
    size_t count = 1;
    enum evq_status status = EVQ_OK;

    for (size_t i = evq_point_buffer_slice_above(series, step); status == EVQ_OK && count > 0;
         i++) {
        status = evq_point_buffer_slice(&run->set, series, i, &points, &count, err);
        for (size_t j = 0; status == EVQ_OK && j < count; j++) {
            if (points[j].step > step) {
                evq_tfevent_scalar(out, points[j].wall_seconds, points[j].step, series->tag,
                                   points[j].value);
            }
        }
        if (status == EVQ_OK && out->failed) {
            status = evq_error_set(err, EVQ_E_NOMEM, "no memory for events of '%s'", series->tag);
        }
        if (status == EVQ_OK && out->bytes >= WRITE_BYTES) {
            status = evq_file_write(fd, out->data, out->bytes, run->directory, err);
            evq_buffer_clear(out);
        }
    }
    return status;
}

static enum evq_status write_synced(int fd, const struct evq_buffer *data, const char *where,
                                    struct evq_error *err)
{
    const enum evq_status status = evq_file_write(fd, data->data, data->bytes, where, err);

    return status == EVQ_OK ? evq_file_sync(fd, where, err) : status;
}

/* Opens this process's file and writes its version record. */
static enum evq_status file_begin(struct evq_tfrun *run, struct evq_error *err)
{
    char name[NAME_MAX];
    char path[PATH_MAX + NAME_MAX];
    struct evq_buffer head;

    name_next(run, name, sizeof(name));
    (void)snprintf(path, sizeof(path), "%s/%s", run->directory, name);
    run->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (run->fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", path, strerror(errno));
    }
    run->file_count++;
    evq_buffer_init(&head, 0);
    evq_tfevent_version(&head, (double)run->name_seconds);
    enum evq_status status = head.failed ? evq_error_set(err, EVQ_E_NOMEM, "'%s'", path)
                                         : write_synced(run->fd, &head, run->directory, err);
    evq_buffer_free(&head);
    if (status != EVQ_OK) {
        (void)unlink(path); // Else a disk that stays full gets one more with every try.
        run->file_count--;
        return status;
    }
    return directory_sync(run->directory, err);
}

/* What is unwritten of every series, each in the order of its steps. */
static enum evq_status rest_write(struct evq_tfrun *run, struct evq_error *err)
{
    struct evq_buffer out;
    enum evq_status status = EVQ_OK;

    evq_buffer_init(&out, 2 * WRITE_BYTES);
    for (size_t s = 0; s < run->set.count && status == EVQ_OK; s++) {
        const struct evq_point_buffer *series = &run->set.series[s];
        if (evq_point_buffer_last(series) > series->written) {
            status = series_write(run, series, series->written, run->fd, &out, err);
        }
    }
    if (status == EVQ_OK) {
        status = write_synced(run->fd, &out, run->directory, err);
    }
    evq_buffer_free(&out);
    for (size_t s = 0; s < run->set.count && status == EVQ_OK; s++) {
        run->set.series[s].written = evq_point_buffer_last(&run->set.series[s]);
    }
    return status;
}

static void marker_path(const char *directory, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, "%s/%s", directory, UNSORTED);
}

/* Left beside the files until they are compacted, so that a later logger knows of them. */
static void marker_put(const struct evq_tfrun *run)
{
    char path[PATH_MAX + sizeof(UNSORTED)];

    marker_path(run->directory, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    evq_file_close(&fd); // Without it the files are only compacted by the next write to the run.
}

static void marker_remove(const struct evq_tfrun *run)
{
    char path[PATH_MAX + sizeof(UNSORTED)];

    marker_path(run->directory, path, sizeof(path));
    (void)unlink(path); // One that stays costs a look at the next stop.
}

bool evq_tfrun_is_unsorted(const char *directory)
{
    char path[PATH_MAX + sizeof(UNSORTED)];

    marker_path(directory, path, sizeof(path));
    return access(path, F_OK) == 0;
}

enum evq_status evq_tfrun_flush(struct evq_tfrun *run, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    bool any = false;

    if (run->broken) {
        return evq_error_set(err, EVQ_E_IO, "events of '%s' were not written", run->directory);
    }
    for (size_t s = 0; s < run->set.count; s++) {
        any = any || evq_point_buffer_last(&run->set.series[s]) > run->set.series[s].written;
    }
    if (!any) {
        return EVQ_OK;
    }
    if (run->fd < 0) {
        marker_put(run);
        status = file_begin(run, err);
    }
    if (status == EVQ_OK) {
        status = rest_write(run, err);
    }
    run->broken = status != EVQ_OK;
    return status;
}

/* Writes everything sorted under a name no reader looks at, then renames it to one that sorts last.
 */
static enum evq_status sorted_file_write(struct evq_tfrun *run, char *name, size_t name_bytes,
                                         struct evq_error *err)
{
    char temporary[PATH_MAX + sizeof(TEMPORARY)];
    char path[PATH_MAX + NAME_MAX];
    struct evq_buffer out;
    enum evq_status status = EVQ_OK;

    (void)snprintf(temporary, sizeof(temporary), "%s/%s", run->directory, TEMPORARY);
    evq_buffer_init(&out, 2 * WRITE_BYTES);
    name_next(run, name, name_bytes);
    evq_tfevent_version(&out, (double)run->name_seconds);
    (void)snprintf(path, sizeof(path), "%s/%s", run->directory, name);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        status = evq_error_set(err, EVQ_E_IO, "create '%s': %s", temporary, strerror(errno));
    }
    for (size_t s = 0; s < run->set.count && status == EVQ_OK; s++) {
        status = series_write(run, &run->set.series[s], INT64_MIN, fd, &out, err);
    }
    if (status == EVQ_OK) {
        status = write_synced(fd, &out, run->directory, err);
    }
    if (fd >= 0 && close(fd) != 0 && status == EVQ_OK) {
        status = evq_error_set(err, EVQ_E_IO, "close '%s': %s", temporary, strerror(errno));
    }
    if (status == EVQ_OK && rename(temporary, path) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s': %s", temporary, strerror(errno));
    }
    if (status != EVQ_OK) {
        (void)unlink(temporary); // The next compaction would overwrite it too.
    }
    evq_buffer_free(&out);
    return status == EVQ_OK ? directory_sync(run->directory, err) : status;
}

enum evq_status evq_tfrun_compact(struct evq_tfrun *run, struct evq_error *err)
{
    char kept[NAME_MAX];
    char path[PATH_MAX + NAME_MAX];
    char **names = NULL;
    size_t count = 0;

    enum evq_status status = evq_tfrun_flush(run, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (run->file_count <= 1 && !run->disordered) {
        marker_remove(run);
        return EVQ_OK;
    }
    status = names_list(run->directory, &names, &count, err);
    if (status == EVQ_OK) {
        status = sorted_file_write(run, kept, sizeof(kept), err);
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", run->directory, names[i]);
        if (unlink(path) != 0) {
            status = evq_error_set(err, EVQ_E_IO, "remove '%s': %s", path, strerror(errno));
        }
    }
    names_free(names, count);
    if (status == EVQ_OK) {
        run->file_count = 1;
        run->disordered = false;
        evq_file_close(&run->fd); // The file was removed: its content is in the sorted one.
        marker_remove(run);
    }
    return status;
}

struct evq_point_buffer_set *evq_tfrun_series(struct evq_tfrun *run)
{
    return &run->set;
}

void evq_tfrun_close(struct evq_tfrun *run)
{
    if (run == NULL) {
        return;
    }
    evq_file_close(&run->fd); // What was acknowledged was synced.
    evq_point_buffer_free(&run->set);
    free(run);
}
