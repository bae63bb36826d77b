#include "worker/loader/piece_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/dtype.h"
#include "worker/loader/dequantise.h"

#define SAMPLES       64
#define DIRECT_LEAST  ((uint64_t)64 << 10) // Smaller reads gain nothing from direct I/O.
#define CONVERT_ALIGN ((size_t)64)

/* Whether a page is in the page cache; true if the kernel cannot tell. */
static bool is_cached(int fd, uint64_t offset)
{
    char byte;
    const struct iovec place = {.iov_base = &byte, .iov_len = 1};

    return preadv2(fd, &place, 1, (off_t)offset, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

static bool is_cold(const struct evq_checkpoint *checkpoint, const struct evq_load_list *list)
{
    const size_t step = list->count / SAMPLES + 1;
    size_t looked = 0;
    size_t cached = 0;

    for (size_t i = 0; i < list->count; i += step) {
        const struct evq_load_piece *piece = &list->pieces[i];
        if (piece->kind != EVQ_LOAD_BYTES && piece->kind != EVQ_LOAD_DIGEST) {
            continue;
        }
        looked++;
        cached += is_cached(checkpoint->files[piece->tensor->file].fd,
                            piece->tensor->offset + piece->at + piece->bytes / 2);
    }
    return looked > 0 && 2 * cached < looked;
}

/* A second descriptor of the same file for direct reads; -1: the file system has none. */
static int open_direct(int fd)
{
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

enum evq_status evq_piece_reader_open(const struct evq_checkpoint *checkpoint,
                                      const struct evq_load_list *list,
                                      struct evq_piece_reader *reader, struct evq_error *err)
{
    *reader = (struct evq_piece_reader){.checkpoint = checkpoint};
    enum evq_status status = evq_digest_new(checkpoint, &reader->digest, err);
    if (status == EVQ_OK) {
        status = evq_small_tensors_new(checkpoint, list, reader->digest, &reader->small, err);
    }
    if (status != EVQ_OK || !is_cold(checkpoint, list)) {
        return status;
    }
    reader->direct = calloc(checkpoint->file_count + 1, sizeof(*reader->direct));
    for (size_t i = 0; i < checkpoint->file_count && reader->direct != NULL; i++) {
        reader->direct[i] = open_direct(checkpoint->files[i].fd);
    }
    return EVQ_OK; // Without memory for it, all reads are buffered.
}

void evq_piece_reader_close(struct evq_piece_reader *reader)
{
    for (size_t i = 0; reader->direct != NULL && i < reader->checkpoint->file_count; i++) {
        evq_file_close(&reader->direct[i]);
    }
    free(reader->direct);
    evq_small_tensors_free(reader->small);
    evq_digest_free(reader->digest);
    *reader = (struct evq_piece_reader){0};
}

/* Reads the bytes rounded to whole blocks of the disk. False: the caller reads buffered. */
static bool read_direct(const struct evq_piece_reader *reader, const struct evq_tensor *tensor,
                        uint64_t offset, uint64_t bytes, uint8_t *memory, uint8_t **ret_bytes)
{
    const int fd = reader->direct != NULL ? reader->direct[tensor->file] : -1;
    const uint64_t start = offset / EVQ_LOAD_ALIGNMENT * EVQ_LOAD_ALIGNMENT;
    const uint64_t before = offset - start;
    const uint64_t wanted = before + bytes;
    const uint64_t whole =
        (wanted + EVQ_LOAD_ALIGNMENT - 1) / EVQ_LOAD_ALIGNMENT * EVQ_LOAD_ALIGNMENT;
    uint64_t done = 0;

    if (fd < 0 || bytes < DIRECT_LEAST) {
        return false;
    }
    while (done < wanted) {
        const ssize_t got = pread(fd, memory + done, (size_t)(whole - done), (off_t)(start + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        // A read that ends inside a block must have reached the end of the file.
        if (got <= 0 || (done + (uint64_t)got < wanted && got % (ssize_t)EVQ_LOAD_ALIGNMENT != 0)) {
            return false;
        }
        done += (uint64_t)got;
    }
    *ret_bytes = memory + before;
    return true;
}

/* Adds bytes of the piece, from `at` on, to the digest, which reads the others itself. */
static void hash(const struct evq_piece_reader *reader, const struct evq_load_piece *piece,
                 uint64_t at, const uint8_t *bytes, uint64_t count)
{
    if (!piece->unhashed) {
        evq_digest_add(reader->digest, piece->tensor, piece->at + at, bytes, count);
    }
}

/* Reads the stored bytes of a contiguous tensor block by block, so that each block is hashed while
 * it is in the CPU cache. */
static enum evq_status read_bytes(const struct evq_piece_reader *reader,
                                  const struct evq_load_piece *piece, uint8_t *memory,
                                  uint8_t **ret_bytes, struct evq_error *err)
{
    const struct evq_tensor *tensor = piece->tensor;
    const uint64_t block = evq_digest_block_bytes(tensor);
    enum evq_status status = EVQ_OK;

    if (read_direct(reader, tensor, tensor->offset + piece->at, piece->bytes, memory, ret_bytes)) {
        hash(reader, piece, 0, *ret_bytes, piece->bytes);
        const size_t size = evq_dtype_bytes(tensor->dtype);
        if (size > 0 && (uintptr_t)*ret_bytes % size != 0) { // The offset may be odd.
            memmove(memory, *ret_bytes, (size_t)piece->bytes);
            *ret_bytes = memory;
        }
        return EVQ_OK;
    }
    for (uint64_t at = 0; at < piece->bytes && status == EVQ_OK; at += block) {
        const uint64_t left = piece->bytes - at;
        const uint64_t count = left < block ? left : block;
        status = evq_checkpoint_read_bytes(reader->checkpoint, tensor->file,
                                           tensor->offset + piece->at + at, memory + at,
                                           (size_t)count, err);
        if (status == EVQ_OK) {
            hash(reader, piece, at, memory + at, count);
        }
    }
    *ret_bytes = memory;
    return status;
}

static void one_plus(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] += 1.0f;
    }
}

static size_t up(size_t bytes)
{
    return (bytes + CONVERT_ALIGN - 1) / CONVERT_ALIGN * CONVERT_ALIGN;
}

/* Reads the stored values behind the room for fp32, and converts them into that room. */
static enum evq_status read_converted(const struct evq_piece_reader *reader,
                                      const struct evq_load_piece *piece, uint8_t *memory,
                                      struct evq_error *err)
{
    const enum evq_dtype dtype = piece->tensor->dtype;
    const size_t count = evq_dequantise_values(piece->source, piece->bytes);
    const size_t room = up(count * sizeof(float));
    struct evq_piece_reader buffered = *reader;
    uint8_t *stored = NULL;

    buffered.direct = NULL; // The memory behind the room is not aligned.
    const enum evq_status status = read_bytes(&buffered, piece, memory + room, &stored, err);
    if (status == EVQ_OK && piece->source->scale != NULL) {
        return evq_dequantise(reader->checkpoint, piece->source, piece->at, piece->bytes, stored,
                              memory + room + up((size_t)piece->bytes), (float *)(void *)memory,
                              err);
    }
    if (status == EVQ_OK && !evq_convert_f32(dtype, stored, count, (float *)(void *)memory)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s': dtype %s cannot be computed with", piece->tensor->name,
                             piece->tensor->dtype_name);
    }
    if (status == EVQ_OK && piece->source->kind == EVQ_SOURCE_ONE_PLUS) {
        one_plus((float *)(void *)memory, count);
    }
    return status;
}

static enum evq_status read_values(const struct evq_piece_reader *reader,
                                   const struct evq_load_piece *piece, uint8_t *memory,
                                   struct evq_error *err)
{
    const struct evq_tensor *tensor = piece->tensor;
    const size_t count = piece->room / sizeof(float);

    if (piece->convert) {
        const enum evq_status status = evq_checkpoint_read_f32(reader->checkpoint, tensor,
                                                               (float *)(void *)memory, count, err);
        if (status == EVQ_OK && piece->source->kind == EVQ_SOURCE_ONE_PLUS) {
            one_plus((float *)(void *)memory, count);
        }
        return status;
    }
    const enum evq_status status =
        evq_checkpoint_read_raw(reader->checkpoint, tensor, memory, (size_t)piece->bytes, err);
    if (status == EVQ_OK) {
        evq_digest_add(reader->digest, tensor, 0, memory, piece->bytes);
    }
    return status;
}

/* Like evq_checkpoint_read_f32(), but small tensors come from the block that was read for all of
 * them. */
static enum evq_status read_f32(const struct evq_piece_reader *reader,
                                const struct evq_tensor *tensor, float *out, size_t count,
                                struct evq_error *err)
{
    const uint8_t *bytes = NULL;

    const enum evq_status status = evq_small_tensors_find(reader->small, tensor, &bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    const bool fits = bytes != NULL && tensor->bytes == count * evq_dtype_bytes(tensor->dtype);
    return fits && evq_convert_f32(tensor->dtype, bytes, count, out)
               ? EVQ_OK
               : evq_checkpoint_read_f32(reader->checkpoint, tensor, out, count, err);
}

static enum evq_status read_vectors(const struct evq_piece_reader *reader,
                                    const struct evq_load_piece *piece, float *out,
                                    struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < piece->count && status == EVQ_OK; i++) {
        const struct evq_source *part = &piece->source[i];
        const size_t count = (size_t)part->rows;
        float *place = out + part->first_row;
        status = read_f32(reader, part->tensor, place, count, err);
        if (status == EVQ_OK && part->kind == EVQ_SOURCE_ONE_PLUS) {
            one_plus(place, count);
        }
    }
    return status;
}

enum evq_status evq_piece_reader_read(const struct evq_piece_reader *reader,
                                      const struct evq_load_piece *piece, void *memory,
                                      const void **ret_values, struct evq_error *err)
{
    uint8_t *stored = memory;
    enum evq_status status = EVQ_OK;

    switch (piece->kind) {
    case EVQ_LOAD_VECTOR:
        status = read_vectors(reader, piece, memory, err);
        break;
    case EVQ_LOAD_VALUES:
        status = read_values(reader, piece, memory, err);
        break;
    default:
        status = piece->convert ? read_converted(reader, piece, memory, err)
                                : read_bytes(reader, piece, memory, &stored, err);
        break;
    }
    if (status == EVQ_OK) {
        *ret_values = stored;
    }
    return status;
}
