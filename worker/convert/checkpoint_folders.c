#include "worker/convert/checkpoint_folders.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/root_open.h"

enum evq_status evq_checkpoint_folder_open(int root_fd, const char *path, int *ret_fd,
                                           bool *ret_is_directory, struct evq_error *err)
{
    char folder[PATH_MAX];
    struct stat info;
    int fd = -1;

    enum evq_status status = evq_root_open_any(root_fd, path, &fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    *ret_is_directory = S_ISDIR(info.st_mode);
    if (*ret_is_directory) {
        *ret_fd = fd;
        return EVQ_OK;
    }
    evq_file_close(&fd);
    (void)snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    return evq_root_open(root_fd, slash != NULL ? folder : ".", true, ret_fd, err);
}

enum evq_status evq_base_roots_open(struct evq_base_roots *roots, const struct evq_config *config,
                                    const char *base, const char **ret_base, struct evq_error *err)
{
    roots->count = 0;
    roots->base[0] = '\0';
    if (base != NULL && base[0] != '\0') {
        if (realpath(base, roots->base) == NULL) {
            return evq_error_set(err, EVQ_E_NOT_FOUND, "the base '%s': %s", base, strerror(errno));
        }
        const int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
            return evq_error_set(err, EVQ_E_IO, "open '/': %s", strerror(errno));
        }
        roots->fds[roots->count++] = fd;
    }
    roots->count +=
        evq_config_roots_open(config, roots->fds + roots->count, EVQ_BASE_ROOTS_MAX - roots->count);
    *ret_base = roots->base;
    return EVQ_OK;
}

void evq_base_roots_close(struct evq_base_roots *roots)
{
    for (size_t i = 0; i < roots->count; i++) {
        evq_file_close(&roots->fds[i]);
    }
}

static bool has_weights(const char *base)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json"};
    char path[PATH_MAX + 64];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", base, names[i]);
        if (access(path, F_OK) == 0) {
            return true;
        }
    }
    return false;
}

enum evq_status evq_base_weights_open(const struct evq_base_roots *roots, const char *base,
                                      const struct evq_checkpoint *checkpoint,
                                      struct evq_checkpoint **ret_weights, struct evq_error *err)
{
    static const struct evq_checkpoint_options plain = {.key = "", .adapter = "ignore"};
    const char *folder = NULL;
    int root_fd = -1;

    *ret_weights = NULL;
    if (evq_checkpoint_adapter_base(checkpoint, &root_fd, &folder) || !has_weights(base)) {
        return EVQ_OK;
    }
    const enum evq_status status =
        evq_checkpoint_open(roots->fds[0], base + 1, &plain, ret_weights, err);
    return status == EVQ_OK ? EVQ_OK : evq_error_prefix(err, "base '%.160s'", base);
}
