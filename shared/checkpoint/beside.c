#include <string.h>

#include "shared/checkpoint/directory.h"

enum evq_status evq_checkpoint_open_beside(const struct evq_checkpoint *checkpoint,
                                           const char *name, int *ret_fd, struct evq_error *err)
{
    const struct evq_directory *directory = checkpoint->directory;
    char path[4096];
    char shown[EVQ_SHOWN_BYTES];

    evq_error_escape(name, strlen(name), shown, sizeof(shown));
    if (name[0] == '\0' || strchr(name, '/') != NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a plain file name", shown);
    }
    const size_t folder_bytes = strlen(directory->folder);
    const size_t name_bytes = strlen(name);
    if (folder_bytes + name_bytes + 2 > sizeof(path)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' has too long a path", shown);
    }
    // From the root: a link may lead out of the checkpoint, though not out of the root.
    memcpy(path, directory->folder, folder_bytes);
    path[folder_bytes] = '/';
    memcpy(path + folder_bytes + 1, name, name_bytes + 1);
    return evq_beneath_open(directory->root_fd, path, false, ret_fd, err);
}
