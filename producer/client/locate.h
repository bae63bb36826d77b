/*
 * Finds the root of the configuration that contains a submitted path, and the copy of the path to
 * read. Any thread; nothing is kept.
 */
#ifndef EVQ_PRODUCER_CLIENT_LOCATE_H
#define EVQ_PRODUCER_CLIENT_LOCATE_H

#include <limits.h>
#include <stdbool.h>

#include "shared/config/config.h"

struct evq_place {
    const struct evq_root *root; // Owned by the configuration. NULL: no root contains the path.
    const char *path;            // Relative to the root; points into `real` or the submitted path.
    char real[PATH_MAX];
    char source[PATH_MAX]; // The path to read and pin, relative to the root: path or the held copy.
    bool is_held;          // source is the held copy.
    int root_fd; // The open root; -1: it is not open, or remote. evq_place_close() closes it.
};

/*
 * Finds the root that contains the absolute path and opens it. `path` must outlive the place.
 * EVQ_E_NOT_FOUND, EVQ_E_INVALID: no root contains it; EVQ_E_GONE: the root's directory is not
 * there; EVQ_E_IO: it cannot be opened.
 */
enum evq_status evq_place_find(const struct evq_config *config, const char *path,
                               struct evq_place *ret_place, struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Sets place->source: the held copy (an absolute path, "" for none) if the copy is complete and
 * beneath the same root, otherwise the path itself. The held copy is better, because the trainer
 * may delete the path file by file, and the files that are left can look like a checkpoint.
 */
void evq_place_choose_source(struct evq_place *place, const struct evq_config *config,
                             const char *held);
void evq_place_close(struct evq_place *place);

#endif
