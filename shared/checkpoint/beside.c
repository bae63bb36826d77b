#include <string.h>

#include "shared/checkpoint/checkpoint_builder.h"

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
        char shown[EVQ_SHOWN_BYTES];
        evq_error_escape(name, strlen(name), shown, sizeof(shown));
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a plain file name", shown);
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
