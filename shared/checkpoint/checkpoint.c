#include "shared/checkpoint/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/layout.h"
#include "shared/checkpoint/root_open.h"

static enum evq_status read_path(struct evq_checkpoint *checkpoint, int root_fd, const char *path,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err);

/*
 * Reads one file. fd is taken over. folder is where its shards are; messages call the file `name`.
 */
static enum evq_status read_file(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 const char *name, int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err)
{
    if (strcmp(name, "adapter_config.json") == 0) {
        return evq_adapter_read(checkpoint, root_fd, folder, fd, info, options, read_path, err);
    }
    if (strcmp(name, ".metadata") == 0) {
        return evq_dcp_read(checkpoint, root_fd, folder, fd, info, options, err);
    }
    return evq_file_ends_with(name, ".index.json")
               ? evq_sharded_read(checkpoint, root_fd, folder, fd, info, options, err)
               : evq_format_read(checkpoint, name, fd, info, options, err);
}

/* If the directory was replaced while its files were opened, the shards could belong to two
 * checkpoints. */
static enum evq_status check_same_directory(int root_fd, const char *path,
                                            const struct stat *before, struct evq_error *err)
{
    struct stat now;
    int fd = -1;
    enum evq_status status = evq_root_open_any(root_fd, path, &fd, &now, err);

    if (status != EVQ_OK) {
        return status;
    }
    (void)close(fd); // Only its identity counts.
    if (now.st_dev != before->st_dev || now.st_ino != before->st_ino) {
        return evq_error_set(err, EVQ_E_CHANGED, "the directory was replaced while it was opened");
    }
    return EVQ_OK;
}

/* Opens and reads the file `name` of the directory path. */
static enum evq_status read_inside(struct evq_checkpoint *checkpoint, int root_fd, const char *path,
                                   const char *name, const struct evq_checkpoint_options *options,
                                   struct evq_error *err)
{
    const char *slash = strrchr(name, '/');
    const char *folder = slash == NULL ? path
                                       : evq_arena_printf(checkpoint->arena, "%s/%.*s", path,
                                                          (int)(slash - name), name);
    struct stat info;
    int fd = -1;

    if (folder == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a path");
    }
    // Opened from the root again: a link inside the checkpoint may lead elsewhere below the root.
    enum evq_status status = evq_root_open_part(
        root_fd, path, name, slash == NULL ? EVQ_E_GONE : EVQ_E_INCOMPLETE, &fd, &info, err);
    if (status != EVQ_OK) {
        return status; // The message names the file.
    }
    status = read_file(checkpoint, root_fd, folder, slash == NULL ? name : slash + 1, fd, &info,
                       options, err);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "'%.160s'", name); // The status stays what it is.
    }
    return status;
}

/*
 * Handles a directory with both a whole model and an adapter. Transformers applies the adapter,
 * other programs do not, so the user decides. The files of both count for completeness and
 * fingerprint.
 */
static enum evq_status read_both(struct evq_checkpoint *checkpoint, int root_fd, const char *path,
                                 const struct evq_layout *layout,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err)
{
    static const char config[] = "adapter_config.json";
    struct evq_checkpoint_options onto = *options;
    const bool told = options->adapter != NULL && options->adapter[0] != '\0';

    if (options->files_only && layout->with_adapter) {
        const enum evq_status status = read_inside(checkpoint, root_fd, path, config, options, err);
        return status == EVQ_OK ? read_inside(checkpoint, root_fd, path, layout->name, options, err)
                                : status;
    }
    if (!told && !options->files_only) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "the directory holds both '%s' and an adapter, which Transformers applies%s: say which "
            "counts, in a task as `model: {adapter: apply}` (the adapter on this model) or "
            "`model: {adapter: ignore}`",
            layout->name, layout->with_adapter ? "" : " if adapter_config.json is there");
    }
    if (!told || strcmp(options->adapter, "ignore") == 0) {
        return read_inside(checkpoint, root_fd, path, layout->name, options, err);
    }
    if (options->base == NULL || options->base[0] == '\0') {
        onto.base = path;
        onto.adapter = "ignore"; // For the base, which is this directory again.
    }
    return read_inside(checkpoint, root_fd, path, config, &onto, err);
}

static enum evq_status read_directory(struct evq_checkpoint *checkpoint, int root_fd,
                                      const char *path, int directory_fd, const struct stat *info,
                                      const struct evq_checkpoint_options *options,
                                      struct evq_error *err)
{
    struct evq_layout layout;
    bool ranks = false;
    enum evq_status status = evq_layout_find(directory_fd, options->variant, &layout, err);

    if ((status == EVQ_E_UNSUPPORTED || status == EVQ_E_GONE) && options->files_only) {
        const enum evq_status read =
            evq_fsdp_ranks_read(checkpoint, root_fd, path, directory_fd, options, &ranks, err);
        if (read != EVQ_OK || ranks) {
            return read == EVQ_OK ? check_same_directory(root_fd, path, info, err) : read;
        }
    }
    if (status == EVQ_OK) {
        status = evq_builder_add_folder(checkpoint, root_fd, path, err);
    }
    if (status == EVQ_OK && (layout.with_adapter || layout.stray_adapter)) {
        status = read_both(checkpoint, root_fd, path, &layout, options, err);
    } else if (status == EVQ_OK) {
        status = read_inside(checkpoint, root_fd, path, layout.name, options, err);
    }
    return status == EVQ_OK ? check_same_directory(root_fd, path, info, err) : status;
}

static enum evq_status read_path(struct evq_checkpoint *checkpoint, int root_fd, const char *path,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err)
{
    enum evq_status status;

    if (S_ISDIR(info->st_mode)) {
        status = read_directory(checkpoint, root_fd, path, fd, info, options, err);
        (void)close(fd); // Opened for reading: a failed close loses nothing.
        return status;
    }
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    const char *folder =
        slash == NULL ? "." : evq_arena_strndup(checkpoint->arena, path, (size_t)(slash - path));
    if (folder == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a path");
        goto refused;
    }
    if (evq_layout_refuses(name) != NULL) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "%s", evq_layout_refuses(name));
        goto refused;
    }
    status = evq_builder_add_folder(checkpoint, root_fd, folder, err);
    if (status != EVQ_OK) {
        goto refused;
    }
    return read_file(checkpoint, root_fd, folder, name, fd, info, options, err);
refused:
    (void)close(fd); // Never read from.
    return status;
}

enum evq_status evq_checkpoint_open(int root_fd, const char *path,
                                    const struct evq_checkpoint_options *options,
                                    struct evq_checkpoint **ret_checkpoint, struct evq_error *err)
{
    static const struct evq_checkpoint_options defaults;
    struct evq_checkpoint *checkpoint = NULL;
    struct stat info;
    int fd = -1;
    enum evq_status status = evq_root_open_any(root_fd, path, &fd, &info, err);

    if (status != EVQ_OK) {
        return status; // The message names the path.
    }
    status = evq_builder_new(path[0] == '\0' ? "." : path, &checkpoint, err);
    if (status == EVQ_OK) {
        status = read_path(checkpoint, root_fd, checkpoint->path, fd, &info,
                           options == NULL ? &defaults : options, err);
        fd = -1; // It belongs to the checkpoint now, or is closed.
    }
    if (status == EVQ_OK) {
        status = evq_builder_finish(checkpoint, err);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    evq_file_close(&fd);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "checkpoint '%.160s'", path); // The status stays what it is.
        evq_checkpoint_close(checkpoint);
        return status;
    }
    *ret_checkpoint = checkpoint;
    return EVQ_OK;
}

enum evq_status evq_checkpoint_verify_unchanged(const struct evq_checkpoint *checkpoint,
                                                struct evq_error *err)
{
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        const struct evq_checkpoint_file *file = &checkpoint->files[i];
        const struct evq_file_identity *before = &checkpoint->builder->identities[i];
        struct stat now;

        if (fstat(file->fd, &now) != 0) {
            return evq_error_set(err, EVQ_E_IO, "fstat '%.160s': %s", file->name, strerror(errno));
        }
        if (now.st_size != before->bytes) {
            return evq_error_set(err, EVQ_E_CHANGED,
                                 "'%.160s' had %lld bytes when it was opened, now %lld", file->name,
                                 (long long)before->bytes, (long long)now.st_size);
        }
        if (now.st_dev != before->device || now.st_ino != before->inode ||
            now.st_mtim.tv_sec != before->modified.tv_sec ||
            now.st_mtim.tv_nsec != before->modified.tv_nsec) {
            return evq_error_set(err, EVQ_E_CHANGED, "'%.160s' was written to while it was read",
                                 file->name);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_checkpoint_check_complete(int root_fd, const char *path, struct evq_error *err)
{
    static const struct evq_checkpoint_options options = {.files_only = true};
    struct evq_checkpoint *checkpoint = NULL;
    // Opening reads every header and compares it with the size of its file: that is the whole test.
    enum evq_status status = evq_checkpoint_open(root_fd, path, &options, &checkpoint, err);

    evq_checkpoint_close(checkpoint);
    return status;
}

static enum evq_status open_in(const struct evq_folder *folder, const char *name, int *ret_fd,
                               struct evq_error *err)
{
    char path[4096];
    const size_t folder_bytes = strlen(folder->path);
    const size_t name_bytes = strlen(name);

    if (folder_bytes + name_bytes + 2 > sizeof(path)) {
        return evq_error_set(err, EVQ_E_INVALID, "its path is too long");
    }
    // Opened from the root, because a link may leave the checkpoint, but not the root.
    memcpy(path, folder->path, folder_bytes);
    path[folder_bytes] = '/';
    memcpy(path + folder_bytes + 1, name, name_bytes + 1);
    return evq_root_open(folder->root_fd, path, false, ret_fd, err);
}

enum evq_status evq_checkpoint_open_sibling(const struct evq_checkpoint *checkpoint,
                                            const char *name, int *ret_fd, struct evq_error *err)
{
    const struct evq_checkpoint_builder *builder = checkpoint->builder;
    enum evq_status status = EVQ_E_GONE;

    if (name[0] == '\0' || strchr(name, '/') != NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "'%.160s' is not a plain file name", name);
    }
    for (size_t i = 0; i < builder->folder_count && status == EVQ_E_GONE; i++) {
        status = open_in(&builder->folders[i], name, ret_fd, err);
    }
    return status;
}

bool evq_checkpoint_adapter_base(const struct evq_checkpoint *checkpoint, int *ret_root_fd,
                                 const char **ret_folder)
{
    const struct evq_checkpoint_builder *builder = checkpoint->builder;

    if (builder->folder_count < 2) {
        return false;
    }
    *ret_root_fd = builder->folders[1].root_fd;
    *ret_folder = builder->folders[1].path;
    return true;
}
