/* Reads IDX files of bytes, such as MNIST: 0 0 type rank, big-endian sizes, values; plain or gzip.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "worker/datasets/dataset.h"

#define IDX_UBYTE      0x08
#define DEFLATE_GROWTH 1040u // Deflate expands a byte to at most 1032 bytes.
#define READ_BYTES_MAX (1u << 30)

/* Explains why zlib returned less than was requested; the file is not always at fault. */
static enum evq_status read_failed(gzFile file, const char *path, const char *missing,
                                   struct evq_error *err)
{
    int code = Z_OK;
    const char *text = gzerror(file, &code);

    if (code == Z_MEM_ERROR) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
    }
    if (code == Z_ERRNO) {
        return evq_error_set(err, EVQ_E_IO, "read '%s': %s", path, text);
    }
    if (code != Z_OK && code != Z_BUF_ERROR) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s' is damaged: %s: %s", path, text, missing);
    }
    return evq_error_set(err, EVQ_E_CORRUPT, "'%s' ends too early: %s", path, missing);
}

static enum evq_status read_exactly(gzFile file, const char *path, void *out, size_t bytes,
                                    struct evq_error *err)
{
    uint8_t *at = out;
    size_t left = bytes;

    while (left > 0) {
        const unsigned int want = left < READ_BYTES_MAX ? (unsigned int)left : READ_BYTES_MAX;
        const int got = gzread(file, at, want);
        if (got <= 0) {
            char missing[64];
            (void)snprintf(missing, sizeof(missing), "%zu of %zu bytes are missing", left, bytes);
            return read_failed(file, path, missing, err);
        }
        at += got;
        left -= (size_t)got;
    }
    return EVQ_OK;
}

static enum evq_status read_header(gzFile file, const char *path, struct evq_array *array,
                                   struct evq_error *err)
{
    uint8_t head[4];
    uint8_t size[4];

    enum evq_status status = read_exactly(file, path, head, sizeof(head), err);
    if (status != EVQ_OK) {
        return status;
    }
    if (head[0] != 0 || head[1] != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' is not an IDX file: it begins with %02x %02x, expected 00 00",
                             path, head[0], head[1]);
    }
    if (head[2] != IDX_UBYTE) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "'%s' holds IDX type 0x%02x, expected 0x08 (unsigned bytes)", path,
                             head[2]);
    }
    if (head[3] < 1 || head[3] > EVQ_TENSOR_RANK_MAX) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s' has %d dimensions, expected 1 to %d", path,
                             head[3], EVQ_TENSOR_RANK_MAX);
    }
    array->dtype = EVQ_DTYPE_U8;
    array->rank = head[3];
    for (int32_t i = 0; i < array->rank && status == EVQ_OK; i++) {
        status = read_exactly(file, path, size, sizeof(size), err);
        array->shape[i] =
            (int64_t)size[0] << 24 | (int64_t)size[1] << 16 | (int64_t)size[2] << 8 | size[3];
    }
    return status;
}

/* A header may claim any size. It is accepted only if the file can contain so much. */
static enum evq_status check_size(gzFile file, const char *path, const struct stat *info,
                                  const struct evq_array *array, struct evq_error *err)
{
    const uint64_t held = (uint64_t)info->st_size;
    const uint64_t header = 4 + 4 * (uint64_t)array->rank;
    uint64_t values = 1;
    uint64_t promised = 0;
    bool fits = true;

    for (int32_t i = 0; i < array->rank; i++) {
        fits = fits && !__builtin_mul_overflow(values, (uint64_t)array->shape[i], &values);
    }
    fits = fits && !__builtin_add_overflow(values, header, &promised);
    const bool plain = gzdirect(file) != 0;
    if (!fits || (plain ? promised != held : promised / DEFLATE_GROWTH > held)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' says it holds %s%" PRIu64 " values, but has %" PRIu64 " bytes%s",
                             path, fits ? "" : "more than ", fits ? values : UINT64_MAX, held,
                             plain ? "" : " (compressed)");
    }
    return EVQ_OK;
}

static enum evq_status idx_read(const struct evq_array_source *source, struct evq_array *ret_array,
                                struct evq_error *err)
{
    struct evq_array array = {0};
    struct stat info;
    gzFile file = NULL;
    uint8_t beyond = 0;
    int fd = -1;

    enum evq_status status = evq_array_open_file(source->path, &fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    file = gzdopen(fd, "rb");
    if (file == NULL) {
        (void)close(fd); // It was opened for reading, so a failed close loses nothing.
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", source->path);
    }
    (void)gzbuffer(file, 1u << 18); // It only affects speed.
    status = read_header(file, source->path, &array, err);
    if (status == EVQ_OK) {
        status = check_size(file, source->path, &info, &array, err);
    }
    if (status == EVQ_OK) {
        status = evq_array_alloc(&array, source, err);
    }
    if (status == EVQ_OK) {
        status = read_exactly(file, source->path, array.data, array.bytes, err);
    }
    if (status == EVQ_OK) {
        const int more = gzread(file, &beyond, 1); // This also makes zlib compare the checksum.
        if (more < 0) {
            status = read_failed(file, source->path, "its checksum is another", err);
        } else if (more > 0) {
            status = evq_error_set(err, EVQ_E_CORRUPT, "'%s' holds more bytes than its header says",
                                   source->path);
        }
    }
    const int closed = gzclose_r(file);
    if (status == EVQ_OK && closed != Z_OK) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "'%s' ends too early: its checksum is missing",
                               source->path);
    }
    if (status != EVQ_OK) {
        free(array.data);
        return status;
    }
    *ret_array = array;
    return EVQ_OK;
}

const struct evq_dataset_format evq_dataset_idx = {.name = "idx", .read = idx_read};
