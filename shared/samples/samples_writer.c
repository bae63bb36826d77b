#include "shared/samples/samples_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

#include "shared/base/file.h"
#include "shared/base/hex.h"

#define OUT_BYTES   ((size_t)64 << 10)
#define HELD_BYTES  ((size_t)64 << 10) // zlib is called for so many bytes: each call has a cost.
#define GZIP_WINDOW (15 + 16)          // Asks zlib for a gzip header, whose time is 0.

struct evq_samples_writer {
    struct evq_samples_header header;
    char path[EVQ_SAMPLES_PATH_BYTES];
    struct evq_temporary_file file;
    bool deflating;
    z_stream stream;
    XXH3_state_t *hash;
    struct evq_buffer held; // Lines that zlib has not got yet.
    int64_t bytes;
    int64_t items;
    struct evq_buffer names; // The score names of the first item, each with its NUL.
    size_t name_count;
    uint64_t *seen; // Hashes of the ids, open addressing; 0: free.
    size_t seen_room;
    uint8_t out[OUT_BYTES];
};

enum evq_status evq_samples_path(const char *directory, const char *job, const char *task,
                                 char out[EVQ_SAMPLES_PATH_BYTES], struct evq_error *err)
{
    const int bytes =
        snprintf(out, EVQ_SAMPLES_PATH_BYTES, "%s/%s/%s" EVQ_SAMPLES_SUFFIX, directory, job, task);

    return bytes > 0 && bytes < EVQ_SAMPLES_PATH_BYTES
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_LIMIT, "samples.directory '%.100s' is too long",
                               directory);
}

/* Passes bytes through zlib into the file. flush: Z_NO_FLUSH or Z_FINISH. */
static enum evq_status write_out(struct evq_samples_writer *writer, const void *data, size_t bytes,
                                 int flush, struct evq_error *err)
{
    z_stream *stream = &writer->stream;

    stream->next_in = (Bytef *)(uintptr_t)data; // zlib only reads it.
    stream->avail_in = (uInt)bytes;
    do {
        stream->next_out = writer->out;
        stream->avail_out = OUT_BYTES;
        (void)deflate(stream, flush); // It cannot fail with valid arguments and room for output.
        const size_t made = OUT_BYTES - stream->avail_out;
        const enum evq_status status =
            evq_file_write(writer->file.fd, writer->out, made, writer->file.path, err);
        if (status != EVQ_OK) {
            return status;
        }
        (void)XXH3_128bits_update(writer->hash, writer->out, made);
        writer->bytes += (int64_t)made;
    } while (stream->avail_out == 0);
    return EVQ_OK;
}

/* Gives the lines to zlib, if there are more than bytes_kept. */
static enum evq_status held_out(struct evq_samples_writer *writer, size_t bytes_kept,
                                struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (writer->held.failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a sample");
    }
    if (writer->held.bytes > bytes_kept) {
        status = write_out(writer, writer->held.data, writer->held.bytes, Z_NO_FLUSH, err);
        evq_buffer_clear(&writer->held);
    }
    return status;
}

enum evq_status evq_samples_writer_open(const char *directory,
                                        const struct evq_samples_header *header,
                                        struct evq_samples_writer **ret_writer,
                                        struct evq_error *err)
{
    struct evq_samples_writer *writer = calloc(1, sizeof *writer);
    enum evq_status status = EVQ_OK;

    if (writer == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the samples of a task");
    }
    writer->header = *header;
    writer->file.fd = -1;
    evq_buffer_init(&writer->held, HELD_BYTES + EVQ_SAMPLES_LINE_BYTES_MAX);
    evq_buffer_init(&writer->names, 0);
    writer->hash = XXH3_createState();
    // Level 1 takes a third of the time of the default and makes the file a quarter larger.
    writer->deflating =
        writer->hash != NULL && deflateInit2(&writer->stream, Z_BEST_SPEED, Z_DEFLATED, GZIP_WINDOW,
                                             8, Z_DEFAULT_STRATEGY) == Z_OK;
    if (!writer->deflating) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the samples of a task");
        goto out;
    }
    (void)XXH3_128bits_reset(writer->hash);
    status = evq_samples_path(directory, header->job, header->task, writer->path, err);
    if (status == EVQ_OK) {
        status = evq_temporary_file_open(writer->path, &writer->file, err);
    }
    if (status == EVQ_OK) {
        evq_samples_header_write(header, &writer->held);
    }
out:
    if (status != EVQ_OK) {
        evq_samples_writer_free(writer);
        return status;
    }
    *ret_writer = writer;
    return EVQ_OK;
}

/* Finds the place of a hash in a table that has room. */
static uint64_t *seen_place(uint64_t *seen, size_t room, uint64_t hash)
{
    size_t at = (size_t)hash & (room - 1);

    while (seen[at] != 0 && seen[at] != hash) {
        at = (at + 1) & (room - 1);
    }
    return &seen[at];
}

/* Notes an id. EVQ_E_INVALID: it came before. */
static enum evq_status seen_add(struct evq_samples_writer *writer, const char *id,
                                struct evq_error *err)
{
    const uint64_t hash = XXH3_64bits(id, strlen(id)) | 1; // Never 0, which means free.

    if ((size_t)writer->items * 2 >= writer->seen_room) {
        const size_t room = writer->seen_room == 0 ? 1024 : 2 * writer->seen_room;
        uint64_t *seen = calloc(room, sizeof *seen);
        if (seen == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for the ids of samples");
        }
        for (size_t i = 0; i < writer->seen_room; i++) {
            if (writer->seen[i] != 0) {
                *seen_place(seen, room, writer->seen[i]) = writer->seen[i];
            }
        }
        free(writer->seen);
        writer->seen = seen;
        writer->seen_room = room;
    }
    uint64_t *place = seen_place(writer->seen, writer->seen_room, hash);
    if (*place != 0) {
        char shown[EVQ_SAMPLE_ID_BYTES_MAX + 1];
        return evq_error_set(err, EVQ_E_INVALID, "the id '%s' comes twice",
                             evq_error_escape(id, strlen(id), shown, sizeof shown));
    }
    *place = hash;
    return EVQ_OK;
}

/* Every item has the scores of the first one, in any order. */
static enum evq_status names_check(struct evq_samples_writer *writer,
                                   const struct evq_sample *sample, struct evq_error *err)
{
    if (writer->items == 0) {
        for (size_t i = 0; i < sample->score_count; i++) {
            const char *name = sample->scores[i].name;
            evq_buffer_append(&writer->names, name, strlen(name) + 1);
        }
        writer->name_count = sample->score_count;
        return writer->names.failed ? evq_error_set(err, EVQ_E_NOMEM, "no memory for a sample")
                                    : EVQ_OK;
    }
    const char *name = (const char *)writer->names.data;
    for (size_t i = 0; i < writer->name_count; i++, name += strlen(name) + 1) {
        if (evq_sample_score(sample, name) == NULL || sample->score_count != writer->name_count) {
            char shown[EVQ_SAMPLE_ID_BYTES_MAX + 1];
            return evq_error_set(
                err, EVQ_E_INVALID,
                "item '%s' has other scores than the first item, whose scores "
                "begin with '%s'",
                evq_error_escape(sample->id, strlen(sample->id), shown, sizeof shown), name);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_samples_writer_add(struct evq_samples_writer *writer,
                                       const struct evq_sample *sample, struct evq_error *err)
{
    if (writer->header.limit > 0 && writer->items >= writer->header.limit) {
        return EVQ_OK;
    }
    if (writer->items >= EVQ_SAMPLES_ITEMS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a task has more than %d samples",
                             EVQ_SAMPLES_ITEMS_MAX);
    }
    enum evq_status status = seen_add(writer, sample->id, err);
    if (status == EVQ_OK) {
        status = names_check(writer, sample, err);
    }
    for (size_t i = 0; i < sample->score_count && status == EVQ_OK; i++) {
        if (!isfinite(sample->scores[i].value)) {
            status = evq_error_set(err, EVQ_E_INVALID, "score '%s' of item '%s' is %g",
                                   sample->scores[i].name, sample->id, sample->scores[i].value);
        }
    }
    if (status != EVQ_OK) {
        return status;
    }
    writer->items++;
    const size_t before = writer->held.bytes;
    evq_sample_write(sample, &writer->held);
    if (writer->held.full || writer->held.bytes - before > EVQ_SAMPLES_LINE_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a sample takes more than %zu MiB",
                             EVQ_SAMPLES_LINE_BYTES_MAX >> 20);
    }
    return held_out(writer, HELD_BYTES, err);
}

enum evq_status evq_samples_writer_finish(struct evq_samples_writer *writer, char ret_digest[33],
                                          int64_t *ret_bytes, struct evq_error *err)
{
    enum evq_status status = held_out(writer, 0, err);
    if (status == EVQ_OK) {
        // zlib keeps the CRC-32 of all bytes before this line, because gzip needs it too.
        evq_samples_end_write(writer->items, (uint32_t)writer->stream.adler, &writer->held);
        status = held_out(writer, 0, err);
    }
    if (status == EVQ_OK) {
        status = write_out(writer, NULL, 0, Z_FINISH, err);
    }
    if (status == EVQ_OK) {
        status = evq_temporary_file_finish(&writer->file, writer->path, err);
    }
    if (status == EVQ_OK) {
        const XXH128_hash_t digest = XXH3_128bits_digest(writer->hash);
        evq_hex_128(digest.high64, digest.low64, ret_digest);
        *ret_bytes = writer->bytes;
    }
    evq_samples_writer_free(writer);
    return status;
}

void evq_samples_writer_free(struct evq_samples_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    evq_temporary_file_drop(&writer->file);
    if (writer->deflating) {
        (void)deflateEnd(&writer->stream);
    }
    XXH3_freeState(writer->hash);
    evq_buffer_free(&writer->held);
    evq_buffer_free(&writer->names);
    free(writer->seen);
    free(writer);
}
