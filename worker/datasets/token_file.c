#include "worker/datasets/token_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/datasets/corpus_build.h"
#include "worker/datasets/dataset.h"

#define HEADER_NUMBERS 256 // Numbers in the header of llm.c's files, int32 each.
#define HEADER_BYTES   (4 * HEADER_NUMBERS)
#define BLOCK_BYTES    65536

/* Formats of llm.c (dev/data/data_common.py): tokens of GPT-2 and Llama 3, and HellaSwag's file. */
static const struct {
    uint32_t magic, version;
    enum evq_dtype dtype;
} headers[] = {
    {20240520, 1, EVQ_DTYPE_U16},
    {20240801, 7, EVQ_DTYPE_U32},
};
#define MAGIC_CHOICES 20240522u

struct reading {
    const struct evq_token_file_source *source;
    int fd;
    uint64_t bytes; // Size of the file.
    uint64_t start; // Where the tokens start.
    uint64_t count;
    enum evq_dtype dtype;
};

static uint32_t number_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static enum evq_status bad_id(const struct reading *reading, uint64_t place, int64_t id,
                              struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_CORRUPT,
                         "'%s': token %" PRIu64 " is %" PRId64 ", expected 0 to %" PRId32,
                         reading->source->path, place, id, INT32_MAX);
}

static enum evq_status check_header(struct reading *reading, const uint8_t *header,
                                    enum evq_dtype dtype, uint32_t version, struct evq_error *err)
{
    const char *path = reading->source->path;
    const uint32_t count = number_at(header + 8);

    if (number_at(header + 4) != version) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "'%s' is a token file of llm.c, version %" PRIu32
                             ", expected %" PRIu32,
                             path, number_at(header + 4), version);
    }
    reading->dtype = dtype;
    reading->start = HEADER_BYTES;
    reading->count = count;
    const uint64_t wanted = HEADER_BYTES + (uint64_t)count * evq_dtype_bytes(dtype);
    if (wanted != reading->bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' holds %" PRIu64 " bytes, expected %" PRIu64 " for the %" PRIu32
                             " tokens its header tells of",
                             path, reading->bytes, wanted, count);
    }
    return EVQ_OK;
}

/* *ret_known: the file begins with a header of llm.c. */
static enum evq_status look(struct reading *reading, bool *ret_known, struct evq_error *err)
{
    const char *path = reading->source->path;
    uint8_t header[HEADER_BYTES] = {0};

    *ret_known = false;
    if (reading->bytes < sizeof(header)) {
        return EVQ_OK;
    }
    const enum evq_status status =
        evq_file_read_at(reading->fd, header, sizeof(header), 0, path, err);
    if (status != EVQ_OK) {
        return status;
    }
    const uint32_t magic = number_at(header);
    if (magic == MAGIC_CHOICES) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "'%s' is llm.c's file of choices (HellaSwag), expected tokens; "
                             "use the JSONL file it was made from",
                             path);
    }
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        if (magic == headers[i].magic) {
            *ret_known = true;
            return check_header(reading, header, headers[i].dtype, headers[i].version, err);
        }
    }
    return EVQ_OK;
}

static enum evq_status look_plain(struct reading *reading, struct evq_error *err)
{
    const struct evq_token_file_source *source = reading->source;

    if (source->dtype[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' has no header of llm.c or npy: set dtype: u16 or dtype: u32",
                             source->path);
    }
    reading->dtype = strcmp(source->dtype, "u16") == 0 ? EVQ_DTYPE_U16 : EVQ_DTYPE_U32;
    reading->count = reading->bytes / evq_dtype_bytes(reading->dtype);
    if (reading->bytes % evq_dtype_bytes(reading->dtype) != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' holds %" PRIu64
                             " bytes, which is not a whole number of %s tokens",
                             source->path, reading->bytes, source->dtype);
    }
    return EVQ_OK;
}

static enum evq_status check_count(const struct reading *reading, struct evq_error *err)
{
    const struct evq_token_file_source *source = reading->source;
    const char *dtype = reading->dtype == EVQ_DTYPE_U16 ? "u16" : "u32";

    if (source->dtype[0] != '\0' && strcmp(source->dtype, dtype) != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' holds %s tokens by its header, not %s",
                             source->path, dtype, source->dtype);
    }
    if (reading->count == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' holds no tokens", source->path);
    }
    if (reading->count > source->tokens_max) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "'%s' holds %" PRIu64 " tokens, expected at most %zu", source->path,
                             reading->count, source->tokens_max);
    }
    return EVQ_OK;
}

/* Makes room for count more tokens in out, which may move. */
static enum evq_status reserve(const struct reading *reading, uint64_t count,
                               struct evq_tokens *out, struct evq_error *err)
{
    size_t capacity = 0;
    size_t bytes = 0;

    if (out->capacity - out->count >= count) {
        return EVQ_OK;
    }
    int32_t *grown = NULL;
    if (evq_size_add(out->count, (size_t)count, &capacity) &&
        evq_size_mul(capacity, sizeof(*grown), &bytes)) {
        grown = realloc(out->ids, bytes);
    }
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s': %" PRIu64 " tokens", reading->source->path,
                             count);
    }
    out->ids = grown;
    out->capacity = capacity;
    return EVQ_OK;
}

static enum evq_status read_numbers(const struct reading *reading, uint64_t count,
                                    struct evq_tokens *out, struct evq_error *err)
{
    const size_t width = evq_dtype_bytes(reading->dtype);
    uint8_t block[BLOCK_BYTES];

    for (uint64_t done = 0; done < count;) {
        const uint64_t left = count - done;
        const size_t many = left < BLOCK_BYTES / width ? (size_t)left : BLOCK_BYTES / width;
        const enum evq_status status =
            evq_file_read_at(reading->fd, block, many * width, reading->start + done * width,
                             reading->source->path, err);
        if (status != EVQ_OK) {
            return status;
        }
        for (size_t i = 0; i < many; i++) {
            const uint32_t id = width == 2
                                    ? (uint32_t)block[2 * i] | (uint32_t)block[2 * i + 1] << 8
                                    : number_at(block + 4 * i);
            if (id > INT32_MAX) {
                return bad_id(reading, done + i, id, err);
            }
            out->ids[out->count++] = (int32_t)id;
        }
        done += many;
    }
    return EVQ_OK;
}

static bool holds_tokens(const struct evq_array *array)
{
    return array->rank == 1 && (array->dtype == EVQ_DTYPE_U8 || array->dtype == EVQ_DTYPE_U16 ||
                                array->dtype == EVQ_DTYPE_I16 || array->dtype == EVQ_DTYPE_U32 ||
                                array->dtype == EVQ_DTYPE_I32 || array->dtype == EVQ_DTYPE_I64);
}

static enum evq_status read_npy(const struct evq_token_file_source *source, struct evq_tokens *out,
                                struct evq_error *err)
{
    const struct evq_array_source from = {.path = source->path, .bytes_max = EVQ_ARRAY_BYTES_MAX};
    struct reading reading = {.source = source};
    struct evq_array array = {0};

    enum evq_status status = evq_dataset_npy.read(&from, &array, err);
    if (status != EVQ_OK) {
        return status;
    }
    reading.count = (uint64_t)array.shape[0];
    if (!holds_tokens(&array)) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED,
                               "'%s' is an array of %s with %" PRId32
                               " dimensions, expected whole numbers in one",
                               source->path, evq_dtype_name(array.dtype), array.rank);
    } else if (reading.count > source->tokens_max) {
        status =
            evq_error_set(err, EVQ_E_LIMIT, "'%s' holds %" PRIu64 " tokens, expected at most %zu",
                          source->path, reading.count, source->tokens_max);
    }
    const uint64_t count =
        source->limit > 0 && source->limit < reading.count ? source->limit : reading.count;
    status = status == EVQ_OK ? reserve(&reading, count, out, err) : status;
    for (size_t i = 0; status == EVQ_OK && i < count; i++) {
        const int64_t id = evq_array_integer(&array, i);
        if (id < 0 || id > INT32_MAX) {
            status = bad_id(&reading, i, id, err);
            break;
        }
        out->ids[out->count++] = (int32_t)id;
    }
    free(array.data);
    return status;
}

static enum evq_status read_file(struct reading *reading, struct evq_tokens *out,
                                 struct evq_error *err)
{
    const struct evq_token_file_source *source = reading->source;
    bool known = false;

    enum evq_status status = look(reading, &known, err);
    if (status == EVQ_OK && !known) {
        status = look_plain(reading, err);
    }
    if (status == EVQ_OK) {
        status = check_count(reading, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const uint64_t count =
        source->limit > 0 && source->limit < reading->count ? source->limit : reading->count;
    status = reserve(reading, count, out, err);
    return status == EVQ_OK ? read_numbers(reading, count, out, err) : status;
}

enum evq_status evq_token_file_read(const struct evq_token_file_source *source,
                                    struct evq_tokens *out, struct evq_error *err)
{
    struct reading reading = {.source = source, .fd = -1};
    const size_t count_before = out->count;
    uint8_t magic[6] = {0};
    struct stat info;

    if (source->dtype[0] != '\0' && strcmp(source->dtype, "u16") != 0 &&
        strcmp(source->dtype, "u32") != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "dtype '%.40s' of '%s', expected u16 or u32",
                             source->dtype, source->path);
    }
    enum evq_status status = evq_array_open_file(source->path, &reading.fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    reading.bytes = (uint64_t)info.st_size;
    if (reading.bytes >= sizeof(magic)) {
        status = evq_file_read_at(reading.fd, magic, sizeof(magic), 0, source->path, err);
    }
    if (status == EVQ_OK) {
        status = memcmp(magic, "\x93NUMPY", sizeof(magic)) == 0 ? read_npy(source, out, err)
                                                                : read_file(&reading, out, err);
    }
    (void)close(reading.fd); // It was opened for reading, so a failed close loses nothing.
    if (status != EVQ_OK) {
        out->count = count_before;
    }
    return status;
}

/* Reads a file of tokens as one document. */
enum evq_status evq_corpus_read_tokens(struct evq_corpus_build *build, struct evq_error *err)
{
    const struct evq_token_file_source source = {
        .path = build->corpus->name,
        .dtype = evq_corpus_option(build->source->task, "dtype", ""),
        .tokens_max = EVQ_CORPUS_TOKENS_MAX,
        .limit = build->limit < (int64_t)EVQ_CORPUS_TOKENS_MAX ? (size_t)build->limit : 0};

    const enum evq_status status = evq_token_file_read(&source, &build->corpus->tokens, err);
    return status == EVQ_OK
               ? evq_corpus_add_passage(build, (struct evq_passage){.first = 0}, NULL, 0, err)
               : status;
}
