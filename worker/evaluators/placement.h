/*
 * Splits the location of a checkpoint into a root directory and a path beneath it. Any thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PLACEMENT_H
#define EVQ_WORKER_EVALUATORS_PLACEMENT_H

#include "shared/base/error.h"
#include "shared/queue/job.h"

struct evq_placement {
    int root_fd;
    char root[4096]; // Absolute.
    char path[4096]; // Relative to it.
};

/* Opens the root of a path from the command line. Symbolic links are followed once, here.
 * EVQ_E_GONE: the path does not exist. The caller calls evq_placement_close(). */
enum evq_status evq_placement_open(const char *path, struct evq_placement *ret_place,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_placement_close(struct evq_placement *place);

/* The path of a job's checkpoint beneath its root: the pinned copy if it exists, because the
 * trainer may have removed the original. The text belongs to the job. */
const char *evq_placement_pick(int root_fd, const struct evq_job *job);

#endif
