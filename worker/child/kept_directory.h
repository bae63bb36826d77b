/*
 * A directory that one slot makes and many slots and workers of this machine use: PATH, or
 * PATH.partial while it is being made, and its lock PATH.lock. A process that uses the directory
 * holds the lock shared; one that makes it holds the lock alone. Any thread.
 */
#ifndef EVQ_WORKER_CHILD_KEPT_DIRECTORY_H
#define EVQ_WORKER_CHILD_KEPT_DIRECTORY_H

#include "worker/evaluators/evaluator.h"

#define EVQ_KEPT_DIRECTORY_PARTIAL ".partial" // Suffix of a directory that is still being made.
#define EVQ_KEPT_DIRECTORY_LOCK    ".lock"
#define EVQ_KEPT_DIRECTORY_BYTES   8704 // Room for the path of a lock.

/*
 * Waits for the lock and takes it: shared if the directory exists, otherwise alone. *ret_made tells
 * which. The caller closes *ret_fd. what is made, such as "prepare", is shown while this waits.
 * EVQ_E_STOPPED: report said so. EVQ_E_IO, EVQ_E_LIMIT.
 */
enum evq_status evq_kept_directory_lock(const char *path, const char *what,
                                        const struct evq_eval_report *report, int *ret_fd,
                                        bool *ret_made, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes the directory, its partial one and its lock, unless somebody uses or makes it. Returns
 * whether they are removed. */
bool evq_kept_directory_remove(const char *path);

#endif
