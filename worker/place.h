/*
 * A checkpoint given by a path on the command line, as a root directory and a path beneath it.
 */
#ifndef EVQ_WORKER_PLACE_H
#define EVQ_WORKER_PLACE_H

#include "shared/error.h"

struct evq_place {
    int root_fd;
    char root[4096]; // Absolute.
    char path[4096]; // Relative to it.
};

/* Symbolic links on the way are followed once, here. EVQ_E_GONE: there is nothing. The caller
 * closes it. */
enum evq_status evq_place_open(const char *path, struct evq_place *ret_place,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_place_close(struct evq_place *place);

#endif
