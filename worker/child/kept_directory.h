/*
 * A directory that one slot makes, and that all slots and workers of this machine can use. It is at
 * PATH.partial while a slot makes it, and at PATH afterwards. The file PATH.lock is its lock: a
 * process that uses the directory holds the lock shared, and a process that makes the directory
 * holds the lock exclusively. Any thread.
 */
#ifndef EVQ_WORKER_CHILD_KEPT_DIRECTORY_H
#define EVQ_WORKER_CHILD_KEPT_DIRECTORY_H

#include "worker/evaluators/evaluator.h"

#define EVQ_KEPT_DIRECTORY_PARTIAL ".partial" // Suffix of a directory that is still being made.
#define EVQ_KEPT_DIRECTORY_LOCK    ".lock"
#define EVQ_KEPT_DIRECTORY_BYTES   8704 // Space for the path of a lock.

/*
 * Waits for the lock and takes it: shared if the directory exists (*ret_made is true), otherwise
 * exclusively. The caller closes *ret_fd. While this waits, the job's status is "waits for WHAT",
 * for example "waits for a fetch". EVQ_E_STOPPED: report asked to stop. EVQ_E_IO, EVQ_E_LIMIT.
 */
enum evq_status evq_kept_directory_lock(const char *path, const char *what,
                                        const struct evq_eval_report *report, int *ret_fd,
                                        bool *ret_made, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes PATH, PATH.partial and PATH.lock, unless a process uses or makes the directory. Returns
 * true if they were removed. */
bool evq_kept_directory_remove(const char *path);

#endif
