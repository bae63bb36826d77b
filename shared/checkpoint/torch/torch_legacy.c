/* The stream of torch before 1.6: five pickles (a magic number, a protocol number, the machine, the
 * object, the storages' keys), then for each key a count of 8 bytes and that many elements. */
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/torch/torch.h"

#define PICKLES      5
#define OBJECT       3
#define PROTOCOL     1001
#define WINDOW_BYTES ((size_t)1 << 20) // Read first; doubled until the pickles fit.
#define COUNT_BYTES  8u

struct storage {
    const struct evq_pickle_node *key;
    uint64_t elements;
    uint64_t bytes;
    uint64_t offset; // 0: not found in the stream yet.
};

struct stream {
    struct evq_torch_source source; // Must be first, because place() casts it to struct stream.
    int32_t file;
    uint8_t *data; // The beginning of the file.
    size_t bytes;
    struct evq_pickle *pickles[PICKLES];
    size_t end;               // Where the pickles end.
    struct storage *storages; // Sorted by key.
    size_t count;
};

// LONG1 of ten bytes: 0x1950a86a20f9469cfc6c.
static const uint8_t magic[12] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                  0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

/* The magic number follows the protocol number, and a frame in newer protocols. */
static bool torch_legacy_probe(const uint8_t *head, size_t head_bytes, uint64_t file_bytes)
{
    const size_t at = head_bytes > 2 && head[2] == 0x95 ? 11 : 2;

    (void)file_bytes; // The reader checks the end of the file.
    return head_bytes >= at + sizeof(magic) && head[0] == 0x80 &&
           memcmp(head + at, magic, sizeof(magic)) == 0;
}

static void free_pickles(struct stream *stream)
{
    for (size_t i = 0; i < PICKLES; i++) {
        evq_pickle_free(stream->pickles[i]);
        stream->pickles[i] = NULL;
    }
    free(stream->data);
    stream->data = NULL;
}

static enum evq_status read_window(struct stream *stream, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    stream->data = malloc(stream->bytes);
    if (stream->data == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes of pickles", stream->bytes);
    }
    status = evq_checkpoint_read_bytes(stream->source.checkpoint, stream->file, 0, stream->data,
                                       stream->bytes, err);
    stream->end = 0;
    for (size_t i = 0; i < PICKLES && status == EVQ_OK; i++) {
        size_t taken = 0;
        status = evq_pickle_read_first(stream->data + stream->end, stream->bytes - stream->end,
                                       &stream->pickles[i], &taken, err);
        stream->end += taken;
    }
    return status;
}

/* No field says where the pickles end, so the window grows until it holds them. */
static enum evq_status read_pickles(struct stream *stream, uint64_t bytes_max,
                                    struct evq_error *err)
{
    const uint64_t file_bytes = stream->source.checkpoint->files[stream->file].bytes;
    uint64_t window = WINDOW_BYTES;

    for (;;) {
        window = window < bytes_max ? window : bytes_max;
        stream->bytes = (size_t)(window < file_bytes ? window : file_bytes);
        enum evq_status status = read_window(stream, err);
        if (status != EVQ_E_INCOMPLETE || stream->bytes == file_bytes) {
            return status;
        }
        free_pickles(stream);
        if (window == bytes_max) {
            return evq_error_set(err, EVQ_E_LIMIT, "its pickles take more than %llu bytes",
                                 (unsigned long long)bytes_max);
        }
        window *= 2;
    }
}

static enum evq_status check_machine(const struct stream *stream, struct evq_error *err)
{
    const struct evq_pickle_node *protocol = evq_pickle_root(stream->pickles[1]);
    const struct evq_pickle_node *little =
        evq_pickle_get(evq_pickle_root(stream->pickles[2]), "little_endian");

    if (protocol->kind != EVQ_PICKLE_INT || protocol->as.integer != PROTOCOL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "legacy stream: its protocol number is not %d",
                             PROTOCOL);
    }
    if (little == NULL || little->kind != EVQ_PICKLE_BOOL) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "legacy stream: it does not say whether it is little_endian");
    }
    if (little->as.integer == 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "legacy stream: it is not little-endian");
    }
    return EVQ_OK;
}

static int by_key(const void *a, const void *b)
{
    const struct storage *left = a;
    const struct storage *right = b;

    return evq_pickle_text_compare(left->key, right->key);
}

static struct storage *find_storage(const struct stream *stream, const struct evq_pickle_node *key)
{
    const struct storage wanted = {.key = key};

    if (key->kind != EVQ_PICKLE_TEXT || stream->count == 0) {
        return NULL;
    }
    return bsearch(&wanted, stream->storages, stream->count, sizeof(wanted), by_key);
}

static enum evq_status key_error(const struct evq_pickle_node *key, const char *what,
                                 struct evq_error *err)
{
    char shown[EVQ_SHOWN_BYTES] = "(no text)";

    if (key->kind == EVQ_PICKLE_TEXT) {
        evq_error_escape(key->as.text, key->count, shown, sizeof(shown));
    }
    return evq_error_set(err, EVQ_E_CORRUPT, "legacy stream: storage '%s' %s", shown, what);
}

/* Keeps one entry per storage, however many tensors use it. */
static enum evq_status merge_storages(struct stream *stream, struct evq_error *err)
{
    size_t kept = 0;

    qsort(stream->storages, stream->count, sizeof(*stream->storages), by_key);
    for (size_t i = 0; i < stream->count; i++) {
        const struct storage *next = &stream->storages[i];
        if (kept > 0 && evq_pickle_text_compare(stream->storages[kept - 1].key, next->key) == 0) {
            if (stream->storages[kept - 1].bytes != next->bytes ||
                stream->storages[kept - 1].elements != next->elements) {
                return key_error(next->key, "is said to have two sizes", err);
            }
            continue;
        }
        stream->storages[kept++] = *next;
    }
    stream->count = kept;
    return EVQ_OK;
}

/* Lists all storages, also those that are not selected, because each must be skipped to find the
 * next. */
static enum evq_status list_storages(struct stream *stream, struct evq_error *err)
{
    struct evq_pickle_node *const *nodes = NULL;
    const size_t nodes_count = evq_pickle_persistent(stream->pickles[OBJECT], &nodes);

    stream->storages = calloc(nodes_count + 1, sizeof(*stream->storages)); // Bounded by the pickle.
    if (stream->storages == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu storages", nodes_count);
    }
    for (size_t i = 0; i < nodes_count; i++) {
        const struct evq_pickle_node *id = nodes[i]->as.id;
        struct evq_torch_storage storage;
        enum evq_dtype dtype;
        unsigned bits = 0;
        if (id->kind == EVQ_PICKLE_TUPLE && id->count > 0 &&
            evq_pickle_is_text(id->as.items[0], "module")) {
            continue; // The source text of a class.
        }
        enum evq_status status = evq_torch_storage(nodes[i], &storage, err);
        if (status != EVQ_OK) {
            (void)evq_error_prefix(err, "legacy stream"); // The status stays what it is.
            return status;
        }
        struct storage *made = &stream->storages[stream->count++];
        *made = (struct storage){.key = storage.key, .elements = storage.elements};
        if (!evq_dtype_parse(storage.dtype_name, &dtype, &bits, &storage.dtype_name) ||
            __builtin_mul_overflow(storage.elements, (uint64_t)bits / 8, &made->bytes)) {
            return key_error(storage.key, "has a size that overflows", err);
        }
    }
    return merge_storages(stream, err);
}

/* Locates a storage at *at and moves *at past it. */
static enum evq_status locate(const struct stream *stream, const struct evq_pickle_node *key,
                              uint64_t *at, struct evq_error *err)
{
    const struct evq_checkpoint *checkpoint = stream->source.checkpoint;
    const uint64_t file_bytes = checkpoint->files[stream->file].bytes;
    struct storage *storage = find_storage(stream, key);
    uint64_t elements = 0;

    if (storage == NULL) {
        return key_error(key, "is listed, but no tensor names it", err);
    }
    if (storage->offset != 0) {
        return key_error(key, "is listed twice", err);
    }
    if (file_bytes - *at < COUNT_BYTES) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the file ends before all storages: still being written, or cut");
    }
    enum evq_status status =
        evq_checkpoint_read_bytes(checkpoint, stream->file, *at, &elements, sizeof(elements), err);
    if (status != EVQ_OK) {
        return status;
    }
    if (elements != storage->elements) {
        return key_error(key, "has another count of elements in the stream", err);
    }
    storage->offset = *at + COUNT_BYTES;
    if (storage->bytes > file_bytes - storage->offset) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the file ends inside a storage: still being written, or cut");
    }
    *at = storage->offset + storage->bytes;
    return EVQ_OK;
}

static enum evq_status locate_all(const struct stream *stream, struct evq_error *err)
{
    const struct evq_pickle_node *keys = evq_pickle_root(stream->pickles[PICKLES - 1]);
    const uint64_t file_bytes = stream->source.checkpoint->files[stream->file].bytes;
    uint64_t at = stream->end;
    enum evq_status status = EVQ_OK;

    if (keys->kind != EVQ_PICKLE_LIST) {
        return evq_error_set(err, EVQ_E_CORRUPT, "legacy stream: its storage keys are no list");
    }
    for (uint32_t i = 0; i < keys->count && status == EVQ_OK; i++) {
        status = locate(stream, keys->as.items[i], &at, err);
    }
    for (size_t i = 0; i < stream->count && status == EVQ_OK; i++) {
        if (stream->storages[i].offset == 0) {
            status = key_error(stream->storages[i].key, "is not in the stream", err);
        }
    }
    if (status == EVQ_OK && at != file_bytes) {
        status =
            evq_error_set(err, EVQ_E_CORRUPT, "legacy stream: %llu bytes follow the last storage",
                          (unsigned long long)(file_bytes - at));
    }
    return status;
}

/* The storage in the stream must have the size that the tensor expects. */
static enum evq_status place(const struct evq_torch_source *source, struct evq_torch_view *view,
                             struct evq_error *err)
{
    const struct stream *stream = (const struct stream *)source;
    const struct storage *storage = find_storage(stream, view->storage.key);
    unsigned bits = 0;

    if (storage == NULL ||
        !evq_dtype_parse(view->tensor.dtype_name, &view->tensor.dtype, &bits,
                         &view->tensor.dtype_name) ||
        view->storage.elements > storage->bytes ||
        view->storage.elements * (bits / 8) != storage->bytes) {
        return key_error(view->storage.key, "has another size than its tensor says", err);
    }
    view->tensor.file = stream->file;
    view->tensor.offset = storage->offset + view->first_element * (bits / 8);
    return EVQ_OK;
}

static enum evq_status torch_legacy_open(struct evq_checkpoint *checkpoint, int32_t file,
                                         const struct evq_checkpoint_options *options,
                                         struct evq_error *err)
{
    struct stream stream = {.source = {.checkpoint = checkpoint, .place = place}, .file = file};
    const uint64_t bytes_max =
        options->header_bytes_max == 0 ? EVQ_HEADER_BYTES_MAX : options->header_bytes_max;
    enum evq_status status = read_pickles(&stream, bytes_max, err);

    if (status == EVQ_OK) {
        status = check_machine(&stream, err);
    }
    if (status == EVQ_OK) {
        status = list_storages(&stream, err);
    }
    if (status == EVQ_OK) {
        status = locate_all(&stream, err);
    }
    if (status == EVQ_OK && !options->files_only) {
        const struct evq_pickle_node *root = evq_pickle_root(stream.pickles[OBJECT]);
        status = evq_torch_add(&stream.source, root, options, err);
    }
    if (status == EVQ_OK && !options->files_only) {
        status = evq_builder_keep_pickle(checkpoint, stream.pickles[OBJECT], stream.data, err);
        stream.pickles[OBJECT] = NULL; // The checkpoint's now.
        stream.data = NULL;
    }
    free(stream.storages);
    free_pickles(&stream);
    return status;
}

const struct evq_format evq_format_torch_legacy = {
    .name = "torch-legacy", .probe = torch_legacy_probe, .open = torch_legacy_open};
