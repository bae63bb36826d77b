#include "shared/checkpoint/checkpoint_builder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/tensor_pieces.h"

// Bounds the memory for file names and for tensor names that readers build.
#define ARENA_BYTES_MAX ((size_t)256 << 20)

enum evq_status evq_builder_new(const char *path, struct evq_checkpoint **ret_checkpoint,
                                struct evq_error *err)
{
    struct evq_checkpoint_builder *builder = calloc(1, sizeof(*builder));

    if (builder == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a checkpoint of '%s'", path);
    }
    struct evq_checkpoint *checkpoint = &builder->checkpoint;
    checkpoint->builder = builder;
    checkpoint->format = "";
    checkpoint->arena = evq_arena_new(ARENA_BYTES_MAX);
    if (checkpoint->arena != NULL) {
        checkpoint->path = evq_arena_strdup(checkpoint->arena, path);
    }
    if (checkpoint->path == NULL) {
        evq_checkpoint_close(checkpoint);
        return evq_error_set(err, EVQ_E_NOMEM, "a checkpoint of '%s'", path);
    }
    *ret_checkpoint = checkpoint;
    return EVQ_OK;
}

void evq_checkpoint_close(struct evq_checkpoint *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    struct evq_checkpoint_builder *builder = checkpoint->builder;
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        (void)close(checkpoint->files[i].fd); // Opened for reading: a failed close loses nothing.
    }
    for (size_t i = 0; i < builder->kept_count; i++) {
        free(builder->kept[i]);
    }
    evq_pickle_free(builder->pickle);
    for (size_t i = 0; i < builder->folder_count; i++) {
        (void)close(builder->folders[i].root_fd); // A directory: nothing to lose.
    }
    free(builder->kept);
    free(builder->identities);
    free(checkpoint->files);
    free(checkpoint->tensors);
    evq_arena_free(checkpoint->arena);
    free(builder);
}

/* Makes room for one more item; false when out of memory. */
static bool grow(void **items, size_t count, size_t *capacity, size_t item_bytes)
{
    size_t bytes;

    if (count < *capacity) {
        return true;
    }
    size_t wanted = *capacity == 0 ? 16 : *capacity + *capacity / 2;
    if (!evq_size_mul(wanted, item_bytes, &bytes)) {
        return false;
    }
    void *grown = realloc(*items, bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

static enum evq_status grow_files(struct evq_checkpoint *checkpoint, struct evq_error *err)
{
    struct evq_checkpoint_builder *builder = checkpoint->builder;
    size_t capacity = builder->file_capacity;
    void *files = checkpoint->files;
    void *identities = builder->identities;
    bool grown = grow(&files, checkpoint->file_count, &capacity, sizeof(*checkpoint->files));

    checkpoint->files = files;
    capacity = builder->file_capacity;
    grown =
        grow(&identities, checkpoint->file_count, &capacity, sizeof(*builder->identities)) && grown;
    builder->identities = identities;
    if (!grown) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu open files", checkpoint->file_count);
    }
    builder->file_capacity = capacity;
    return EVQ_OK;
}

enum evq_status evq_builder_add_file(struct evq_checkpoint *checkpoint, const char *name, int fd,
                                     const struct stat *info, int32_t *ret_file,
                                     struct evq_error *err)
{
    enum evq_status status;
    const char *copy = evq_arena_strdup(checkpoint->arena, name);

    if (checkpoint->file_count >= EVQ_CHECKPOINT_FILES_MAX) {
        status = evq_error_set(err, EVQ_E_LIMIT, "more than %d files", EVQ_CHECKPOINT_FILES_MAX);
        goto out;
    }
    if (copy == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a file name");
        goto out;
    }
    status = grow_files(checkpoint, err);
    if (status != EVQ_OK) {
        goto out;
    }
    size_t at = checkpoint->file_count++;
    checkpoint->files[at] =
        (struct evq_checkpoint_file){.name = copy, .fd = fd, .bytes = (uint64_t)info->st_size};
    checkpoint->builder->identities[at] = (struct evq_file_identity){.device = info->st_dev,
                                                                     .inode = info->st_ino,
                                                                     .bytes = info->st_size,
                                                                     .modified = info->st_mtim};
    *ret_file = (int32_t)at;
    return EVQ_OK;
out:
    (void)close(fd); // Never read from.
    return status;
}

static bool is_flat_parameter(const char *name)
{
    const char *dot = strrchr(name, '.');
    const char *last = dot == NULL ? name : dot + 1;

    last += *last == '_' ? 1 : 0;
    if (strncmp(last, "flat_param", strlen("flat_param")) != 0) {
        return false;
    }
    last += strlen("flat_param");
    return *last == '\0' || (last[0] == '_' && last[1] >= '0' && last[1] <= '9');
}

static enum evq_status check_place(const struct evq_checkpoint *checkpoint,
                                   const struct evq_tensor *tensor, struct evq_error *err)
{
    const struct evq_checkpoint_file *file = &checkpoint->files[tensor->file];

    if (tensor->bytes > file->bytes || tensor->offset > file->bytes - tensor->bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "%llu bytes at %llu lie past the end of the file",
                             (unsigned long long)tensor->bytes, (unsigned long long)tensor->offset);
    }
    return EVQ_OK;
}

enum evq_status evq_builder_add_tensor(struct evq_checkpoint *checkpoint,
                                       const struct evq_tensor *tensor, struct evq_error *err)
{
    size_t name_bytes = strlen(tensor->name);

    if (checkpoint->tensor_count >= EVQ_CHECKPOINT_TENSORS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "more than %d tensors", EVQ_CHECKPOINT_TENSORS_MAX);
    }
    if (name_bytes > EVQ_CHECKPOINT_NAME_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a tensor name of %zu bytes, allowed %d", name_bytes,
                             EVQ_CHECKPOINT_NAME_BYTES_MAX);
    }
    if (is_flat_parameter(tensor->name)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "it is a flat parameter of FSDP (LOCAL_STATE_DICT), which does not "
                             "say what it holds: save a full or sharded state dict, or convert it "
                             "first, in a `prepare` command");
    }
    for (size_t i = 0; i < tensor->piece_count; i++) {
        enum evq_status status = check_place(checkpoint, &tensor->pieces[i].stored, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    enum evq_status status = tensor->piece_count > 0 ? evq_tensor_pieces_check(tensor, err)
                                                     : check_place(checkpoint, tensor, err);
    if (status != EVQ_OK) {
        return status;
    }
    void *tensors = checkpoint->tensors;
    if (!grow(&tensors, checkpoint->tensor_count, &checkpoint->builder->tensor_capacity,
              sizeof(*checkpoint->tensors))) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu tensors", checkpoint->tensor_count + 1);
    }
    checkpoint->tensors = tensors;
    checkpoint->tensors[checkpoint->tensor_count++] = *tensor;
    return EVQ_OK;
}

enum evq_status evq_builder_keep(struct evq_checkpoint *checkpoint, void *memory,
                                 struct evq_error *err)
{
    struct evq_checkpoint_builder *builder = checkpoint->builder;
    void *kept = builder->kept;

    if (!grow(&kept, builder->kept_count, &builder->kept_capacity, sizeof(*builder->kept))) {
        free(memory);
        return evq_error_set(err, EVQ_E_NOMEM, "a file header");
    }
    builder->kept = kept;
    builder->kept[builder->kept_count++] = memory;
    return EVQ_OK;
}

enum evq_status evq_builder_keep_pickle(struct evq_checkpoint *checkpoint,
                                        struct evq_pickle *pickle, uint8_t *data,
                                        struct evq_error *err)
{
    struct evq_checkpoint_builder *builder = checkpoint->builder;

    if (builder->pickle != NULL) {
        evq_pickle_free(pickle);
        free(data);
        return EVQ_OK;
    }
    const enum evq_status status = evq_builder_keep(checkpoint, data, err);
    if (status != EVQ_OK) {
        evq_pickle_free(pickle); // Its bytes are gone.
        return status;
    }
    builder->pickle = pickle;
    return EVQ_OK;
}

enum evq_status evq_builder_add_folder(struct evq_checkpoint *checkpoint, int root_fd,
                                       const char *folder, struct evq_error *err)
{
    struct evq_checkpoint_builder *builder = checkpoint->builder;
    const char *path = evq_arena_strdup(checkpoint->arena, folder);

    if (path == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a path");
    }
    if (builder->folder_count == sizeof(builder->folders) / sizeof(builder->folders[0])) {
        return evq_error_set(err, EVQ_E_BUG, "a third folder");
    }
    const int fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "keep the root directory: %s", strerror(errno));
    }
    builder->folders[builder->folder_count++] = (struct evq_folder){.root_fd = fd, .path = path};
    return EVQ_OK;
}

int evq_tensor_compare_names(const void *left, const void *right)
{
    const struct evq_tensor *a = left;
    const struct evq_tensor *b = right;

    return strcmp(a->name, b->name);
}

enum evq_status evq_builder_finish(struct evq_checkpoint *checkpoint, struct evq_error *err)
{
    struct evq_tensor *tensors = checkpoint->tensors;
    size_t count = checkpoint->tensor_count;
    bool sorted = true;

    for (size_t i = 1; sorted && i < count; i++) {
        sorted = strcmp(tensors[i - 1].name, tensors[i].name) < 0;
    }
    if (!sorted) {
        qsort(tensors, count, sizeof(*tensors), evq_tensor_compare_names);
    }
    for (size_t i = 1; !sorted && i < count; i++) {
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "duplicate tensor name '%.160s'",
                                 tensors[i].name);
        }
    }
    return EVQ_OK;
}

bool evq_tensor_c_order(struct evq_tensor *tensor, uint64_t *ret_elements)
{
    int64_t stride = 1;
    bool empty = false;

    for (int32_t i = 0; i < tensor->rank; i++) {
        empty = empty || tensor->shape[i] == 0;
    }
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        tensor->strides[i] = stride;
        // An empty tensor has no elements, whatever its other dimensions multiply to.
        int64_t factor = empty && tensor->shape[i] == 0 ? 1 : tensor->shape[i];
        if (__builtin_mul_overflow(stride, factor, &stride)) {
            return false;
        }
    }
    *ret_elements = empty ? 0 : (uint64_t)stride;
    return true;
}
