#include "worker/convert/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint_builder.h"

#define CHUNK_BYTES      ((size_t)8 << 20)
#define HEADER_BYTES_MAX ((size_t)100000000) // What safetensors itself allows.

/* Wide types come first, so that every tensor is aligned. */
static int by_width_and_name(const void *left, const void *right)
{
    const struct evq_named_tensor *a = left;
    const struct evq_named_tensor *b = right;
    const size_t wide = evq_dtype_bytes(a->tensor->dtype);
    const size_t other = evq_dtype_bytes(b->tensor->dtype);

    return wide != other ? (wide < other ? 1 : -1) : strcmp(a->name, b->name);
}

static bool has_type(enum evq_dtype dtype)
{
    return dtype != EVQ_DTYPE_OTHER && dtype != EVQ_DTYPE_C64 && dtype != EVQ_DTYPE_C128;
}

static enum evq_status tensor_bytes(const struct evq_tensor *tensor, size_t *ret_bytes,
                                    struct evq_error *err)
{
    size_t elements = 0;

    if (!has_type(tensor->dtype)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' is %s, which a safetensors file cannot hold",
                             tensor->name, tensor->dtype_name);
    }
    return evq_tensor_elements(tensor, &elements) &&
                   evq_size_mul(elements, evq_dtype_bytes(tensor->dtype), ret_bytes)
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_LIMIT, "tensor '%s' is too large", tensor->name);
}

static enum evq_status make_header(const struct evq_named_tensor *tensors, size_t count,
                                   struct evq_buffer *out, struct evq_error *err)
{
    uint64_t at = 0;

    evq_buffer_text(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < count; i++) {
        const struct evq_tensor *tensor = tensors[i].tensor;
        size_t bytes = 0;
        const enum evq_status status = tensor_bytes(tensor, &bytes, err);
        if (status != EVQ_OK) {
            return status;
        }
        evq_buffer_text(out, ",");
        evq_buffer_json_text(out, tensors[i].name);
        evq_buffer_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", evq_dtype_name(tensor->dtype));
        for (int32_t k = 0; k < tensor->rank; k++) {
            evq_buffer_printf(out, "%s%lld", k > 0 ? "," : "", (long long)tensor->shape[k]);
        }
        evq_buffer_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                          (unsigned long long)(at + bytes));
        at += bytes;
    }
    evq_buffer_text(out, "}");
    while (!out->failed && out->bytes % 8 != 0) {
        evq_buffer_text(out, " ");
    }
    return out->failed ? evq_error_set(err, EVQ_E_LIMIT,
                                       "the header of %zu tensors has more than %zu bytes", count,
                                       HEADER_BYTES_MAX)
                       : EVQ_OK;
}

/* Copies a range of a file in chunks. */
static enum evq_status copy_range(const struct evq_checkpoint *checkpoint,
                                  const struct evq_tensor *tensor, uint8_t *chunk, int fd,
                                  const char *path, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (uint64_t at = 0; at < tensor->bytes && status == EVQ_OK; at += CHUNK_BYTES) {
        const uint64_t left = tensor->bytes - at;
        const size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        status = evq_checkpoint_read_bytes(checkpoint, tensor->file, tensor->offset + at, chunk,
                                           bytes, err);
        if (status == EVQ_OK) {
            status = evq_file_write(fd, chunk, bytes, path, err);
        }
    }
    return status;
}

/* Reads a tensor in pieces, or with an adapter, as a whole. */
static enum evq_status copy_gathered(const struct evq_checkpoint *checkpoint,
                                     const struct evq_tensor *tensor, int fd, const char *path,
                                     struct evq_error *err)
{
    size_t bytes = 0;

    enum evq_status status = tensor_bytes(tensor, &bytes, err);
    if (status != EVQ_OK || bytes == 0) {
        return status;
    }
    void *whole = malloc(bytes);
    if (whole == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "tensor '%s' of %zu bytes", tensor->name, bytes);
    }
    status = evq_checkpoint_read_raw(checkpoint, tensor, whole, bytes, err);
    if (status == EVQ_OK) {
        status = evq_file_write(fd, whole, bytes, path, err);
    }
    free(whole);
    return status;
}

static enum evq_status write_all(const struct evq_checkpoint *checkpoint,
                                 const struct evq_named_tensor *tensors, size_t count,
                                 const struct evq_buffer *header, int fd, const char *path,
                                 struct evq_error *err)
{
    uint8_t *chunk = malloc(CHUNK_BYTES);
    uint8_t length[8];

    if (chunk == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a chunk of %zu bytes", CHUNK_BYTES);
    }
    for (unsigned k = 0; k < sizeof(length); k++) {
        length[k] = (uint8_t)((uint64_t)header->bytes >> (8 * k));
    }
    enum evq_status status = evq_file_write(fd, length, sizeof(length), path, err);
    if (status == EVQ_OK) {
        status = evq_file_write(fd, header->data, header->bytes, path, err);
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        const struct evq_tensor *tensor = tensors[i].tensor;
        status = tensor->contiguous ? copy_range(checkpoint, tensor, chunk, fd, path, err)
                                    : copy_gathered(checkpoint, tensor, fd, path, err);
    }
    free(chunk);
    return status;
}

enum evq_status evq_safetensors_write(const struct evq_checkpoint *checkpoint,
                                      struct evq_named_tensor *tensors, size_t count,
                                      const char *path, struct evq_error *err)
{
    struct evq_buffer header;

    qsort(tensors, count, sizeof(*tensors), by_width_and_name);
    evq_buffer_init(&header, HEADER_BYTES_MAX);
    enum evq_status status = make_header(tensors, count, &header, err);
    if (status == EVQ_OK) {
        const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0) {
            status = evq_error_set(err, EVQ_E_IO, "create '%s': %s", path, strerror(errno));
        } else {
            status = write_all(checkpoint, tensors, count, &header, fd, path, err);
            if (close(fd) != 0 && status == EVQ_OK) {
                status = evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
            }
        }
    }
    evq_buffer_free(&header);
    return status;
}
