#include "logger/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum evq_status evq_scratch_open(const char *directory, int *ret_fd, struct evq_error *err)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/.evalq-scratch.XXXXXX", directory) >= (int)sizeof(path)) {
        return evq_error_set(err, EVQ_E_LIMIT, "path of a scratch file in '%.80s...' is too long",
                             directory);
    }
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) { // NFS, older kernels.
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) {
            (void)unlink(path); // If it fails, an empty name stays behind, no more.
        }
    }
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "make a scratch file in '%s': %s", directory,
                             strerror(errno));
    }
    *ret_fd = fd;
    return EVQ_OK;
}
