#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/torch/torch.h"
#include "shared/checkpoint/torch/zip.h"

// Limit for the headers and the pickle of an archive with one tensor.
#define ONE_TENSOR_BYTES_MAX 65536u

struct archive {
    struct evq_torch_source source; // Must be first, because place() casts it to struct archive.
    int32_t file;
    struct evq_zip_source in;
    struct evq_zip *zip;
    char prefix[1024]; // The one folder, with its slash.
};

static bool torch_zip_probe(const uint8_t *head, size_t head_bytes, uint64_t file_bytes)
{
    (void)file_bytes; // The reader checks the end of the file.
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
            return evq_error_set(
                err, EVQ_E_UNSUPPORTED,
                "zip: '%.160s' is not in the archive's one folder: not a file of torch.save", name);
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
    enum evq_status status = evq_zip_load(&archive->in, entry, 16, &text, err);
    if (status == EVQ_OK && (entry->bytes != 6 || memcmp(text, "little", 6) != 0)) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "its byteorder is not little");
    }
    free(text);
    return status;
}

/* The record of a storage must hold exactly its elements. */
static enum evq_status place(const struct evq_torch_source *source, struct evq_torch_view *view,
                             struct evq_error *err)
{
    const struct archive *archive = (const struct archive *)source;
    const struct evq_pickle_node *key = view->storage.key;
    const uint64_t elements = view->storage.elements;
    char name[1024] = "data/";
    char shown[EVQ_SHOWN_BYTES];
    size_t key_bytes = key->count;
    unsigned bits = 0;

    evq_error_escape(key->as.text, key_bytes, shown, sizeof(shown));
    if (key_bytes == 0 || key_bytes > 512 || memchr(key->as.text, '\0', key_bytes) != NULL ||
        memchr(key->as.text, '/', key_bytes) != NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "its storage has the key '%s'", shown);
    }
    memcpy(name + 5, key->as.text, key_bytes);
    const struct evq_zip_entry *entry = find_in(archive, name, 5 + key_bytes);
    view->tensor.file = archive->file;
    if (entry == NULL && elements == 0) {
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
        elements > entry->bytes || elements * (bits / 8) != entry->bytes) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "its storage 'data/%s' holds %llu bytes, %llu elements of %s were expected", shown,
            (unsigned long long)entry->bytes, (unsigned long long)elements,
            view->tensor.dtype_name);
    }
    view->tensor.offset = archive->in.origin + entry->offset + view->first_element * (bits / 8);
    return EVQ_OK;
}

/* Reads the pickle. The tree points into *ret_data. */
static enum evq_status read_pickle(const struct archive *archive, uint64_t bytes_max,
                                   struct evq_pickle **ret_pickle, uint8_t **ret_data,
                                   struct evq_error *err)
{
    const struct evq_zip_entry *entry = find_in(archive, "data.pkl", strlen("data.pkl"));
    uint8_t *data = NULL;
    enum evq_status status = evq_zip_load(&archive->in, entry, bytes_max, &data, err);

    if (status == EVQ_OK) {
        status = evq_pickle_read(data, (size_t)entry->bytes, ret_pickle, err);
    }
    if (status != EVQ_OK) {
        free(data);
        return status;
    }
    *ret_data = data;
    return EVQ_OK;
}

/* Opens the archive in [origin, origin + bytes) of a file. The caller frees archive->zip. */
static enum evq_status open_archive(struct archive *archive, struct evq_checkpoint *checkpoint,
                                    int32_t file, uint64_t origin, uint64_t bytes,
                                    uint64_t bytes_max, struct evq_error *err)
{
    *archive = (struct archive){
        .source = {.checkpoint = checkpoint, .place = place},
        .file = file,
        .in = {.fd = checkpoint->files[file].fd, .origin = origin, .bytes = bytes},
    };
    enum evq_status status = evq_zip_read(&archive->in, bytes_max, &archive->zip, err);

    if (status == EVQ_OK) {
        status = find_prefix(archive, err);
    }
    if (status == EVQ_OK) {
        status = check_byteorder(archive, err);
    }
    return status;
}

static enum evq_status torch_zip_open(struct evq_checkpoint *checkpoint, int32_t file,
                                      const struct evq_checkpoint_options *options,
                                      struct evq_error *err)
{
    struct archive archive;
    struct evq_pickle *pickle = NULL;
    uint8_t *data = NULL;
    const uint64_t bytes_max =
        options->header_bytes_max == 0 ? EVQ_HEADER_BYTES_MAX : options->header_bytes_max;
    enum evq_status status =
        open_archive(&archive, checkpoint, file, 0, checkpoint->files[file].bytes, bytes_max, err);

    if (status == EVQ_OK) {
        status = read_pickle(&archive, bytes_max, &pickle, &data, err);
    }
    if (status == EVQ_OK && !options->files_only) {
        status = evq_torch_add(&archive.source, evq_pickle_root(pickle), options, err);
    }
    evq_zip_free(archive.zip);
    if (status == EVQ_OK && !options->files_only) {
        return evq_builder_keep_pickle(checkpoint, pickle, data, err);
    }
    evq_pickle_free(pickle);
    free(data);
    return status;
}

enum evq_status evq_torch_zip_tensor(struct evq_checkpoint *checkpoint, int32_t file,
                                     uint64_t origin, uint64_t bytes, struct evq_tensor *ret_tensor,
                                     struct evq_error *err)
{
    struct archive archive;
    struct evq_torch_view view;
    struct evq_pickle *pickle = NULL;
    uint8_t *data = NULL;
    enum evq_status status =
        open_archive(&archive, checkpoint, file, origin, bytes, ONE_TENSOR_BYTES_MAX, err);

    if (status == EVQ_OK) {
        status = read_pickle(&archive, ONE_TENSOR_BYTES_MAX, &pickle, &data, err);
    }
    if (status == EVQ_OK) {
        status = evq_torch_view(evq_pickle_root(pickle), &view, err);
    }
    if (status == EVQ_OK) {
        status = place(&archive.source, &view, err);
    }
    if (status == EVQ_OK) {
        *ret_tensor = view.tensor;
    }
    evq_pickle_free(pickle);
    free(data);
    evq_zip_free(archive.zip);
    return status;
}

const struct evq_format evq_format_torch_zip = {
    .name = "torch-zip", .probe = torch_zip_probe, .open = torch_zip_open};
