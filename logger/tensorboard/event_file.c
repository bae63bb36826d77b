#include "logger/tensorboard/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "logger/tensorboard/event_reader.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define TEMPORARY        ".evalq-compact.tmp" // Readers ignore a name without "tfevents".
#define WRITE_BYTES      ((size_t)1 << 20)    // The buffer is written from this size on.
#define KEPT_BYTES       ((size_t)64 << 10)   // Memory that an idle buffer may keep.
#define LATE_POINTS_MAX  65536                // 1.5 MiB; then the file is rewritten.
#define REWRITE_PAUSE_MS 500                  // Between two rewrites, and at least
#define REWRITE_SHARE    20                   // so many times the duration of the last one.

struct evq_event_file {
    char directory[PATH_MAX];
    char path[PATH_MAX + NAME_MAX]; // "": there is no file yet.
    int fd;                         // -1: there is no file yet.
    off_t bytes;                    // Size of the file.
    int64_t name_seconds;           // Highest number in a file name of the directory.
    struct evq_buffer append;       // Records that follow the file's.
    bool unsynced;                  // The file was written since the last sync,
    bool created;                   // and is new in its directory.
    struct evq_curves curves;
    int64_t rewrite_due_ms;
};

/* The copy that a rewrite makes. It begins at the first difference. */
struct copy {
    int fd; // -1: nothing differs so far.
    off_t bytes;
    struct evq_buffer out;
};

/* Makes a path that sorts after every event file of the directory. */
static void path_next(struct evq_event_file *file, char *out, size_t out_bytes)
{
    char host[128] = "host";
    int64_t now = evq_clock_unix_ms() / 1000;

    file->name_seconds = now > file->name_seconds ? now : file->name_seconds + 1;
    (void)gethostname(host, sizeof(host) - 1); // Decoration: the default serves.
    (void)snprintf(out, out_bytes, "%s/%s%010lld.%s.%ld.0%s", file->directory,
                   EVQ_EVENT_NAME_PREFIX, (long long)file->name_seconds, host, (long)getpid(),
                   EVQ_EVENT_NAME_SUFFIX);
}

/* Gives the file a name that sorts last, under which TensorBoard reads it from its beginning. */
static enum evq_status file_rename(struct evq_event_file *file, struct evq_error *err)
{
    char path[sizeof(file->path)];

    path_next(file, path, sizeof(path));
    if (rename(file->path, path) != 0) {
        return evq_error_set(err, EVQ_E_IO, "rename '%s': %s", file->path, strerror(errno));
    }
    memcpy(file->path, path, sizeof(path));
    return EVQ_OK;
}

static enum evq_status directory_sync(const char *directory, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "sync '%s': %s", directory, strerror(errno));
    }
    evq_file_close(&fd);
    return status;
}

/* ---- writing ---- */

static enum evq_status file_create(struct evq_event_file *file, struct evq_error *err)
{
    path_next(file, file->path, sizeof(file->path));
    file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file->fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", file->path, strerror(errno));
    }
    file->bytes = 0;
    file->created = true;
    return EVQ_OK;
}

static enum evq_status buffer_write(int fd, struct evq_buffer *buffer, off_t *bytes,
                                    const char *name, struct evq_error *err)
{
    if (buffer->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "events of '%s'", name);
    }
    const enum evq_status status =
        evq_file_write_at(fd, buffer->data, buffer->bytes, (uint64_t)*bytes, name, err);
    if (status == EVQ_OK) {
        *bytes += (off_t)buffer->bytes;
        evq_buffer_clear(buffer);
    }
    return status;
}

/* Writes the append buffer behind the file's records. A file begins with a version record. */
static enum evq_status append_write(struct evq_event_file *file, struct evq_error *err)
{
    struct evq_buffer version;
    enum evq_status status = EVQ_OK;

    if (file->append.bytes == 0 && !file->append.failed) {
        return EVQ_OK;
    }
    if (file->fd < 0) {
        status = file_create(file, err);
    }
    file->unsynced = true;
    if (status == EVQ_OK && file->bytes == 0) {
        evq_buffer_init(&version, 0);
        evq_tfevent_version(&version, (double)file->name_seconds);
        status = buffer_write(file->fd, &version, &file->bytes, file->path, err);
        evq_buffer_free(&version);
    }
    if (status == EVQ_OK) {
        status = buffer_write(file->fd, &file->append, &file->bytes, file->path, err);
    }
    if (file->append.capacity > KEPT_BYTES) {
        evq_buffer_free(&file->append);
    }
    return status;
}

/* ---- the rewrite ---- */

/* Makes the copy, with the records of the file before `same_bytes`, unless it was made before. */
static enum evq_status copy_begin(struct evq_event_file *file, struct copy *copy, off_t same_bytes,
                                  struct evq_error *err)
{
    char path[PATH_MAX + sizeof(TEMPORARY)];
    uint8_t block[65536];
    enum evq_status status = EVQ_OK;

    if (copy->fd >= 0) {
        return EVQ_OK;
    }
    (void)snprintf(path, sizeof(path), "%s/%s", file->directory, TEMPORARY);
    copy->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (copy->fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", path, strerror(errno));
    }
    while (status == EVQ_OK && copy->bytes < same_bytes) {
        const off_t left = same_bytes - copy->bytes;
        const size_t count = left < (off_t)sizeof(block) ? (size_t)left : sizeof(block);
        status = evq_file_read_at(file->fd, block, count, (uint64_t)copy->bytes, file->path, err);
        if (status == EVQ_OK) {
            status = evq_file_write_at(copy->fd, block, count, (uint64_t)copy->bytes, path, err);
        }
        copy->bytes += (off_t)count;
    }
    return status;
}

/* Puts the curve's next late point into the copy, and passes over older points of the same step. */
static void copy_late_point(struct copy *copy, struct evq_curve *curve)
{
    const struct evq_point *point = &curve->late[curve->late_next];

    evq_tfevent_scalar(&copy->out, point->wall_seconds, point->step, curve->tag, point->value);
    while (curve->late_next < curve->late_count &&
           curve->late[curve->late_next].step == point->step) {
        curve->late_next++;
    }
}

/* Puts a record of the file into the copy, after the late points that belong before it. A late
 * point of the same step replaces it if that is newer. */
static enum evq_status copy_record(struct evq_event_file *file, struct copy *copy,
                                   const struct evq_event_reader *reader, struct evq_error *err)
{
    const struct evq_tfevent *event = &reader->event;
    const off_t before = reader->offset - (off_t)reader->record_bytes;
    enum evq_status status = EVQ_OK;
    bool replaced = false;
    struct evq_curve *curve = evq_curves_find(&file->curves, event->tag);

    while (curve != NULL && status == EVQ_OK && curve->late_next < curve->late_count &&
           curve->late[curve->late_next].step <= event->step) {
        const struct evq_point *point = &curve->late[curve->late_next];
        const bool same_step = point->step == event->step;
        if (same_step && !(point->wall_seconds > event->wall_seconds)) {
            curve->late_next++; // A repeated point.
            continue;
        }
        replaced = replaced || same_step;
        status = copy_begin(file, copy, before, err);
        if (status == EVQ_OK) {
            copy_late_point(copy, curve);
        }
    }
    if (status == EVQ_OK && copy->fd >= 0 && !replaced) {
        evq_buffer_append(&copy->out, reader->record, reader->record_bytes);
    }
    return status;
}

/* Merges the file and the late points into the copy. */
static enum evq_status copy_write(struct evq_event_file *file, struct copy *copy,
                                  struct evq_error *err)
{
    struct evq_event_reader reader;
    bool found = true;
    enum evq_status status = EVQ_OK;

    evq_event_reader_init(&reader, file->fd);
    while (status == EVQ_OK) {
        status = evq_event_reader_next(&reader, &found, err);
        if (status != EVQ_OK || !found) {
            break;
        }
        status = copy_record(file, copy, &reader, err);
        if (status == EVQ_OK && (copy->out.bytes >= WRITE_BYTES || copy->out.failed)) {
            status = buffer_write(copy->fd, &copy->out, &copy->bytes, file->path, err);
        }
    }
    if (status == EVQ_OK && copy->fd >= 0) {
        status = buffer_write(copy->fd, &copy->out, &copy->bytes, file->path, err);
    }
    evq_event_reader_free(&reader);
    return status;
}

/* The copy replaces the file in two renames. At each moment the directory has one event file. */
static enum evq_status copy_replace(struct evq_event_file *file, struct copy *copy,
                                    struct evq_error *err)
{
    char path[PATH_MAX + sizeof(TEMPORARY)];

    (void)snprintf(path, sizeof(path), "%s/%s", file->directory, TEMPORARY);
    enum evq_status status = evq_file_sync(copy->fd, path, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (rename(path, file->path) != 0) {
        return evq_error_set(err, EVQ_E_IO, "rename '%s': %s", path, strerror(errno));
    }
    evq_file_close(&file->fd);
    file->fd = copy->fd;
    file->bytes = copy->bytes;
    copy->fd = -1;
    return file_rename(file, err);
}

static enum evq_status rewrite(struct evq_event_file *file, struct evq_error *err)
{
    struct copy copy = {.fd = -1};
    const int64_t begun_ms = evq_clock_mono_ms();

    evq_buffer_init(&copy.out, 2 * WRITE_BYTES + EVQ_TFEVENT_RECORD_BYTES_MAX);
    evq_curves_sort_late(&file->curves);
    enum evq_status status = copy_write(file, &copy, err);
    if (status == EVQ_OK && copy.fd >= 0) {
        status = copy_replace(file, &copy, err);
        file->created = true;
    }
    evq_file_close(&copy.fd); // After an error; the next rewrite overwrites it.
    evq_buffer_free(&copy.out);
    if (status == EVQ_OK) {
        evq_curves_drop_late(&file->curves);
    }
    const int64_t now_ms = evq_clock_mono_ms();
    const int64_t pause_ms = REWRITE_SHARE * (now_ms - begun_ms);
    file->rewrite_due_ms = now_ms + (pause_ms > REWRITE_PAUSE_MS ? pause_ms : REWRITE_PAUSE_MS);
    return status;
}

/* ---- putting ---- */

enum evq_status evq_event_file_put(struct evq_event_file *file, const char *name,
                                   const struct evq_point *point, struct evq_error *err)
{
    if (strlen(name) >= EVQ_TFEVENT_TAG_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "tag '%.40s...' is over %d bytes", name,
                             EVQ_TFEVENT_TAG_BYTES_MAX - 1);
    }
    struct evq_curve *curve = evq_curves_get(&file->curves, name);
    if (curve == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "tag '%s'", name);
    }
    if (curve->has_points && point->step <= curve->last_step) {
        const enum evq_status status = evq_curves_put_late(&file->curves, curve, point, err);
        return status == EVQ_OK && file->curves.late_count >= LATE_POINTS_MAX
                   ? evq_event_file_flush(file, err)
                   : status;
    }
    curve->has_points = true;
    curve->last_step = point->step;
    evq_tfevent_scalar(&file->append, point->wall_seconds, point->step, name, point->value);
    return file->append.bytes < WRITE_BYTES && !file->append.failed ? EVQ_OK
                                                                    : append_write(file, err);
}

bool evq_event_file_defers(const struct evq_event_file *file, const char *name, int64_t step)
{
    if (file->curves.late_count > 0 || evq_clock_mono_ms() >= file->rewrite_due_ms) {
        return false; // A rewrite is to come anyway, or may come.
    }
    const struct evq_curve *curve = evq_curves_find(&file->curves, name);
    return curve != NULL && curve->has_points && step <= curve->last_step;
}

enum evq_status evq_event_file_flush(struct evq_event_file *file, struct evq_error *err)
{
    enum evq_status status = append_write(file, err);

    if (status == EVQ_OK && file->curves.late_count > 0) {
        status = rewrite(file, err);
    }
    if (status == EVQ_OK && file->unsynced) {
        status = evq_file_sync(file->fd, file->path, err);
        file->unsynced = false;
    }
    if (status == EVQ_OK && file->created) {
        status = directory_sync(file->directory, err);
        file->created = false;
    }
    return status;
}

/* ---- opening ---- */

/* Reads which steps the file has. EVQ_E_CORRUPT: the steps of a tag do not ascend. */
static enum evq_status file_scan(struct evq_event_file *file, struct evq_error *err)
{
    struct evq_event_reader reader;
    bool found = false;
    enum evq_status status = EVQ_OK;

    evq_event_reader_init(&reader, file->fd);
    while (status == EVQ_OK) {
        status = evq_event_reader_next(&reader, &found, err);
        if (status != EVQ_OK || !found) {
            break;
        }
        const struct evq_tfevent *event = &reader.event;
        if (event->tag[0] == '\0') {
            continue; // The version record.
        }
        struct evq_curve *curve = evq_curves_get(&file->curves, event->tag);
        if (curve == NULL) {
            status = evq_error_set(err, EVQ_E_NOMEM, "tag '%s'", event->tag);
        } else if (curve->has_points && event->step <= curve->last_step) {
            status = evq_error_set(err, EVQ_E_CORRUPT,
                                   "'%s' was changed by another program: step %lld of a tag comes "
                                   "after step %lld; move the file away and replay the sink",
                                   file->path, (long long)event->step, (long long)curve->last_step);
        } else {
            curve->has_points = true;
            curve->last_step = event->step;
        }
    }
    file->bytes = reader.offset;
    evq_event_reader_free(&reader);
    return status;
}

static enum evq_status file_open(struct evq_event_file *file, const char *name,
                                 struct evq_error *err)
{
    (void)snprintf(file->path, sizeof(file->path), "%s/%s", file->directory, name);
    file->fd = open(file->path, O_RDWR | O_CLOEXEC);
    return file->fd >= 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_IO, "open '%s': %s", file->path, strerror(errno));
}

/* Goes on with a sorted file. A new name lets a TensorBoard that is at a torn record forget it. */
static enum evq_status file_adopt(struct evq_event_file *file, struct evq_error *err)
{
    if (ftruncate(file->fd, file->bytes) != 0) {
        return evq_error_set(err, EVQ_E_IO, "remove the incomplete end of '%s': %s", file->path,
                             strerror(errno));
    }
    return file_rename(file, err);
}

enum evq_status evq_event_file_open(const char *directory, struct evq_event_file **ret_file,
                                    struct evq_error *err)
{
    struct evq_event_file *file = calloc(1, sizeof(*file));
    char **names = NULL;
    size_t count = 0;

    if (file == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", directory);
    }
    file->fd = -1;
    evq_buffer_init(&file->append, 0);
    enum evq_status status =
        snprintf(file->directory, sizeof(file->directory), "%s", directory) < PATH_MAX
            ? evq_event_names(file->directory, &names, &count, err)
            : evq_error_set(err, EVQ_E_LIMIT, "path '%.80s...' is too long", directory);
    for (size_t i = 0; i < count; i++) {
        const int64_t seconds = strtoll(names[i] + sizeof(EVQ_EVENT_NAME_PREFIX) - 1, NULL, 10);
        file->name_seconds = seconds > file->name_seconds ? seconds : file->name_seconds;
    }
    if (status == EVQ_OK && count > 1) {
        status =
            evq_error_set(err, EVQ_E_CORRUPT,
                          "'%s' has %zu event files of evalq, expected one: move them away and "
                          "replay the sink",
                          directory, count);
    }
    if (status == EVQ_OK && count == 1) {
        status = file_open(file, names[0], err);
        if (status == EVQ_OK) {
            status = file_scan(file, err);
        }
        if (status == EVQ_OK) {
            status = file_adopt(file, err);
        }
    }
    evq_event_names_free(names, count);
    if (status != EVQ_OK) {
        evq_event_file_close(file);
        return status;
    }
    *ret_file = file;
    return EVQ_OK;
}

void evq_event_file_close(struct evq_event_file *file)
{
    if (file == NULL) {
        return;
    }
    evq_file_close(&file->fd); // Everything that was acknowledged was synced.
    evq_curves_free(&file->curves);
    evq_buffer_free(&file->append);
    free(file);
}
