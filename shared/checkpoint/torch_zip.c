#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/format.h"
#include "shared/checkpoint/torch.h"
#include "shared/checkpoint/zip.h"

struct archive {
    struct evq_checkpoint *checkpoint;
    int32_t file;
    struct evq_zip *zip;
    char prefix[1024]; // The one folder, with its slash.
};

static bool torch_zip_probe(const uint8_t *head, size_t head_bytes, uint64_t file_bytes)
{
    (void)file_bytes; // Where it ends is the reader's business.
    return head_bytes >= 4 && (memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, "PK\5\6", 4) == 0);
}

static const struct evq_zip_entry *find_in(const struct archive *archive, const char *name,
                                           size_t name_bytes)
{
    char path[2 * 1024];
    size_t prefix = strlen(archive->prefix);

    if (prefix + name_bytes >= sizeof(path)) {
        return NULL; // No entry has a name that long.
    }
    memcpy(path, archive->prefix, prefix);
    memcpy(path + prefix, name, name_bytes);
    path[prefix + name_bytes] = '\0';
    return evq_zip_find(archive->zip, path);
}

/* All entries must be in one folder, which holds data.pkl. */
static enum evq_status find_prefix(struct archive *archive, struct evq_error *err)
{
    const struct evq_zip *zip = archive->zip;
    const char *first = zip->count == 0 ? "" : zip->entries[0].name;
    size_t bytes = strcspn(first, "/") + 1;

    for (size_t i = 0; i < zip->count; i++) {
        const char *name = zip->entries[i].name;
        if (strchr(name, '/') == NULL || strncmp(name, first, bytes) != 0) {
            char shown[EVQ_SHOWN_BYTES];
            evq_error_escape(name, strlen(name), shown, sizeof(shown));
            return evq_error_set(
                err, EVQ_E_UNSUPPORTED,
                "zip: '%s' is not in the archive's one folder: not a file of torch.save", shown);
        }
    }
    if (zip->count > 0 && bytes < sizeof(archive->prefix)) {
        memcpy(archive->prefix, first, bytes);
        archive->prefix[bytes] = '\0';
    }
    if (find_in(archive, "data.pkl", strlen("data.pkl")) == NULL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "zip: it holds no data.pkl: not a file of torch.save");
    }
    return EVQ_OK;
}

static enum evq_status check_byteorder(const struct archive *archive, struct evq_error *err)
{
    const struct evq_zip_entry *entry = find_in(archive, "byteorder", strlen("byteorder"));
    uint8_t *text = NULL;

    if (entry == NULL) {
        return EVQ_OK; // Before torch 2.1 always little-endian on the machines that matter.
    }
    enum evq_status status =
        evq_zip_load(archive->checkpoint->files[archive->file].fd, entry, 16, &text, err);
    if (status == EVQ_OK && (entry->bytes != 6 || memcmp(text, "little", 6) != 0)) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "its byteorder is not little");
    }
    free(text);
    return status;
}

/* The record of a storage must hold exactly its elements. */
static enum evq_status place(const struct archive *archive, struct evq_torch_view *view,
                             struct evq_error *err)
{
    char name[1024] = "data/";
    char shown[EVQ_SHOWN_BYTES];
    size_t key_bytes = view->key->count;
    unsigned bits = 0;

    evq_error_escape(view->key->as.text, key_bytes, shown, sizeof(shown));
    if (key_bytes == 0 || key_bytes > 512 || memchr(view->key->as.text, '\0', key_bytes) != NULL ||
        memchr(view->key->as.text, '/', key_bytes) != NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "its storage has the key '%s'", shown);
    }
    memcpy(name + 5, view->key->as.text, key_bytes);
    const struct evq_zip_entry *entry = find_in(archive, name, 5 + key_bytes);
    view->tensor.file = archive->file;
    if (entry == NULL && view->storage_elements == 0) {
        view->tensor.offset = 0;
        return EVQ_OK; // Nothing to store.
    }
    if (entry == NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "its storage 'data/%s' is not in the archive",
                             shown);
    }
    if (entry->method != 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "its storage 'data/%s' is compressed, expected stored", shown);
    }
    if (!evq_dtype_parse(view->tensor.dtype_name, &view->tensor.dtype, &bits,
                         &view->tensor.dtype_name) ||
        view->storage_elements > entry->bytes ||
        view->storage_elements * (bits / 8) != entry->bytes) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "its storage 'data/%s' holds %llu bytes, %llu elements of %s were expected", shown,
            (unsigned long long)entry->bytes, (unsigned long long)view->storage_elements,
            view->tensor.dtype_name);
    }
    view->tensor.offset = entry->offset + view->first_element * (bits / 8);
    return EVQ_OK;
}

static enum evq_status add_tensor(void *context, const char *name,
                                  const struct evq_pickle_node *node, struct evq_error *err)
{
    struct archive *archive = context;
    struct evq_torch_view view;
    enum evq_status status = evq_torch_view(node, &view, err);

    if (status == EVQ_OK) {
        status = place(archive, &view, err);
    }
    if (status == EVQ_OK) {
        view.tensor.name = evq_arena_strdup(archive->checkpoint->arena, name);
        if (view.tensor.bytes == 0) {
            view.tensor.offset = 0; // An empty view may begin where its storage ends.
        }
        status =
            view.tensor.name == NULL
                ? evq_error_set(err, EVQ_E_LIMIT, "the names of its tensors take too much memory")
                : evq_directory_add_tensor(archive->checkpoint, &view.tensor, err);
    }
    if (status != EVQ_OK) {
        char shown[EVQ_SHOWN_BYTES];
        evq_error_escape(name, strlen(name), shown, sizeof(shown));
        (void)evq_error_prefix(err, "tensor '%s'", shown); // The status stays what it is.
    }
    return status;
}

static enum evq_status read_pickle(struct archive *archive,
                                   const struct evq_checkpoint_options *options, uint64_t bytes_max,
                                   struct evq_error *err)
{
    const struct evq_zip_entry *entry = find_in(archive, "data.pkl", strlen("data.pkl"));
    struct evq_pickle *pickle = NULL;
    const struct evq_pickle_node *weights = NULL;
    uint8_t *data = NULL;
    enum evq_status status =
        evq_zip_load(archive->checkpoint->files[archive->file].fd, entry, bytes_max, &data, err);

    if (status == EVQ_OK) {
        status = evq_pickle_read(data, (size_t)entry->bytes, &pickle, err);
    }
    if (status == EVQ_OK && !options->files_only) {
        status = evq_torch_select(evq_pickle_root(pickle), options, &weights, err);
        if (status == EVQ_OK) {
            status = evq_torch_walk(weights, add_tensor, archive, err);
        }
    }
    if (status == EVQ_OK && !options->files_only) {
        return evq_directory_keep_pickle(archive->checkpoint, pickle, data, err);
    }
    evq_pickle_free(pickle);
    free(data);
    return status;
}

static enum evq_status torch_zip_open(struct evq_checkpoint *checkpoint, int32_t file,
                                      const struct evq_checkpoint_options *options,
                                      struct evq_error *err)
{
    struct archive archive = {.checkpoint = checkpoint, .file = file};
    uint64_t bytes_max =
        options->header_bytes_max == 0 ? EVQ_HEADER_BYTES_MAX : options->header_bytes_max;
    enum evq_status status = evq_zip_read(checkpoint->files[file].fd, checkpoint->files[file].bytes,
                                          bytes_max, &archive.zip, err);

    if (status == EVQ_OK) {
        status = find_prefix(&archive, err);
    }
    if (status == EVQ_OK) {
        status = check_byteorder(&archive, err);
    }
    if (status == EVQ_OK) {
        status = read_pickle(&archive, options, bytes_max, err);
    }
    evq_zip_free(archive.zip);
    return status;
}

const struct evq_format evq_format_torch_zip = {
    .name = "torch-zip", .probe = torch_zip_probe, .open = torch_zip_open};
