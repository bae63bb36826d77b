#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/json.h"

#define LENGTH_BYTES 8

/* Where a tensor's bytes are. All extents together must fill the file. */
struct extent {
    uint64_t begin;
    uint64_t end;
    const char *name;
};

struct reader {
    struct evq_checkpoint *checkpoint;
    int32_t file;
    uint64_t data_at;    // Where the byte buffer begins in the file.
    uint64_t data_bytes; // Bytes of the file after the header.
    struct evq_json json;
    struct extent *extents;
    size_t extent_count;
    size_t extent_capacity;
    bool has_metadata;
};

static bool safetensors_probe(const uint8_t *head, size_t head_bytes, uint64_t file_bytes)
{
    uint64_t length = 0;

    if (head_bytes < LENGTH_BYTES + 2 || file_bytes < LENGTH_BYTES + 2) {
        return false;
    }
    memcpy(&length, head, sizeof(length)); // Little-endian, like every machine evalq runs on.
    return length >= 2 && length <= EVQ_HEADER_BYTES_MAX && strchr("{ \t\r\n", head[8]) != NULL &&
           head[8] != '\0';
}

static enum evq_status expect(struct reader *reader, enum evq_json_kind kind, const char *what,
                              struct evq_json_token *ret_token, struct evq_error *err)
{
    enum evq_status status = evq_json_next(&reader->json, ret_token, err);

    if (status == EVQ_OK && ret_token->kind != kind) {
        return evq_error_set(err, EVQ_E_CORRUPT, "%s was expected before byte %zu of the header",
                             what, reader->json.at);
    }
    return status;
}

static int by_text(const void *a, const void *b)
{
    const char *const *left = a;
    const char *const *right = b;

    return strcmp(*left, *right);
}

static enum evq_status check_metadata_keys(const char **keys, size_t count, struct evq_error *err)
{
    if (count > 1) {
        qsort(keys, count, sizeof(*keys), by_text);
    }
    for (size_t i = 1; i < count; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "duplicate key '%.160s' in __metadata__",
                                 keys[i]);
        }
    }
    return EVQ_OK;
}

static enum evq_status read_metadata(struct reader *reader, struct evq_error *err)
{
    struct evq_json_token token;
    const char **keys = NULL;
    size_t count = 0;
    size_t capacity = 0;

    if (reader->has_metadata) {
        return evq_error_set(err, EVQ_E_CORRUPT, "duplicate key '__metadata__'");
    }
    reader->has_metadata = true;
    enum evq_status status =
        expect(reader, EVQ_JSON_OBJECT, "an object as __metadata__", &token, err);
    while (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_OBJECT_END) {
            break;
        }
        if (count == capacity) {
            capacity = capacity == 0 ? 16 : capacity * 2;
            const char **grown = realloc(keys, capacity * sizeof(*keys)); // Bounded by the header.
            if (grown == NULL) {
                status = evq_error_set(err, EVQ_E_NOMEM, "%zu keys of __metadata__", capacity);
                break;
            }
            keys = grown;
        }
        keys[count++] = token.text;
        status = expect(reader, EVQ_JSON_STRING, "a string as value in __metadata__", &token, err);
    }
    if (status == EVQ_OK) {
        status = check_metadata_keys(keys, count, err);
    }
    free(keys);
    return status;
}

/* Reads an array of at most values_max integers into values. */
static enum evq_status read_integers(struct reader *reader, const char *what, const char *expected,
                                     size_t values_max, uint64_t *values, size_t *ret_count,
                                     struct evq_error *err)
{
    struct evq_json_token token;
    size_t count = 0;

    enum evq_status status = expect(reader, EVQ_JSON_ARRAY, expected, &token, err);
    while (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_ARRAY_END) {
            break;
        }
        if (count == values_max) {
            return evq_error_set(err, EVQ_E_LIMIT, "%s has more than %zu numbers", what,
                                 values_max);
        }
        if (!evq_json_u64(&token, &values[count])) {
            return evq_error_set(err, EVQ_E_CORRUPT,
                                 "%s holds something else than non-negative integers", what);
        }
        count++;
    }
    *ret_count = count;
    return status;
}

struct fields {
    bool has_dtype;
    bool has_shape;
    bool has_offsets;
    unsigned bits;
    uint64_t begin;
    uint64_t end;
};

static enum evq_status read_dtype(struct reader *reader, struct evq_tensor *tensor,
                                  struct fields *fields, struct evq_error *err)
{
    struct evq_json_token token;
    enum evq_status status = expect(reader, EVQ_JSON_STRING, "a string as dtype", &token, err);

    if (status == EVQ_OK &&
        !evq_dtype_parse(token.text, &tensor->dtype, &fields->bits, &tensor->dtype_name)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "unknown dtype '%.160s'", token.text);
    }
    return status;
}

static enum evq_status read_shape(struct reader *reader, struct evq_tensor *tensor,
                                  struct evq_error *err)
{
    uint64_t values[EVQ_TENSOR_RANK_MAX];
    size_t count = 0;
    enum evq_status status = read_integers(reader, "shape", "an array as shape",
                                           EVQ_TENSOR_RANK_MAX, values, &count, err);

    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        if (values[i] > INT64_MAX) {
            return evq_error_set(err, EVQ_E_CORRUPT, "shape: %llu overflows",
                                 (unsigned long long)values[i]);
        }
        tensor->shape[i] = (int64_t)values[i];
    }
    tensor->rank = (int32_t)count;
    return EVQ_OK;
}

static enum evq_status read_offsets(struct reader *reader, struct fields *fields,
                                    struct evq_error *err)
{
    uint64_t values[2] = {0, 0};
    size_t count = 0;
    enum evq_status status =
        read_integers(reader, "data_offsets", "an array as data_offsets", 2, values, &count, err);

    if (status == EVQ_OK && count != 2) {
        return evq_error_set(err, EVQ_E_CORRUPT, "data_offsets has %zu numbers, expected 2", count);
    }
    fields->begin = values[0];
    fields->end = values[1];
    return status;
}

static enum evq_status read_once(bool *seen, const char *what, struct evq_error *err)
{
    if (*seen) {
        return evq_error_set(err, EVQ_E_CORRUPT, "duplicate key '%s'", what);
    }
    *seen = true;
    return EVQ_OK;
}

static enum evq_status read_member(struct reader *reader, const char *key,
                                   struct evq_tensor *tensor, struct fields *fields,
                                   struct evq_error *err)
{
    struct evq_json_token token;
    enum evq_status status;

    if (strcmp(key, "dtype") == 0) {
        status = read_once(&fields->has_dtype, key, err);
        return status != EVQ_OK ? status : read_dtype(reader, tensor, fields, err);
    }
    if (strcmp(key, "shape") == 0) {
        status = read_once(&fields->has_shape, key, err);
        return status != EVQ_OK ? status : read_shape(reader, tensor, err);
    }
    if (strcmp(key, "data_offsets") == 0) {
        status = read_once(&fields->has_offsets, key, err);
        return status != EVQ_OK ? status : read_offsets(reader, fields, err);
    }
    // Unknown members are ignored, as the reference reader does.
    status = evq_json_next(&reader->json, &token, err);
    return status != EVQ_OK ? status : evq_json_skip(&reader->json, &token, err);
}

static enum evq_status check_sizes(struct evq_tensor *tensor, const struct fields *fields,
                                   struct evq_error *err)
{
    uint64_t elements = 0;
    uint64_t bits = 0;

    if (!fields->has_dtype || !fields->has_shape || !fields->has_offsets) {
        return evq_error_set(err, EVQ_E_CORRUPT, "%s is missing",
                             !fields->has_dtype   ? "dtype"
                             : !fields->has_shape ? "shape"
                                                  : "data_offsets");
    }
    if (fields->end < fields->begin) {
        return evq_error_set(err, EVQ_E_CORRUPT, "data_offsets end before they begin");
    }
    if (!evq_tensor_c_order(tensor, &elements) ||
        __builtin_mul_overflow(elements, (uint64_t)fields->bits, &bits)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "shape overflows 64 bits");
    }
    if (bits % 8 != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "%llu bits of %s are not a whole number of bytes",
                             (unsigned long long)bits, tensor->dtype_name);
    }
    if (fields->end - fields->begin != bits / 8) {
        return evq_error_set(
            err, EVQ_E_CORRUPT, "data_offsets span %llu bytes, shape and dtype need %llu",
            (unsigned long long)(fields->end - fields->begin), (unsigned long long)(bits / 8));
    }
    return EVQ_OK;
}

static enum evq_status add_extent(struct reader *reader, const struct evq_tensor *tensor,
                                  const struct fields *fields, struct evq_error *err)
{
    if (reader->extent_count == reader->extent_capacity) {
        // Bounded by EVQ_CHECKPOINT_TENSORS_MAX, so nothing overflows.
        size_t capacity = reader->extent_capacity == 0 ? 64 : reader->extent_capacity * 2;
        struct extent *grown = realloc(reader->extents, capacity * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "%zu tensors", capacity);
        }
        reader->extents = grown;
        reader->extent_capacity = capacity;
    }
    reader->extents[reader->extent_count++] =
        (struct extent){.begin = fields->begin, .end = fields->end, .name = tensor->name};
    return EVQ_OK;
}

static enum evq_status read_tensor(struct reader *reader, const char *name, struct evq_error *err)
{
    struct evq_tensor tensor = {.name = name, .file = reader->file, .contiguous = true};
    struct fields fields = {.has_dtype = false};
    struct evq_json_token token;
    enum evq_status status = expect(reader, EVQ_JSON_OBJECT, "an object", &token, err);

    while (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_OBJECT_END) {
            break;
        }
        status = read_member(reader, token.text, &tensor, &fields, err);
    }
    if (status == EVQ_OK) {
        status = check_sizes(&tensor, &fields, err);
    }
    if (status == EVQ_OK && fields.end > reader->data_bytes) {
        status = evq_error_set(
            err, EVQ_E_INCOMPLETE,
            "needs %llu bytes of data, the file has %llu: still being written, or cut",
            (unsigned long long)fields.end, (unsigned long long)reader->data_bytes);
    }
    if (status == EVQ_OK) {
        tensor.bytes = fields.end - fields.begin;
        tensor.offset = reader->data_at + fields.begin;
        status = evq_builder_add_tensor(reader->checkpoint, &tensor, err);
    }
    if (status == EVQ_OK) {
        return add_extent(reader, &tensor, &fields, err);
    }
    (void)evq_error_prefix(err, "tensor '%.160s'", name); // The status stays what it is.
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct extent *left = a;
    const struct extent *right = b;

    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    return left->end < right->end ? -1 : left->end > right->end;
}

/* Checks that the extents follow one another from 0 to the end: no gap, no overlap, nothing after
 * them. */
static enum evq_status check_extents(struct reader *reader, struct evq_error *err)
{
    const struct extent *extents = reader->extents;
    uint64_t at = 0;
    bool sorted = true;

    for (size_t i = 1; sorted && i < reader->extent_count; i++) {
        sorted = by_place(&extents[i - 1], &extents[i]) <= 0;
    }
    if (!sorted) {
        qsort(reader->extents, reader->extent_count, sizeof(*reader->extents), by_place);
    }
    for (size_t i = 0; i < reader->extent_count; i++) {
        if (extents[i].begin != at) {
            return evq_error_set(err, EVQ_E_CORRUPT,
                                 "tensor '%.160s' begins at data byte %llu, expected %llu (%s)",
                                 extents[i].name, (unsigned long long)extents[i].begin,
                                 (unsigned long long)at, extents[i].begin < at ? "overlap" : "gap");
        }
        at = extents[i].end;
    }
    if (at != reader->data_bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "%llu bytes trail behind the last tensor",
                             (unsigned long long)(reader->data_bytes - at));
    }
    return EVQ_OK;
}

static enum evq_status read_header(struct reader *reader, struct evq_error *err)
{
    struct evq_json_token token;
    enum evq_status status = expect(reader, EVQ_JSON_OBJECT, "an object", &token, err);

    while (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_OBJECT_END) {
            break;
        }
        if (strcmp(token.text, "__metadata__") == 0) {
            status = read_metadata(reader, err);
        } else {
            status = read_tensor(reader, token.text, err);
        }
    }
    if (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, err); // Only white space may follow.
    }
    if (status == EVQ_OK) {
        status = check_extents(reader, err);
    }
    return status;
}

static enum evq_status check_length(const struct reader *reader, uint64_t length,
                                    uint64_t length_max, struct evq_error *err)
{
    uint64_t file_bytes = reader->checkpoint->files[reader->file].bytes;

    if (length > length_max) {
        return evq_error_set(err, EVQ_E_LIMIT, "header of %llu bytes, allowed %llu",
                             (unsigned long long)length, (unsigned long long)length_max);
    }
    if (length > file_bytes - LENGTH_BYTES) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "header of %llu bytes in a file of %llu: still being written, or cut",
                             (unsigned long long)length, (unsigned long long)file_bytes);
    }
    if (length == 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "header of 0 bytes, expected at least '{}'");
    }
    return EVQ_OK;
}

static enum evq_status safetensors_open(struct evq_checkpoint *checkpoint, int32_t file,
                                        const struct evq_checkpoint_options *options,
                                        struct evq_error *err)
{
    struct reader reader = {.checkpoint = checkpoint, .file = file};
    uint64_t file_bytes = checkpoint->files[file].bytes;
    uint64_t length = 0;

    if (file_bytes < LENGTH_BYTES) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the file holds %llu bytes, the header's length alone takes 8",
                             (unsigned long long)file_bytes);
    }
    enum evq_status status =
        evq_checkpoint_read_bytes(checkpoint, file, 0, &length, sizeof(length), err);
    if (status == EVQ_OK) {
        uint64_t length_max = options->header_bytes_max;
        status =
            check_length(&reader, length, length_max == 0 ? EVQ_HEADER_BYTES_MAX : length_max, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    char *text = malloc((size_t)length);
    if (text == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "header of %llu bytes", (unsigned long long)length);
    }
    status = evq_builder_keep(checkpoint, text, err); // Names point into it.
    if (status == EVQ_OK) {
        status =
            evq_checkpoint_read_bytes(checkpoint, file, LENGTH_BYTES, text, (size_t)length, err);
    }
    const size_t valid = status == EVQ_OK ? evq_utf8_valid(text, (size_t)length) : 0;
    if (status == EVQ_OK && valid < length) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "header byte %zu is not UTF-8", valid);
    }
    if (status == EVQ_OK) {
        reader.data_at = LENGTH_BYTES + length;
        reader.data_bytes = file_bytes - reader.data_at;
        evq_json_init(&reader.json, text, (size_t)length);
        status = read_header(&reader, err);
    }
    free(reader.extents);
    return status;
}

const struct evq_format evq_format_safetensors = {
    .name = "safetensors", .probe = safetensors_probe, .open = safetensors_open};
