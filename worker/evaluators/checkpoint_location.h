/*
 * Splits the location of a checkpoint into a root directory and a path beneath it. Any thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_CHECKPOINT_LOCATION_H
#define EVQ_WORKER_EVALUATORS_CHECKPOINT_LOCATION_H

#include "shared/base/error.h"
#include "shared/queue/job.h"

struct evq_checkpoint_location {
    int root_fd;
    char root[4096]; // Absolute.
    char path[4096]; // Relative to it.
};

/* Opens the root of a path from the command line. Symbolic links are followed once, here.
 * EVQ_E_GONE: the path does not exist. The caller calls evq_checkpoint_location_close(). */
enum evq_status evq_checkpoint_location_open(const char *path,
                                             struct evq_checkpoint_location *ret_place,
                                             struct evq_error *err) EVQ_CHECK_RESULT;
void evq_checkpoint_location_close(struct evq_checkpoint_location *place);

/* The path of a job's checkpoint beneath its root: the pinned copy if it exists, because the
 * trainer may have removed the original. The text belongs to the job. */
const char *evq_checkpoint_location_pick(int root_fd, const struct evq_job *job);

#endif
