/* The sink `jsonl`: one file RUN/results.jsonl with one JSON object a line, appended and synced
 * before it is acknowledged. A repeated result is recognised by its result id and its numbers,
 * which are read from the file when it is opened. A torn last line is cut off. Other numbers under
 * the same id are another evaluation, for example after the run was forgotten.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "logger/run_directories.h"
#include "logger/sinks/id_set.h"
#include "logger/sinks/sink.h"
#include "shared/base/buffer.h"
#include "shared/base/file.h"

#define NAME           "results.jsonl"
#define OPEN_RUNS_MAX  128
#define LINE_BYTES_MAX (1u << 20)
#define PENDING_BYTES  ((size_t)1 << 20)  // From this size on, lines are written before the flush.
#define KEPT_BYTES     ((size_t)64 << 10) // Memory that an idle run may keep.
#define KEY_BYTES_MAX  (EVQ_RESULT_ID_BYTES_MAX + sizeof(uint64_t))

struct jsonl_run {
    char directory[PATH_MAX];
    int fd;
    off_t bytes;               // Durable content. A failed write is cut back to it.
    struct evq_buffer pending; // Lines that are not yet in the file.
    struct evq_id_set keys;    // The keys of all lines, including pending ones.
};

struct jsonl {
    struct evq_run_directories *dirs;
    size_t pending_bytes; // Since the last flush, of all runs.
    struct evq_buffer line;
};

/* Finds the part of a line between two texts, which cannot be inside a value. *ret_bytes is 0 if
 * there is none. */
static const char *between(const char *line, size_t bytes, const char *before, const char *after,
                           size_t *ret_bytes)
{
    const char *at = memmem(line, bytes, before, strlen(before));

    *ret_bytes = 0;
    if (at == NULL) {
        return line;
    }
    at += strlen(before);
    const char *end = memmem(at, bytes - (size_t)(at - line), after, strlen(after));
    *ret_bytes = end != NULL ? (size_t)(end - at) : 0;
    return at;
}

/* Makes the key of a line: its result_id, which has no character that JSON escapes, and a hash of
 * its metrics. Returns the key's length, or 0 if the line has no id. */
static size_t line_key(const char *line, size_t bytes, char key[KEY_BYTES_MAX])
{
    size_t id_bytes;
    size_t metrics_bytes;
    const char *id = between(line, bytes, "\"result_id\":\"", "\"", &id_bytes);
    const char *metrics = between(line, bytes, ",\"metrics\":{", "},\"", &metrics_bytes);
    const uint64_t hash = XXH3_64bits(metrics, metrics_bytes);

    if (id_bytes == 0 || id_bytes > KEY_BYTES_MAX - sizeof(hash)) {
        return 0;
    }
    memcpy(key, id, id_bytes);
    memcpy(key + id_bytes, &hash, sizeof(hash));
    return id_bytes + sizeof(hash);
}

/* Adds the keys of all complete lines. *ret_bytes: how many bytes these lines have. */
static enum evq_status lines_scan(const uint8_t *data, size_t bytes, struct evq_id_set *keys,
                                  size_t *ret_bytes, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char key[KEY_BYTES_MAX];
    size_t start = 0;
    const uint8_t *end;

    while (status == EVQ_OK && start < bytes &&
           (end = memchr(data + start, '\n', bytes - start)) != NULL) {
        size_t line_bytes = (size_t)(end - data) - start;
        const size_t key_bytes = line_key((const char *)data + start, line_bytes, key);
        status = key_bytes > 0 ? evq_id_set_add(keys, key, key_bytes, err) : EVQ_OK;
        start += line_bytes + 1;
    }
    *ret_bytes = start;
    return status;
}

/* Reads the keys of all complete lines of the file. run->bytes becomes the end of the last one. */
static enum evq_status run_scan(struct jsonl_run *run, const char *path, struct evq_error *err)
{
    struct evq_buffer text;
    char block[65536];
    off_t offset = 0;
    enum evq_status status = EVQ_OK;

    evq_buffer_init(&text, 2 * LINE_BYTES_MAX);
    while (status == EVQ_OK) {
        size_t whole = 0;
        ssize_t got = pread(run->fd, block, sizeof(block), offset);
        if (got < 0) {
            status = evq_error_set(err, EVQ_E_IO, "read '%s': %s", path, strerror(errno));
            break;
        }
        if (got == 0) {
            break;
        }
        offset += got;
        evq_buffer_append(&text, block, (size_t)got);
        if (text.failed) {
            status = text.full
                         ? evq_error_set(err, EVQ_E_CORRUPT, "'%s' holds a line over %u bytes",
                                         path, LINE_BYTES_MAX)
                         : evq_error_set(err, EVQ_E_NOMEM, "the lines of '%s'", path);
            break;
        }
        status = lines_scan(text.data, text.bytes, &run->keys, &whole, err);
        run->bytes += (off_t)whole;
        evq_buffer_consume(&text, whole);
    }
    evq_buffer_free(&text);
    return status;
}

static void run_close(void *state)
{
    struct jsonl_run *run = state;

    if (run == NULL) {
        return;
    }
    evq_file_close(&run->fd); // What matters was synced by flush.
    evq_id_set_clear(&run->keys);
    evq_buffer_free(&run->pending);
    free(run);
}

static enum evq_status run_open(void *context, const char *directory, void **ret_run,
                                struct evq_error *err)
{
    (void)context; // A run's file needs nothing of the sink.
    char path[PATH_MAX + sizeof(NAME)];
    enum evq_status status = EVQ_OK;
    struct jsonl_run *run = calloc(1, sizeof(*run));

    if (run == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", directory);
    }
    run->fd = -1;
    evq_buffer_init(&run->pending, 0);
    (void)snprintf(run->directory, sizeof(run->directory), "%s", directory); // It fits: PATH_MAX.
    (void)snprintf(path, sizeof(path), "%s/%s", run->directory, NAME);
    run->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (run->fd < 0) {
        status = evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
        goto out;
    }
    status = run_scan(run, path, err);
    if (status == EVQ_OK && ftruncate(run->fd, run->bytes) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "remove the incomplete last line of '%s': %s", path,
                               strerror(errno));
    }
out:
    if (status != EVQ_OK) {
        run_close(run);
        return status;
    }
    *ret_run = run;
    return EVQ_OK;
}

static enum evq_status run_flush(void *state, struct evq_error *err)
{
    struct jsonl_run *run = state;
    enum evq_status status = evq_file_write_at(run->fd, run->pending.data, run->pending.bytes,
                                               (uint64_t)run->bytes, NAME, err);

    if (status == EVQ_OK) {
        status = evq_file_sync(run->fd, NAME, err);
    }
    if (status != EVQ_OK) {
        if (ftruncate(run->fd, run->bytes) != 0) {
            evq_error_prefix(err, "an incomplete last line stays until the logger starts again");
        }
        return status;
    }
    run->bytes += (off_t)run->pending.bytes;
    evq_buffer_clear(&run->pending);
    if (run->pending.capacity > KEPT_BYTES) {
        evq_buffer_free(&run->pending);
    }
    return EVQ_OK;
}

static void jsonl_close(void *state)
{
    struct jsonl *sink = state;

    if (sink == NULL) {
        return;
    }
    evq_run_directories_close(sink->dirs);
    evq_buffer_free(&sink->line);
    free(sink);
}

static enum evq_status jsonl_open(const struct evq_sink_context *context, void **ret_state,
                                  struct evq_error *err)
{
    static const struct evq_run_directories_ops ops = {run_open, run_flush, run_close};
    struct jsonl *sink = calloc(1, sizeof(*sink));
    char lock_name[64];

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
    }
    evq_buffer_init(&sink->line, LINE_BYTES_MAX);
    (void)snprintf(lock_name, sizeof(lock_name), ".%.40s.lock", context->sink->name);
    enum evq_status status = evq_run_directories_open(context->directory, "", lock_name,
                                                      OPEN_RUNS_MAX, &ops, sink, &sink->dirs, err);
    if (status != EVQ_OK) {
        jsonl_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

/* Adds a line and its key, or after an error neither. */
static enum evq_status run_add(struct jsonl_run *run, const char *key, size_t key_bytes,
                               const struct evq_buffer *line, struct evq_error *err)
{
    const size_t before = run->pending.bytes;

    evq_buffer_append(&run->pending, line->data, line->bytes);
    enum evq_status status = run->pending.failed
                                 ? evq_error_set(err, EVQ_E_NOMEM, "lines of '%s'", run->directory)
                                 : evq_id_set_add(&run->keys, key, key_bytes, err);
    if (status != EVQ_OK) {
        run->pending.bytes = before;
        run->pending.failed = false;
    }
    return status;
}

static enum evq_status jsonl_flush(void *state, struct evq_error *err)
{
    struct jsonl *sink = state;

    sink->pending_bytes = 0;
    return evq_run_directories_flush(sink->dirs, err);
}

/* Writes the result as a line. */
static enum evq_status line_make(struct evq_buffer *line, const struct evq_result *result,
                                 struct evq_error *err)
{
    char id[EVQ_RESULT_ID_BYTES_MAX];

    evq_buffer_clear(line);
    evq_result_json(result, line);
    evq_buffer_text(line, "\n");
    if (!line->failed) {
        return EVQ_OK;
    }
    evq_result_id(result, id);
    // Without memory the result comes again. EVQ_E_LIMIT would set it aside.
    return line->full ? evq_error_set(err, EVQ_E_LIMIT, "result %s is over %u bytes as JSON", id,
                                      LINE_BYTES_MAX)
                      : evq_error_set(err, EVQ_E_NOMEM, "result %s", id);
}

static enum evq_status jsonl_write(void *state, const struct evq_result *result,
                                   struct evq_error *err)
{
    struct jsonl *sink = state;
    char key[KEY_BYTES_MAX];
    size_t key_bytes = 0;
    void *found = NULL;
    enum evq_status status = EVQ_OK;

    if (sink->pending_bytes >= PENDING_BYTES) {
        status = jsonl_flush(sink, err);
    }
    if (status == EVQ_OK) {
        status = line_make(&sink->line, result, err);
    }
    if (status == EVQ_OK) {
        key_bytes = line_key((const char *)sink->line.data, sink->line.bytes, key);
        status = evq_run_directories_get(sink->dirs, result->run, &found, err);
    }
    struct jsonl_run *run = found;
    if (status == EVQ_OK && !evq_id_set_has(&run->keys, key, key_bytes)) {
        sink->pending_bytes += sink->line.bytes;
        status = run_add(run, key, key_bytes, &sink->line, err);
    }
    evq_run_directories_wrote(sink->dirs, run, status);
    return status;
}

static const char *const options[] = {NULL};

const struct evq_sink_ops evq_sink_jsonl = {
    .kind = "jsonl",
    .options = options,
    .gathers = true,
    .ends = true,
    .open = jsonl_open,
    .write = jsonl_write,
    .flush = jsonl_flush,
    .close = jsonl_close,
};
