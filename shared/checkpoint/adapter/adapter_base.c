#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/format.h"
#include "shared/checkpoint/root_open.h"

/* Returns the part of path below the directory root_fd, or NULL if path is elsewhere. */
static const char *below(int root_fd, const char *path, char *root, size_t root_bytes)
{
    char link[64];

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", root_fd);
    ssize_t bytes = readlink(link, root, root_bytes - 1);
    bytes -= bytes == 1; // The root is "/" itself.
    if (bytes < 0 || strncmp(path, root, (size_t)bytes) != 0 || path[bytes] != '/') {
        return NULL;
    }
    path += bytes;
    return path + strspn(path, "/");
}

/* EVQ_E_GONE: path is not below this root. */
static enum evq_status open_below(int root_fd, const char *path, const char **ret_path, int *ret_fd,
                                  struct stat *ret_info, struct evq_error *err)
{
    char root[PATH_MAX];
    const char *relative = path[0] == '/' ? below(root_fd, path, root, sizeof(root)) : path;

    if (relative == NULL) {
        return evq_error_set(err, EVQ_E_GONE, "'%s' is not beneath this root", path);
    }
    *ret_path = relative;
    return evq_root_open_any(root_fd, relative, ret_fd, ret_info, err);
}

enum evq_status evq_adapter_base_read(struct evq_checkpoint *checkpoint, int root_fd,
                                      const char *named,
                                      const struct evq_checkpoint_options *options,
                                      evq_read_path_fn read_base, struct evq_error *err)
{
    const struct evq_checkpoint_options plain = {
        .key = "", .adapter = options->adapter, .header_bytes_max = options->header_bytes_max};
    const char *path = options->base != NULL && options->base[0] != '\0' ? options->base : named;
    enum evq_status status = EVQ_E_GONE;

    if (path == NULL || path[0] == '\0') {
        return evq_error_set(
            err, EVQ_E_NOT_FOUND,
            "the adapter does not name its base: set `base` to where it is, in a task as "
            "`model: {base: PATH}`");
    }
    for (size_t i = 0; i <= options->root_count && status == EVQ_E_GONE; i++) {
        const int at_fd = i == 0 ? root_fd : options->root_fds[i - 1];
        const char *relative = NULL;
        struct stat info;
        int fd = -1;
        status = open_below(at_fd, path, &relative, &fd, &info, err);
        if (status == EVQ_OK) {
            status = read_base(checkpoint, at_fd, relative, fd, &info, &plain, err);
            if (status != EVQ_OK) {
                (void)evq_error_prefix(err, "base '%.160s'", path); // The status stays what it is.
                return status;
            }
        }
    }
    return status == EVQ_E_GONE
               ? evq_error_set(
                     err, EVQ_E_NOT_FOUND,
                     "the adapter's base '%.160s' is beneath none of the roots: set `base` "
                     "to its path there (nothing is downloaded)",
                     path)
               : status;
}
