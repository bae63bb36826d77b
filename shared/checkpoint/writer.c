#include "shared/checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "shared/checkpoint/format.h"
#include "shared/checkpoint/json.h"
#include "shared/file.h"

struct writer {
    const struct evq_writer_tensor *tensors;
    size_t count;
    size_t *order; // Alignment descending, then name: as the reference writer does.
    uint64_t *bytes;
};

struct keyed {
    size_t alignment;
    const char *name;
    size_t index;
};

static int by_alignment(const void *a, const void *b)
{
    const struct keyed *left = a;
    const struct keyed *right = b;

    if (left->alignment != right->alignment) {
        return left->alignment > right->alignment ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

static int by_name(const void *a, const void *b)
{
    const struct keyed *left = a;
    const struct keyed *right = b;

    return strcmp(left->name, right->name);
}

static enum evq_status check_tensor(const struct evq_writer_tensor *tensor, uint64_t *ret_bytes,
                                    struct evq_error *err)
{
    size_t name_bytes = strlen(tensor->name);
    uint64_t bytes = evq_dtype_bytes(tensor->dtype);

    if (name_bytes > EVQ_CHECKPOINT_NAME_BYTES_MAX ||
        !evq_json_utf8(tensor->name, name_bytes, NULL) ||
        strcmp(tensor->name, "__metadata__") == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "a tensor name must be UTF-8, at most %d bytes and not __metadata__",
                             EVQ_CHECKPOINT_NAME_BYTES_MAX);
    }
    if (bytes == 0 || tensor->dtype == EVQ_DTYPE_C128) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "tensor '%s': safetensors has no such dtype",
                             tensor->name);
    }
    if (tensor->rank < 0 || tensor->rank > EVQ_TENSOR_RANK_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "tensor '%s' has rank %d, allowed 0 to %d",
                             tensor->name, (int)tensor->rank, EVQ_TENSOR_RANK_MAX);
    }
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0 ||
            __builtin_mul_overflow(bytes, (uint64_t)tensor->shape[i], &bytes)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "tensor '%s': its shape is negative or overflows", tensor->name);
        }
    }
    *ret_bytes = bytes;
    return EVQ_OK;
}

/* Fills order and bytes. */
static enum evq_status plan(struct writer *writer, struct evq_error *err)
{
    size_t count = writer->count;
    enum evq_status status = EVQ_OK;
    struct keyed *keyed = calloc(count + 1, sizeof(*keyed));

    writer->order = calloc(count + 1, sizeof(*writer->order));
    writer->bytes = calloc(count + 1, sizeof(*writer->bytes));
    if (keyed == NULL || writer->order == NULL || writer->bytes == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "%zu tensors", count);
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = check_tensor(&writer->tensors[i], &writer->bytes[i], err);
        keyed[i] = (struct keyed){.alignment = evq_dtype_bytes(writer->tensors[i].dtype),
                                  .name = writer->tensors[i].name,
                                  .index = i};
    }
    if (status == EVQ_OK) {
        qsort(keyed, count, sizeof(*keyed), by_name);
    }
    for (size_t i = 1; i < count && status == EVQ_OK; i++) {
        if (strcmp(keyed[i - 1].name, keyed[i].name) == 0) {
            status = evq_error_set(err, EVQ_E_INVALID, "two tensors named '%s'", keyed[i].name);
        }
    }
    if (status == EVQ_OK) {
        qsort(keyed, count, sizeof(*keyed), by_alignment);
        for (size_t i = 0; i < count; i++) {
            writer->order[i] = keyed[i].index;
        }
    }
    free(keyed);
    return status;
}

static void put_metadata(struct evq_buffer *header, const char *const *metadata, size_t pairs)
{
    evq_buffer_text(header, "\"__metadata__\":{");
    for (size_t i = 0; i < pairs; i++) {
        evq_buffer_text(header, i == 0 ? "" : ",");
        evq_buffer_json_text(header, metadata[2 * i]);
        evq_buffer_text(header, ":");
        evq_buffer_json_text(header, metadata[2 * i + 1]);
    }
    evq_buffer_text(header, "}");
}

static enum evq_status put_header(const struct writer *writer, const char *const *metadata,
                                  size_t pairs, struct evq_buffer *header, struct evq_error *err)
{
    uint64_t at = 0;
    uint8_t length[8] = {0};
    bool with_metadata = metadata != NULL && pairs > 0;

    evq_buffer_append(header, length, sizeof(length));
    evq_buffer_text(header, "{");
    if (with_metadata) {
        put_metadata(header, metadata, pairs);
    }
    for (size_t i = 0; i < writer->count; i++) {
        const struct evq_writer_tensor *tensor = &writer->tensors[writer->order[i]];
        uint64_t end;
        if (__builtin_add_overflow(at, writer->bytes[writer->order[i]], &end)) {
            return evq_error_set(err, EVQ_E_INVALID, "the tensors overflow 64 bits together");
        }
        evq_buffer_text(header, i == 0 && !with_metadata ? "" : ",");
        evq_buffer_json_text(header, tensor->name);
        evq_buffer_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", evq_dtype_name(tensor->dtype));
        for (int32_t k = 0; k < tensor->rank; k++) {
            evq_buffer_printf(header, k == 0 ? "%lld" : ",%lld", (long long)tensor->shape[k]);
        }
        evq_buffer_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                          (unsigned long long)end);
        at = end;
    }
    evq_buffer_text(header, "}");
    while (!header->failed && header->bytes % 8 != 0) {
        evq_buffer_text(header, " ");
    }
    if (header->failed) {
        return evq_error_set(err, EVQ_E_LIMIT, "the header would pass %u bytes, or memory is out",
                             EVQ_HEADER_BYTES_MAX);
    }
    uint64_t bytes = header->bytes - sizeof(length);
    for (unsigned k = 0; k < sizeof(length); k++) {
        header->data[k] = (uint8_t)(bytes >> (8 * k));
    }
    return EVQ_OK;
}

static enum evq_status write_file(const struct writer *writer, const struct evq_buffer *header,
                                  int fd, const char *path, bool fsync_file, struct evq_error *err)
{
    enum evq_status status = evq_file_write(fd, header->data, header->bytes, path, err);

    for (size_t i = 0; i < writer->count && status == EVQ_OK; i++) {
        size_t index = writer->order[i];
        if (writer->bytes[index] > 0) {
            status = evq_file_write(fd, writer->tensors[index].data, (size_t)writer->bytes[index],
                                    path, err);
        }
    }
    if (status == EVQ_OK && fsync_file && fsync(fd) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "fsync '%s': %s", path, strerror(errno));
    }
    return status;
}

/* A name beside path that no reader takes for a checkpoint, opened; the name is the caller's to
 * free. */
static enum evq_status open_temporary(const char *path, char **ret_name, int *ret_fd,
                                      struct evq_error *err)
{
    size_t name_bytes = strlen(path) + 64;
    char *name = malloc(name_bytes);
    const char *slash = strrchr(path, '/');
    int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    unsigned long long random = 0;
    int fd = -1;

    if (name == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a path");
    }
    for (int tries = 0; tries < 16 && fd < 0; tries++) {
        if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
            random =
                (unsigned long long)getpid() + (unsigned long long)tries; // O_EXCL still decides.
        }
        (void)snprintf(name, name_bytes, "%.*s.evalq-%016llx.tmp", folder, path, random);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) {
            break;
        }
    }
    if (fd < 0) {
        enum evq_status status =
            evq_error_set(err, EVQ_E_IO, "create '%s': %s", name, strerror(errno));
        free(name);
        return status;
    }
    *ret_name = name;
    *ret_fd = fd;
    return EVQ_OK;
}

/* Makes the rename itself durable. */
static enum evq_status sync_folder(const char *path, struct evq_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    enum evq_status status = EVQ_OK;
    int fd = folder == NULL ? -1 : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (folder == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a path");
    }
    if (fd < 0 || fsync(fd) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "fsync '%s': %s", folder, strerror(errno));
    }
    if (fd >= 0) {
        (void)close(fd); // The fsync above is what counts.
    }
    free(folder);
    return status;
}

static enum evq_status write_and_rename(const struct writer *writer,
                                        const struct evq_buffer *header, const char *path,
                                        bool fsync_file, struct evq_error *err)
{
    char *name = NULL;
    int fd = -1;
    enum evq_status status = open_temporary(path, &name, &fd, err);

    if (status != EVQ_OK) {
        return status;
    }
    status = write_file(writer, header, fd, path, fsync_file, err);
    if (close(fd) != 0 && status == EVQ_OK) {
        status = evq_error_set(err, EVQ_E_IO, "close '%s': %s", path, strerror(errno));
    }
    if (status == EVQ_OK && rename(name, path) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename to '%s': %s", path, strerror(errno));
    }
    if (status != EVQ_OK) {
        (void)unlink(name); // Best effort: the first error is the one to report.
    } else if (fsync_file) {
        status = sync_folder(path, err);
    }
    free(name);
    return status;
}

enum evq_status evq_safetensors_write(const char *path, const struct evq_writer_tensor *tensors,
                                      size_t tensor_count, const char *const *metadata,
                                      size_t metadata_pairs, bool fsync_file, struct evq_error *err)
{
    struct writer writer = {.tensors = tensors, .count = tensor_count};
    struct evq_buffer header;
    enum evq_status status = EVQ_OK;

    evq_buffer_init(&header, (size_t)EVQ_HEADER_BYTES_MAX + 8);
    if (tensor_count > EVQ_CHECKPOINT_TENSORS_MAX) {
        status = evq_error_set(err, EVQ_E_LIMIT, "%zu tensors, allowed %d", tensor_count,
                               EVQ_CHECKPOINT_TENSORS_MAX);
    }
    if (status == EVQ_OK) {
        status = plan(&writer, err);
    }
    if (status == EVQ_OK) {
        status = put_header(&writer, metadata, metadata_pairs, &header, err);
    }
    if (status == EVQ_OK) {
        status = write_and_rename(&writer, &header, path, fsync_file, err);
    }
    evq_buffer_free(&header);
    free(writer.order);
    free(writer.bytes);
    return status;
}
