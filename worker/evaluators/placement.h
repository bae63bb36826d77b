/*
 * A checkpoint as a root directory and a path beneath it: of a path on the command line, of a job.
 */
#ifndef EVQ_WORKER_PLACE_H
#define EVQ_WORKER_PLACE_H

#include "shared/base/error.h"
#include "shared/queue/job.h"

struct evq_placement {
    int root_fd;
    char root[4096]; // Absolute.
    char path[4096]; // Relative to it.
};

/* Symbolic links on the way are followed once, here. EVQ_E_GONE: there is nothing. The caller
 * closes it. */
enum evq_status evq_placement_open(const char *path, struct evq_placement *ret_place,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_placement_close(struct evq_placement *place);

/* Where a job's checkpoint lies beneath its root: the pinned copy where that is there, since the
 * trainer may have removed the original meanwhile. The job's own text. */
const char *evq_placement_pick(int root_fd, const struct evq_job *job);

#endif
