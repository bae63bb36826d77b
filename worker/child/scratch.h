/*
 * The worker's scratch directory: logs/ (one file per attempt), jobs/ (one directory per attempt,
 * emptied when it ends), prepared/ (results of prepare commands). It belongs to this user, and all
 * of the user's workers share it. Any thread.
 */
#ifndef EVQ_WORKER_CHILD_SCRATCH_H
#define EVQ_WORKER_CHILD_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_SCRATCH_PATH_BYTES 4096
#define EVQ_SCRATCH_LOGS_KEPT  1000

/* Makes the directories with access for this user only, and removes the oldest logs and what dead
 * workers left. EVQ_E_IO; EVQ_E_INVALID: it belongs to another user. */
enum evq_status evq_scratch_open(const char *scratch, struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes a new, empty SCRATCH/jobs/XXXXXX. The caller removes it with evq_scratch_remove() and then
 * closes the descriptor, whose lock tells others that the directory is in use. */
enum evq_status evq_scratch_make_attempt(const char *scratch, char *ret_path, size_t path_bytes,
                                         int *ret_lock_fd, struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Reuses the directory of an ended attempt for the next one: it gets a new name, is emptied, and
 * keeps its lock. On a journalling file system a new directory can cost a millisecond. Returns
 * false if it cannot be emptied and restored; remove it then.
 */
bool evq_scratch_renew(const char *scratch, char *path, size_t path_bytes, int lock_fd);

/*
 * Whether this machine has what every attempt needs: space in a writable scratch directory, and
 * file descriptors. EVQ_E_FULL says what is missing; it is then the cause of the attempt's failure.
 */
enum evq_status evq_scratch_check(const char *scratch, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes the oldest logs beyond EVQ_SCRATCH_LOGS_KEPT, and what killed processes left in jobs/. */
void evq_scratch_prune(const char *scratch);

/* Removes a file or a directory with all its content, including read-only folders. Does not follow
 * symbolic links. What cannot be removed stays. */
void evq_scratch_remove(const char *path);

#endif
