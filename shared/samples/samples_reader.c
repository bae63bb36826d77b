#include "shared/samples/samples_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shared/base/json_memory.h"
#include "shared/samples/text_cut.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define JSON_FLAGS  (JSON_REJECT_DUPLICATES | JSON_DECODE_ANY)

struct evq_samples_reader {
    char *path;
    gzFile file;
    bool ended;          // zlib has no more bytes.
    bool skips_texts;    // See evq_samples_reader_skip_texts().
    bool whole;          // The file has a first and a last line of evalq_samples_writer.
    uint32_t crc;        // Of the bytes of all lines so far,
    uint32_t crc_before; // and of those before the present line.
    int64_t line;
    int64_t items;
    size_t bytes; // Read so far, uncompressed.
    struct evq_samples_limits limits;
    json_t *object;
    struct evq_buffer held; // Bytes that were read and not used yet.
    size_t used;            // Bytes at the beginning of held that belong to earlier lines.
    size_t searched;        // Bytes behind used that hold no end of a line.
};

static enum evq_status file_open(struct evq_samples_reader *reader, const char *path,
                                 struct evq_error *err)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0) {
        return evq_error_set(err, errno == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO, "open '%s': %s",
                             path, strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)close(fd); // Nothing was written.
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a regular file", path);
    }
    reader->file = gzdopen(fd, "rb");
    if (reader->file == NULL) {
        (void)close(fd); // Nothing was written.
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to read '%s'", path);
    }
    return EVQ_OK;
}

enum evq_status evq_samples_reader_open(const char *path, struct evq_samples_header *ret_header,
                                        struct evq_samples_reader **ret_reader,
                                        struct evq_error *err)
{
    struct evq_samples_reader *reader = calloc(1, sizeof *reader);
    const json_t *object = NULL;
    enum evq_status status = EVQ_OK;

    if (reader != NULL) {
        evq_buffer_init(&reader->held, EVQ_SAMPLES_LINE_BYTES_MAX + 2 * CHUNK_BYTES);
        reader->path = strdup(path);
        reader->limits =
            (struct evq_samples_limits){.bytes = SIZE_MAX, .items = EVQ_SAMPLES_ITEMS_MAX};
        reader->whole = ret_header != NULL;
    }
    if (reader == NULL || reader->path == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory to read '%s'", path);
        goto out;
    }
    status = file_open(reader, path, err);
    if (status == EVQ_OK && ret_header != NULL) {
        status = evq_samples_reader_object(reader, &object, err);
    }
    if (status == EVQ_OK && ret_header != NULL) {
        status = evq_samples_header_read(object, ret_header, err);
        if (status != EVQ_OK) {
            status = evq_samples_reader_at(reader, err);
        }
    }
out:
    if (status != EVQ_OK) {
        evq_samples_reader_close(reader);
        return status;
    }
    *ret_reader = reader;
    return EVQ_OK;
}

void evq_samples_reader_limit(struct evq_samples_reader *reader,
                              const struct evq_samples_limits *limits)
{
    reader->limits = *limits;
}

void evq_samples_reader_skip_texts(struct evq_samples_reader *reader)
{
    reader->skips_texts = true;
}

void evq_samples_reader_close(struct evq_samples_reader *reader)
{
    if (reader != NULL) {
        if (reader->file != NULL) {
            (void)gzclose_r(reader->file); // It was only read.
        }
        json_decref(reader->object);
        evq_buffer_free(&reader->held);
        free(reader->path);
        free(reader);
    }
}

enum evq_status evq_samples_reader_at(const struct evq_samples_reader *reader,
                                      struct evq_error *err)
{
    return evq_error_prefix(err, "'%s', line %" PRId64, reader->path, reader->line);
}

/* Appends the next bytes of the file to held. */
static enum evq_status fill(struct evq_samples_reader *reader, struct evq_error *err)
{
    uint8_t chunk[16384];
    int code = Z_OK;

    evq_buffer_consume(&reader->held, reader->used);
    reader->used = 0;
    const int bytes = gzread(reader->file, chunk, sizeof chunk);
    const char *fault = gzerror(reader->file, &code);
    if (bytes < 0 || code == Z_BUF_ERROR) {
        return code == Z_BUF_ERROR
                   ? evq_error_set(err, EVQ_E_CORRUPT, "'%s' is truncated after line %" PRId64,
                                   reader->path, reader->line)
                   : evq_error_set(err, code == Z_ERRNO ? EVQ_E_IO : EVQ_E_CORRUPT,
                                   "read '%s' after line %" PRId64 ": %s", reader->path,
                                   reader->line, code == Z_ERRNO ? strerror(errno) : fault);
    }
    reader->ended = bytes == 0;
    reader->bytes += (size_t)bytes;
    if (reader->bytes > reader->limits.bytes) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' has more than %zu MiB of samples",
                             reader->path, reader->limits.bytes >> 20);
    }
    evq_buffer_append(&reader->held, chunk, (size_t)bytes);
    return reader->held.failed
               ? evq_error_set(err, EVQ_E_NOMEM, "no memory to read '%s'", reader->path)
               : EVQ_OK;
}

/* Finds the next line without its end. *ret_line NULL: there is none left. */
static enum evq_status next_line(struct evq_samples_reader *reader, char **ret_line,
                                 size_t *ret_bytes, struct evq_error *err)
{
    for (;;) {
        uint8_t *rest = reader->held.data != NULL ? reader->held.data + reader->used : NULL;
        const size_t left = reader->held.bytes - reader->used;
        const uint8_t *end = left > reader->searched
                                 ? memchr(rest + reader->searched, '\n', left - reader->searched)
                                 : NULL;
        const size_t bytes = end != NULL ? (size_t)(end - rest) : left;
        if (bytes > EVQ_SAMPLES_LINE_BYTES_MAX) {
            return evq_error_set(err, EVQ_E_LIMIT, "'%s', line %" PRId64 ": more than %zu MiB",
                                 reader->path, reader->line + 1, EVQ_SAMPLES_LINE_BYTES_MAX >> 20);
        }
        if (end != NULL || (reader->ended && left > 0)) {
            reader->used += bytes + (end != NULL);
            reader->crc_before = reader->crc;
            if (reader->whole) {
                reader->crc = (uint32_t)crc32(reader->crc, rest, (uInt)(bytes + (end != NULL)));
            }
            reader->searched = 0;
            reader->line++;
            *ret_line = (char *)rest;
            *ret_bytes = bytes;
            return EVQ_OK;
        }
        if (reader->ended) {
            *ret_line = NULL;
            return EVQ_OK;
        }
        reader->searched = left;
        const enum evq_status status = fill(reader, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
}

enum evq_status evq_samples_reader_object(struct evq_samples_reader *reader,
                                          const json_t **ret_object, struct evq_error *err)
{
    char *line = NULL;
    size_t bytes = 0;
    json_error_t fault;
    enum evq_status status;

    json_decref(reader->object);
    reader->object = NULL;
    do { // Empty lines are allowed, as at the end of a file that a person edited.
        status = next_line(reader, &line, &bytes, err);
    } while (status == EVQ_OK && line != NULL && bytes == 0);
    if (status != EVQ_OK) {
        return status;
    }
    if (line != NULL) {
        bytes = reader->skips_texts ? evq_text_cut(line, bytes) : bytes;
        evq_json_memory_clear();
        reader->object = json_loadb(line, bytes, JSON_FLAGS, &fault);
        if (evq_json_memory_failed()) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory to read '%s'", reader->path);
        }
        if (reader->object == NULL) {
            (void)evq_error_set(err, EVQ_E_CORRUPT, "not JSON: %s", fault.text);
            return evq_samples_reader_at(reader, err);
        }
    }
    *ret_object = reader->object;
    return EVQ_OK;
}

/* Checks the last line. object NULL: the file ended without one. */
static enum evq_status check_end(struct evq_samples_reader *reader, const json_t *object,
                                 struct evq_error *err)
{
    char *line = NULL;
    size_t bytes = 0;

    if (object == NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' is truncated after line %" PRId64 ": its last line is missing",
                             reader->path, reader->line);
    }
    const bool matches = evq_samples_end_matches(object, reader->items, reader->crc_before);
    const enum evq_status status = next_line(reader, &line, &bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    return matches && line == NULL
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_CORRUPT,
                               "'%s' was changed after evalq wrote it: its lines do not match the "
                               "count and the checksum of its last line",
                               reader->path);
}

enum evq_status evq_samples_reader_next(struct evq_samples_reader *reader,
                                        struct evq_sample *ret_sample, bool *ret_end,
                                        struct evq_error *err)
{
    const json_t *object = NULL;
    enum evq_status status = evq_samples_reader_object(reader, &object, err);

    *ret_end = status != EVQ_OK || object == NULL ||
               (reader->whole && json_object_get(object, EVQ_SAMPLES_END) != NULL);
    if (*ret_end) {
        return status == EVQ_OK && reader->whole ? check_end(reader, object, err) : status;
    }
    if (++reader->items > reader->limits.items) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' has more than %" PRId64 " items", reader->path,
                             reader->limits.items);
    }
    status = evq_sample_read(object, ret_sample, err);
    return status == EVQ_OK ? EVQ_OK : evq_samples_reader_at(reader, err);
}
