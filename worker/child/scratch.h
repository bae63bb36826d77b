/*
 * The worker's scratch directory: logs/ (one file per attempt), jobs/ (one directory per attempt,
 * emptied at its end), prepared/ (what prepare commands made). Owned by this user, shared by all
 * workers of it. Any thread.
 */
#ifndef EVQ_WORKER_SCRATCH_H
#define EVQ_WORKER_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_SCRATCH_PATH_BYTES 4096
#define EVQ_SCRATCH_LOGS_KEPT  1000

/* Makes the directories, private to this user; prunes the oldest logs and what dead workers left.
 * EVQ_E_IO; EVQ_E_INVALID: owned by another user. */
enum evq_status evq_scratch_open(const char *scratch, struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes a new, empty SCRATCH/jobs/XXXXXX. The caller removes it with evq_scratch_remove() and then
 * closes the descriptor, whose lock says that somebody is at work there. */
enum evq_status evq_scratch_attempt(const char *scratch, char *ret_path, size_t path_bytes,
                                    int *ret_lock_fd, struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Makes the directory of an attempt that ended that of the next one: under a name that no other has
 * now, and empty, with the same lock. A directory made anew for each costs a journalling file
 * system up to a millisecond. false: it cannot be had empty and as it was made; remove it like any
 * other.
 */
bool evq_scratch_renew(const char *scratch, char *path, size_t path_bytes, int lock_fd);

/*
 * Whether this machine has what any attempt needs: room in scratch, which can be written to, and
 * descriptors. EVQ_E_FULL says what it lacks; an attempt that failed failed of that.
 */
enum evq_status evq_scratch_room(const char *scratch, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes the oldest logs beyond EVQ_SCRATCH_LOGS_KEPT, and what killed processes left in jobs/. */
void evq_scratch_prune(const char *scratch);

/* A file or a whole directory, read-only folders too, without following symbolic links. What cannot
 * be removed stays. */
void evq_scratch_remove(const char *path);

#endif
