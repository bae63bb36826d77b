#include "worker/evaluators/checkpoint_location.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"

enum evq_status evq_checkpoint_location_open(const char *path,
                                             struct evq_checkpoint_location *ret_place,
                                             struct evq_error *err)
{
    char *real = realpath(path, NULL);

    if (real == NULL) {
        return evq_error_set(err, errno == ENOENT || errno == ENOTDIR ? EVQ_E_GONE : EVQ_E_IO,
                             "'%s': %s", path, strerror(errno));
    }
    char *slash = strrchr(real, '/');
    const char *name = slash[1] != '\0' ? slash + 1 : ".";
    const int name_bytes = snprintf(ret_place->path, sizeof(ret_place->path), "%s", name);
    slash[slash == real ? 1 : 0] = '\0';
    const int root_bytes = snprintf(ret_place->root, sizeof(ret_place->root), "%s", real);
    free(real);
    if (name_bytes < 0 || root_bytes < 0 || (size_t)root_bytes >= sizeof(ret_place->root)) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%.60s...' is too long", path);
    }
    ret_place->root_fd = open(ret_place->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ret_place->root_fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", ret_place->root, strerror(errno));
    }
    return EVQ_OK;
}

void evq_checkpoint_location_close(struct evq_checkpoint_location *place)
{
    evq_file_close(&place->root_fd);
}

const char *evq_checkpoint_location_pick(int root_fd, const struct evq_job *job)
{
    int fd = -1;

    if (job->pin != NULL && job->pin[0] != '\0' &&
        (evq_root_open(root_fd, job->pin, false, &fd, NULL) == EVQ_OK ||
         evq_root_open(root_fd, job->pin, true, &fd, NULL) == EVQ_OK)) {
        (void)close(fd); // It was opened for reading, so a failed close loses nothing.
        return job->pin;
    }
    return job->path;
}
