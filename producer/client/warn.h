/*
 * The client's warnings. Each condition is written once per client, on one line. A submit that can
 * still be accepted writes none. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_WARN_H
#define EVQ_PRODUCER_CLIENT_WARN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "shared/base/error.h"

enum evq_warning {
    EVQ_WARN_FULL,        // The ring was full.
    EVQ_WARN_SPOOL,       // The spool was full, or cannot be written.
    EVQ_WARN_AWAY,        // Redis cannot be reached.
    EVQ_WARN_SERVER,      // Redis answers, but not as needed: version, permission, memory.
    EVQ_WARN_REFUSED,     // The queue refused a job.
    EVQ_WARN_ROOT,        // No root contains a checkpoint.
    EVQ_WARN_GONE,        // A checkpoint does not exist.
    EVQ_WARN_INCOMPLETE,  // A checkpoint stayed incomplete.
    EVQ_WARN_FORMAT,      // A checkpoint has a format that evalq cannot read.
    EVQ_WARN_UNPINNED,    // A checkpoint could not be pinned.
    EVQ_WARN_REMOTE,      // A remote checkpoint cannot be pinned.
    EVQ_WARN_REUSED,      // One path holds different steps.
    EVQ_WARN_OVERWRITTEN, // A step's files were overwritten before they were pinned.
    EVQ_WARN_SNAPSHOT,    // Other hosts cannot fetch snapshots from here.
    EVQ_WARN_CORRUPT,     // A record in ring or spool was damaged.
    EVQ_WARN_LOST,        // Redis lost jobs that it had accepted.
    EVQ_WARN_OLD,         // Old unsent submits of another run were removed.
    EVQ_WARN_FOLLOWED,    // A step of the run was submitted before, with other weights.
    EVQ_WARN_FORKED,      // A forked child submits with its parent's client.
    EVQ_WARN_UNSENT,      // The client was closed before everything was sent.
    EVQ_WARN_COUNT
};

struct evq_warner {
    int fd;             // -1: no warnings. Owned, unless it is standard error.
    atomic_uint warned; // One bit for each condition that was written.
};

/* log_path "": standard error. EVQ_E_INVALID: the file cannot be opened for appending. */
enum evq_status evq_warner_open(struct evq_warner *warner, const char *log_path, bool quiet,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_warner_close(struct evq_warner *warner);

/* Writes "evalq: warning: TEXT" if this condition was not written before. */
void evq_warn(struct evq_warner *warner, enum evq_warning condition, const char *format, ...)
    EVQ_PRINTF(3, 4);

#endif
