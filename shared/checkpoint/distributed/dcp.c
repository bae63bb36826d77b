/* Reads a directory of torch.distributed.checkpoint. The pickle .metadata lists the boxes of each
 * tensor and where each is stored: in which __RANK_N.distcp, as an archive of torch.save. */
#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/distributed/dcp.h"
#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/json.h"
#include "shared/checkpoint/root_open.h"
#include "shared/checkpoint/tensor_pieces.h"

/* One value of storage_data: where a box or an object is stored. */
struct entry {
    const struct evq_pickle_node *name; // TEXT.
    const struct evq_pickle_node *path; // TEXT: the file.
    int32_t rank;                       // -1: an object, not a tensor.
    int64_t begin[EVQ_TENSOR_RANK_MAX];
    int32_t file;
    uint64_t offset;
    uint64_t bytes;
};

struct dcp {
    struct evq_checkpoint *checkpoint;
    int root_fd;
    const char *folder;
    const struct evq_pickle_node *tensors; // state_dict_metadata.
    const struct evq_pickle_node *storage; // storage_data.
    // planner_data: where the dots of a name divide it; it may be no dict.
    const struct evq_pickle_node *paths;
    struct entry *entries; // Sorted by name and begin.
    size_t count;
    struct evq_error *err;
};

/* Returns an attribute of an object, usually a dataclass. NULL: none. */
static const struct evq_pickle_node *attribute(const struct evq_pickle_node *node, const char *name)
{
    return node->kind == EVQ_PICKLE_OBJECT && node->as.object->state != NULL
               ? evq_pickle_get(node->as.object->state, name)
               : NULL;
}

/* Compares only the class name, because its module moved between versions. */
static bool is_class(const struct evq_pickle_node *node, const char *name)
{
    return node->kind == EVQ_PICKLE_OBJECT &&
           node->as.object->callable->kind == EVQ_PICKLE_GLOBAL &&
           strcmp(node->as.object->callable->as.global->name, name) == 0;
}

static enum evq_status fault(struct dcp *dcp, const struct evq_pickle_node *name, const char *what)
{
    char shown[EVQ_SHOWN_BYTES] = "(no text)";

    if (name != NULL && name->kind == EVQ_PICKLE_TEXT) {
        evq_error_escape(name->as.text, name->count, shown, sizeof(shown));
    }
    return evq_error_set(dcp->err, EVQ_E_CORRUPT, "'%s' %s", shown, what);
}

static bool read_place(const struct evq_pickle_node *info, struct entry *entry)
{
    const struct evq_pickle_node *path = attribute(info, "relative_path");
    const struct evq_pickle_node *offset = attribute(info, "offset");
    const struct evq_pickle_node *length = attribute(info, "length");

    if (path == NULL || path->kind != EVQ_PICKLE_TEXT || offset == NULL ||
        offset->kind != EVQ_PICKLE_INT || offset->as.integer < 0 || length == NULL ||
        length->kind != EVQ_PICKLE_INT || length->as.integer < 0) {
        return false;
    }
    entry->path = path;
    entry->offset = (uint64_t)offset->as.integer;
    entry->bytes = (uint64_t)length->as.integer;
    return true;
}

static enum evq_status read_entry(struct dcp *dcp, const struct evq_pickle_node *index,
                                  const struct evq_pickle_node *info, struct entry *entry)
{
    const struct evq_pickle_node *offset = attribute(index, "offset");
    const struct evq_pickle_node *transforms = attribute(info, "transform_descriptors");

    *entry = (struct entry){.name = attribute(index, "fqn"), .rank = -1};
    if (entry->name == NULL || entry->name->kind != EVQ_PICKLE_TEXT) {
        return fault(dcp, NULL, "stands in storage_data under what is no index of a name");
    }
    if (transforms != NULL && transforms->kind != EVQ_PICKLE_NONE && transforms->count > 0) {
        return evq_error_set(dcp->err, EVQ_E_UNSUPPORTED,
                             "its parts are compressed or otherwise transformed: save it without "
                             "extensions");
    }
    if (!read_place(info, entry)) {
        return fault(dcp, entry->name, "is stored at what is no path, offset and length");
    }
    if (offset == NULL || offset->kind == EVQ_PICKLE_NONE) {
        return EVQ_OK; // An object, not a tensor.
    }
    return evq_torch_integers(offset, "place", entry->begin, &entry->rank, dcp->err);
}

static int by_path(const void *a, const void *b)
{
    const struct entry *left = a;
    const struct entry *right = b;

    return evq_pickle_text_compare(left->path, right->path);
}

static int by_place(const void *a, const void *b)
{
    const struct entry *left = a;
    const struct entry *right = b;
    int order = evq_pickle_text_compare(left->name, right->name);

    if (order == 0) {
        order = (left->rank > right->rank) - (left->rank < right->rank);
    }
    for (int32_t i = 0; i < left->rank && order == 0; i++) {
        order = (left->begin[i] > right->begin[i]) - (left->begin[i] < right->begin[i]);
    }
    return order;
}

static enum evq_status read_entries(struct dcp *dcp)
{
    const size_t count = dcp->storage->count / 2;
    enum evq_status status = EVQ_OK;

    dcp->entries = calloc(count + 1, sizeof(*dcp->entries)); // Bounded by the pickle.
    if (dcp->entries == NULL) {
        return evq_error_set(dcp->err, EVQ_E_NOMEM, "%zu parts", count);
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        struct evq_pickle_node *const *items = dcp->storage->as.items;
        status = read_entry(dcp, items[2 * i], items[2 * i + 1], &dcp->entries[i]);
        dcp->count = i + 1;
    }
    return status;
}

/* Opens a file of parts. torch writes names without a folder, and others are refused. */
static enum evq_status open_file(struct dcp *dcp, const struct evq_pickle_node *path,
                                 int32_t *ret_file)
{
    struct stat info;
    int fd = -1;

    if (path->count == 0 || path->count > 255 || path->as.text[0] == '.' ||
        memchr(path->as.text, '/', path->count) != NULL ||
        memchr(path->as.text, '\0', path->count) != NULL) {
        return evq_error_set(dcp->err, EVQ_E_INVALID, "'%.*s' is not a plain file name",
                             path->count < 160 ? (int)path->count : 160, path->as.text);
    }
    const char *name =
        evq_arena_strndup(dcp->checkpoint->arena, path->as.text, (size_t)path->count);
    if (name == NULL) {
        return evq_error_set(dcp->err, EVQ_E_NOMEM, "a path");
    }
    const enum evq_status status =
        evq_root_open_part(dcp->root_fd, dcp->folder, name, EVQ_E_INCOMPLETE, &fd, &info, dcp->err);
    if (status != EVQ_OK) {
        return status;
    }
    return evq_builder_add_file(dcp->checkpoint, name, fd, &info, ret_file, dcp->err);
}

/* Opens every file that holds a part, also parts that are not asked for, because a complete
 * checkpoint has all of them. */
static enum evq_status open_files(struct dcp *dcp)
{
    int32_t file = -1;

    qsort(dcp->entries, dcp->count, sizeof(*dcp->entries), by_path);
    for (size_t i = 0; i < dcp->count; i++) {
        struct entry *entry = &dcp->entries[i];
        if (i == 0 || evq_pickle_text_compare(dcp->entries[i - 1].path, entry->path) != 0) {
            enum evq_status status = open_file(dcp, entry->path, &file);
            if (status != EVQ_OK) {
                return status;
            }
        }
        entry->file = file;
        const uint64_t bytes = dcp->checkpoint->files[file].bytes;
        if (entry->bytes > bytes || entry->offset > bytes - entry->bytes) {
            const char *name = dcp->checkpoint->files[file].name;
            return evq_error_set(
                dcp->err, EVQ_E_INCOMPLETE,
                "'%.160s' has %llu bytes, a part reaches to byte %llu: still being written, or cut",
                name, (unsigned long long)bytes,
                (unsigned long long)(entry->offset + entry->bytes));
        }
    }
    qsort(dcp->entries, dcp->count, sizeof(*dcp->entries), by_place);
    for (size_t i = 1; i < dcp->count; i++) {
        if (by_place(&dcp->entries[i - 1], &dcp->entries[i]) == 0) {
            return fault(dcp, dcp->entries[i].name, "has two parts at one place");
        }
    }
    return EVQ_OK;
}

/* Reads one box of tensor. Its archive must hold a tensor of this shape and type. */
static enum evq_status read_piece(struct dcp *dcp, const struct evq_pickle_node *name,
                                  const struct evq_tensor *tensor,
                                  const struct evq_pickle_node *chunk,
                                  struct evq_tensor_piece *piece)
{
    const struct evq_pickle_node *offsets = attribute(chunk, "offsets");
    const struct evq_pickle_node *sizes = attribute(chunk, "sizes");
    struct entry wanted = {.name = name};
    struct evq_tensor box = {.rank = 0};

    if (offsets == NULL || sizes == NULL) {
        return fault(dcp, name, "has a chunk without offsets and sizes");
    }
    enum evq_status status =
        evq_torch_integers(offsets, "place", wanted.begin, &wanted.rank, dcp->err);
    if (status == EVQ_OK) {
        status = evq_torch_integers(sizes, "shape", box.shape, &box.rank, dcp->err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (wanted.rank != tensor->rank || box.rank != tensor->rank) {
        return fault(dcp, name, "has a chunk of another rank");
    }
    size_t elements = 0;
    if (evq_tensor_elements(&box, &elements) && elements == 0) {
        piece->stored.rank = -1; // A rank that got nothing. It is left out.
        return EVQ_OK;
    }
    const struct entry *entry = dcp->count == 0 ? NULL
                                                : bsearch(&wanted, dcp->entries, dcp->count,
                                                          sizeof(*dcp->entries), by_place);
    if (entry == NULL) {
        return fault(dcp, name, "has a chunk that is stored nowhere");
    }
    status = evq_torch_zip_tensor(dcp->checkpoint, entry->file, entry->offset, entry->bytes,
                                  &piece->stored, dcp->err);
    if (status != EVQ_OK) {
        const char *file = dcp->checkpoint->files[entry->file].name;
        (void)evq_error_prefix(dcp->err, "'%s' byte %llu", file,
                               (unsigned long long)entry->offset); // The status stays what it is.
        return status;
    }
    if (piece->stored.rank != box.rank ||
        memcmp(piece->stored.shape, box.shape, sizeof(box.shape[0]) * (size_t)box.rank) != 0) {
        return fault(dcp, name, "has a chunk whose archive holds another shape");
    }
    if (strcmp(piece->stored.dtype_name, tensor->dtype_name) != 0) {
        return fault(dcp, name, "has a chunk whose archive holds another dtype");
    }
    piece->stored.name = tensor->name;
    memcpy(piece->begin, wanted.begin, sizeof(piece->begin));
    return EVQ_OK;
}

/* Reads dtype and shape of the whole tensor. */
static enum evq_status read_whole(struct dcp *dcp, const struct evq_pickle_node *name,
                                  const struct evq_pickle_node *node, struct evq_tensor *tensor)
{
    const struct evq_pickle_node *properties = attribute(node, "properties");
    const struct evq_pickle_node *size = attribute(node, "size");
    const struct evq_pickle_node *state =
        properties == NULL || properties->kind != EVQ_PICKLE_OBJECT ? NULL
                                                                    : properties->as.object->state;
    unsigned bits = 0;
    uint64_t elements = 0;

    if (state == NULL || state->kind != EVQ_PICKLE_TUPLE || state->count < 1 || size == NULL) {
        return fault(dcp, name, "is described without dtype and size");
    }
    if (!evq_torch_dtype(state->as.items[0], &tensor->dtype_name) ||
        !evq_dtype_parse(tensor->dtype_name, &tensor->dtype, &bits, &tensor->dtype_name) ||
        tensor->dtype == EVQ_DTYPE_OTHER) {
        return evq_error_set(dcp->err, EVQ_E_UNSUPPORTED, "its dtype is not one that is read");
    }
    enum evq_status status =
        evq_torch_integers(size, "size", tensor->shape, &tensor->rank, dcp->err);
    if (status == EVQ_OK &&
        (!evq_tensor_c_order(tensor, &elements) ||
         __builtin_mul_overflow(elements, (uint64_t)bits / 8, &tensor->bytes))) {
        status = fault(dcp, name, "has a size that overflows");
    }
    return status;
}

static enum evq_status read_chunks(struct dcp *dcp, const struct evq_pickle_node *name,
                                   const struct evq_pickle_node *chunks, struct evq_tensor *tensor)
{
    if (chunks == NULL || chunks->kind != EVQ_PICKLE_LIST) {
        return fault(dcp, name, "is described without a list of chunks");
    }
    if (chunks->count > EVQ_TENSOR_PIECES_MAX) {
        return evq_error_set(dcp->err, EVQ_E_LIMIT, "%u pieces, allowed %d", chunks->count,
                             EVQ_TENSOR_PIECES_MAX);
    }
    struct evq_tensor_piece *pieces =
        evq_arena_array(dcp->checkpoint->arena, (size_t)chunks->count + 1, sizeof(*pieces));
    if (pieces == NULL) {
        return evq_error_set(dcp->err, EVQ_E_LIMIT, "its pieces take too much memory");
    }
    for (uint32_t i = 0; i < chunks->count; i++) {
        struct evq_tensor_piece *piece = &pieces[tensor->piece_count];
        enum evq_status status = read_piece(dcp, name, tensor, chunks->as.items[i], piece);
        if (status != EVQ_OK) {
            return status;
        }
        tensor->piece_count += piece->stored.rank >= 0 ? 1 : 0;
    }
    if (tensor->piece_count == 0) {
        tensor->contiguous = tensor->bytes == 0; // Nothing to store.
        return tensor->contiguous ? EVQ_OK : fault(dcp, name, "has no chunk");
    }
    tensor->pieces = pieces;
    if (tensor->piece_count > 1) {
        return EVQ_OK;
    }
    const enum evq_status status = evq_tensor_pieces_check(tensor, dcp->err);
    if (status == EVQ_OK) {
        *tensor = pieces->stored; // The single piece is the whole tensor.
    }
    return status;
}

static enum evq_status add_tensor(struct dcp *dcp, const struct evq_pickle_node *name,
                                  const struct evq_pickle_node *node, size_t skip)
{
    const size_t bytes = name->count - skip;
    const char *text = name->as.text + skip;

    if (bytes == 0 || memchr(text, '\0', bytes) != NULL || evq_utf8_valid(text, bytes) < bytes) {
        return fault(dcp, name, "is a name that is empty, holds a NUL or is not UTF-8");
    }
    struct evq_tensor tensor = {.name = evq_arena_strndup(dcp->checkpoint->arena, text, bytes)};
    if (tensor.name == NULL) {
        return evq_error_set(dcp->err, EVQ_E_LIMIT,
                             "the names of its tensors take too much memory");
    }
    enum evq_status status = read_whole(dcp, name, node, &tensor);
    if (status == EVQ_OK) {
        status = read_chunks(dcp, name, attribute(node, "chunks"), &tensor);
    }
    if (status == EVQ_OK) {
        status = evq_builder_add_tensor(dcp->checkpoint, &tensor, dcp->err);
    }
    if (status != EVQ_OK) {
        (void)evq_error_prefix(dcp->err, "tensor '%.160s'",
                               tensor.name); // The status stays what it is.
    }
    return status;
}

static enum evq_status add_tensors(struct dcp *dcp, const struct evq_checkpoint_options *options)
{
    struct evq_dcp_selection choice = {.names = dcp->tensors};
    enum evq_status status = evq_dcp_select(&choice, dcp->paths, options, dcp->err);

    for (uint32_t i = 0; status == EVQ_OK && i + 1 < dcp->tensors->count; i += 2) {
        const struct evq_pickle_node *name = dcp->tensors->as.items[i];
        const struct evq_pickle_node *node = dcp->tensors->as.items[i + 1];
        size_t skip = 0;
        if (evq_dcp_is_tensor(node) && evq_dcp_is_selected(&choice, name, &skip)) {
            status = add_tensor(dcp, name, node, skip);
        }
    }
    evq_dcp_selection_free(&choice);
    return status;
}

static enum evq_status check_metadata(struct dcp *dcp, const struct evq_pickle_node *root)
{
    static const struct evq_pickle_node none = {.kind = EVQ_PICKLE_NONE};

    if (!is_class(root, "Metadata")) {
        return evq_error_set(dcp->err, EVQ_E_CORRUPT, "it is not the Metadata of torch's DCP");
    }
    dcp->tensors = attribute(root, "state_dict_metadata");
    dcp->storage = attribute(root, "storage_data");
    dcp->paths = attribute(root, "planner_data");
    dcp->paths = dcp->paths == NULL ? &none : dcp->paths;
    if (dcp->tensors == NULL || dcp->tensors->kind != EVQ_PICKLE_DICT) {
        return evq_error_set(dcp->err, EVQ_E_CORRUPT, "its state_dict_metadata is no dict");
    }
    if (dcp->storage == NULL || dcp->storage->kind != EVQ_PICKLE_DICT) {
        return evq_error_set(dcp->err, EVQ_E_CORRUPT, "its storage_data is no dict");
    }
    return EVQ_OK;
}

/* Loads and parses .metadata. The caller frees data and pickle. */
static enum evq_status load_metadata(const struct dcp *dcp, int32_t file, uint64_t bytes_max,
                                     uint8_t **ret_data, struct evq_pickle **ret_pickle)
{
    const uint64_t bytes = dcp->checkpoint->files[file].bytes;

    if (bytes == 0) {
        return evq_error_set(dcp->err, EVQ_E_INCOMPLETE, "it is empty: still being written");
    }
    if (bytes > bytes_max) {
        return evq_error_set(dcp->err, EVQ_E_LIMIT, "%llu bytes, allowed %llu",
                             (unsigned long long)bytes, (unsigned long long)bytes_max);
    }
    *ret_data = malloc((size_t)bytes);
    if (*ret_data == NULL) {
        return evq_error_set(dcp->err, EVQ_E_NOMEM, "%llu bytes", (unsigned long long)bytes);
    }
    enum evq_status status =
        evq_checkpoint_read_bytes(dcp->checkpoint, file, 0, *ret_data, (size_t)bytes, dcp->err);
    size_t taken = 0;
    if (status == EVQ_OK) {
        status = evq_pickle_read_first(*ret_data, (size_t)bytes, ret_pickle, &taken, dcp->err);
    }
    if (status == EVQ_OK && taken != bytes) {
        status = evq_error_set(dcp->err, EVQ_E_CORRUPT, "%llu bytes follow the end of the pickle",
                               (unsigned long long)bytes - taken);
    }
    return status;
}

enum evq_status evq_dcp_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                             int fd, const struct stat *info,
                             const struct evq_checkpoint_options *options, struct evq_error *err)
{
    struct dcp dcp = {.checkpoint = checkpoint, .root_fd = root_fd, .folder = folder, .err = err};
    const uint64_t bytes_max =
        options->header_bytes_max == 0 ? EVQ_HEADER_BYTES_MAX : options->header_bytes_max;
    struct evq_pickle *pickle = NULL;
    uint8_t *data = NULL;
    int32_t file = 0;
    enum evq_status status = evq_builder_add_file(checkpoint, ".metadata", fd, info, &file, err);

    if (status != EVQ_OK) {
        return status;
    }
    checkpoint->format = "torch-dcp";
    status = load_metadata(&dcp, file, bytes_max, &data, &pickle);
    if (status == EVQ_OK) {
        status = check_metadata(&dcp, evq_pickle_root(pickle));
    }
    if (status == EVQ_OK) {
        status = read_entries(&dcp);
    }
    if (status == EVQ_OK) {
        status = open_files(&dcp);
    }
    if (status == EVQ_OK && !options->files_only) {
        status = add_tensors(&dcp, options);
    }
    free(dcp.entries);
    evq_pickle_free(pickle);
    free(data);
    return status;
}
