#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/json.h"

/* One entry of weight_map. */
struct mapping {
    const char *tensor;
    const char *file;
};

struct sharded {
    struct evq_checkpoint *checkpoint;
    int root_fd;
    const char *folder;
    const struct evq_checkpoint_options *options;
    struct evq_json json;
    struct mapping *map;
    size_t count;
    size_t capacity;
    bool has_map;
};

/* Whether name is a plain file name, so that it stays in the index's folder. */
static bool plain_name(const char *name)
{
    size_t bytes = strlen(name);

    return bytes > 0 && bytes <= 255 && strchr(name, '/') == NULL && strchr(name, '\\') == NULL &&
           name[0] != '.';
}

static enum evq_status add_mapping(struct sharded *sharded, const char *tensor, const char *file,
                                   struct evq_error *err)
{

    if (!plain_name(file)) {
        return evq_error_set(err, EVQ_E_INVALID, "shard '%.160s' is not a plain file name", file);
    }
    if (sharded->count == EVQ_CHECKPOINT_TENSORS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "more than %d tensors", EVQ_CHECKPOINT_TENSORS_MAX);
    }
    if (sharded->count == sharded->capacity) {
        size_t capacity = sharded->capacity == 0 ? 64 : sharded->capacity * 2;
        struct mapping *grown = realloc(sharded->map, capacity * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "%zu tensors", capacity);
        }
        sharded->map = grown;
        sharded->capacity = capacity;
    }
    sharded->map[sharded->count++] = (struct mapping){.tensor = tensor, .file = file};
    return EVQ_OK;
}

static enum evq_status read_map(struct sharded *sharded, struct evq_error *err)
{
    struct evq_json_token key;
    struct evq_json_token value;
    enum evq_status status = evq_json_next(&sharded->json, &value, err);

    if (status == EVQ_OK && (sharded->has_map || value.kind != EVQ_JSON_OBJECT)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             sharded->has_map ? "duplicate key 'weight_map'"
                                              : "weight_map is not an object");
    }
    sharded->has_map = true;
    while (status == EVQ_OK) {
        status = evq_json_next(&sharded->json, &key, err);
        if (status != EVQ_OK || key.kind == EVQ_JSON_OBJECT_END) {
            break;
        }
        status = evq_json_next(&sharded->json, &value, err);
        if (status == EVQ_OK && value.kind != EVQ_JSON_STRING) {
            status =
                evq_error_set(err, EVQ_E_CORRUPT, "weight_map has a value that is not a string");
        }
        if (status == EVQ_OK) {
            status = add_mapping(sharded, key.text, value.text, err);
        }
    }
    return status;
}

static enum evq_status read_index(struct sharded *sharded, struct evq_error *err)
{
    struct evq_json_token token;
    enum evq_status status = evq_json_next(&sharded->json, &token, err);

    if (status == EVQ_OK && token.kind != EVQ_JSON_OBJECT) {
        return evq_error_set(err, EVQ_E_CORRUPT, "the index is not an object");
    }
    while (status == EVQ_OK) {
        status = evq_json_next(&sharded->json, &token, err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_OBJECT_END) {
            break;
        }
        if (strcmp(token.text, "weight_map") == 0) {
            status = read_map(sharded, err);
            continue;
        }
        status =
            evq_json_next(&sharded->json, &token, err); // total_size and the like may be stale.
        if (status == EVQ_OK) {
            status = evq_json_skip(&sharded->json, &token, err);
        }
    }
    if (status == EVQ_OK) {
        status = evq_json_next(&sharded->json, &token, err);
    }
    if (status == EVQ_E_CORRUPT && sharded->json.ended) {
        (void)evq_error_prefix(err, "still being written"); // Only the status changes.
        if (err != NULL) {
            err->status = EVQ_E_INCOMPLETE;
        }
        return EVQ_E_INCOMPLETE;
    }
    if (status == EVQ_OK && sharded->count == 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "the index maps no tensor (no weight_map)");
    }
    return status;
}

static int by_file(const void *a, const void *b)
{
    const struct mapping *left = a;
    const struct mapping *right = b;

    return strcmp(left->file, right->file);
}

static enum evq_status open_shards(struct sharded *sharded, struct evq_error *err)
{
    const char *format = NULL;

    qsort(sharded->map, sharded->count, sizeof(*sharded->map), by_file);
    for (size_t i = 0; i < sharded->count; i++) {
        if (i > 0 && strcmp(sharded->map[i - 1].file, sharded->map[i].file) == 0) {
            continue;
        }
        enum evq_status status =
            evq_format_read_part(sharded->checkpoint, sharded->root_fd, sharded->folder,
                                 sharded->map[i].file, sharded->options, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (format != NULL && strcmp(format, sharded->checkpoint->format) != 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "its shards are of two formats, %s and %s",
                                 format, sharded->checkpoint->format);
        }
        format = sharded->checkpoint->format;
    }
    return EVQ_OK;
}

/* Every mapped tensor must be in the shard the index says. */
static enum evq_status check_map(const struct sharded *sharded, struct evq_error *err)
{
    for (size_t i = 0; i < sharded->count; i++) {
        const struct mapping *mapping = &sharded->map[i];
        const struct evq_tensor *tensor = evq_checkpoint_find(sharded->checkpoint, mapping->tensor);
        if (tensor == NULL ||
            strcmp(sharded->checkpoint->files[tensor->file].name, mapping->file) != 0) {
            return evq_error_set(err, EVQ_E_CORRUPT,
                                 "tensor '%.160s' is not in shard '%.160s' as the index says",
                                 mapping->tensor, mapping->file);
        }
    }
    return EVQ_OK;
}

static enum evq_status load_text(int fd, uint64_t bytes, uint64_t bytes_max, char **ret_text,
                                 struct evq_error *err)
{

    if (bytes == 0) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "the index is empty: still being written");
    }
    if (bytes > bytes_max) {
        return evq_error_set(err, EVQ_E_LIMIT, "index of %llu bytes, allowed %llu",
                             (unsigned long long)bytes, (unsigned long long)bytes_max);
    }
    char *text = malloc((size_t)bytes);
    if (text == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "index of %llu bytes", (unsigned long long)bytes);
    }
    enum evq_status status = evq_checkpoint_read_fd(fd, 0, text, (size_t)bytes, err);
    const size_t valid = status == EVQ_OK ? evq_utf8_valid(text, (size_t)bytes) : 0;
    if (status == EVQ_OK && valid < bytes) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "index byte %zu is not UTF-8", valid);
    }
    if (status != EVQ_OK) {
        free(text);
        return status;
    }
    *ret_text = text;
    return EVQ_OK;
}

enum evq_status evq_sharded_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err)
{
    struct evq_checkpoint_options shard_options = *options;
    struct sharded sharded = {
        .checkpoint = checkpoint, .root_fd = root_fd, .folder = folder, .options = &shard_options};
    uint64_t bytes_max =
        options->header_bytes_max == 0 ? EVQ_HEADER_BYTES_MAX : options->header_bytes_max;
    char *text = NULL;

    // The shards must be read, because the map is compared with their tensors.
    shard_options.files_only = false;
    enum evq_status status = load_text(fd, (uint64_t)info->st_size, bytes_max, &text, err);

    if (status == EVQ_OK) {
        evq_json_init(&sharded.json, text, (size_t)info->st_size);
        status = read_index(&sharded, err);
    }
    if (status == EVQ_OK) {
        status = open_shards(&sharded, err);
    }
    if (status == EVQ_OK) {
        status = evq_builder_finish(checkpoint, err);
    }
    if (status == EVQ_OK) {
        status = check_map(&sharded, err);
    }
    free(sharded.map);
    free(text);
    (void)close(fd); // The index is read; the shards stay open.
    return status;
}
