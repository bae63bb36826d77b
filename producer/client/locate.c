#include "producer/client/locate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"

enum evq_status evq_place_find(const struct evq_config *config, const char *path,
                               struct evq_place *ret_place, struct evq_error *err)
{
    struct evq_place *place = ret_place;

    place->root = NULL;
    place->root_fd = -1;
    place->is_held = false;
    const enum evq_status status =
        evq_config_root_resolve(config, path, place->real, &place->root, &place->path, err);
    if (status != EVQ_OK) {
        return status; // This is final, unless a part of the path is not there yet.
    }
    if (place->root->is_remote) {
        return EVQ_OK; // There is no directory to open.
    }
    place->root_fd = open(place->root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place->root_fd < 0) { // A missing descriptor or permission says nothing about the root.
        const bool gone = errno == ENOENT || errno == ENOTDIR || errno == ESTALE;
        return evq_error_set(err, gone ? EVQ_E_GONE : EVQ_E_IO, "open root %s at '%s': %s",
                             place->root->name, place->root->path, strerror(errno));
    }
    return EVQ_OK;
}

void evq_place_choose_source(struct evq_place *place, const struct evq_config *config,
                             const char *held)
{
    struct evq_place other = {.root_fd = -1};

    place->is_held = held[0] != '\0' && evq_place_find(config, held, &other, NULL) == EVQ_OK &&
                     other.root == place->root && strcmp(other.path, place->path) != 0 &&
                     evq_checkpoint_check_complete(place->root_fd, other.path, NULL) == EVQ_OK;
    (void)snprintf(place->source, sizeof(place->source), "%s",
                   place->is_held ? other.path : place->path);
    evq_place_close(&other);
}

void evq_place_close(struct evq_place *place)
{
    evq_file_close(&place->root_fd);
}
