/*
 * One directory for each run beneath a base directory, which a lock file reserves for this process.
 * Keeps a sink's state (its open files) for the runs that were written last. One thread.
 */
#ifndef EVQ_LOGGER_RUN_DIRECTORIES_H
#define EVQ_LOGGER_RUN_DIRECTORIES_H

#include <stdbool.h>

#include "shared/base/error.h"

struct evq_run_directories;

/* How the sink opens, flushes and closes its state of one run. */
struct evq_run_directories_ops {
    /* path: the run's directory, which exists. */
    enum evq_status (*open)(void *context, const char *path, void **ret_run, struct evq_error *err);
    /* Makes everything that was written to the run durable. */
    enum evq_status (*flush)(void *run, struct evq_error *err);
    void (*close)(void *run); // Comes after a flush, or after an error that loses what came later.
};

/*
 * Makes the base directory and takes the lock file base/LOCK_NAME, which is named ".NAME.lock".
 * The directory of a run is base/RUN/leaf, or base/RUN if leaf is "". At most open_max runs stay
 * open. If one more is wanted, the run that was written longest ago is flushed and closed.
 * Errors: EVQ_E_CONFLICT (names the process that holds the lock), EVQ_E_IO, EVQ_E_LIMIT,
 * EVQ_E_NOMEM.
 */
enum evq_status evq_run_directories_open(const char *base, const char *leaf, const char *lock_name,
                                         size_t open_max, const struct evq_run_directories_ops *ops,
                                         void *context,
                                         struct evq_run_directories **ret_directories,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether a run's directory may have this name. It must be a legal run name, and not that of a lock
 * file (".NAME.lock"), because several sinks may share the base. */
bool evq_run_directories_name_valid(const char *name);

/* Returns the run's state, opened if necessary. Borrowed until the next call.
 * Errors: EVQ_E_INVALID (the name is not valid), and those of the ops. */
enum evq_status evq_run_directories_get(struct evq_run_directories *directories, const char *run,
                                        void **ret_run, struct evq_error *err) EVQ_CHECK_RESULT;

/* Reports how a write to the state that get() returned ended. run may be NULL. If the write failed,
 * the run is closed, and everything since its last flush must be given again. EVQ_E_INVALID and
 * EVQ_E_LIMIT refuse only what was written, so that the run stays open. */
void evq_run_directories_wrote(struct evq_run_directories *directories, const void *run,
                               enum evq_status status);

/* Flushes each run that was written since the last flush. A run whose flush fails is closed. The
 * next write opens it again, and makes its directory again if that was removed. */
enum evq_status evq_run_directories_flush(struct evq_run_directories *directories,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

void evq_run_directories_close(struct evq_run_directories *directories); // Accepts NULL.

#endif
