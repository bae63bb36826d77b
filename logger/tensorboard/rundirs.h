/*
 * A directory per run beneath one directory that a single process holds by a lock file, with a
 * sink's state for each run that was written lately. One thread.
 */
#ifndef EVQ_LOGGER_RUNDIRS_H
#define EVQ_LOGGER_RUNDIRS_H

#include <stdbool.h>

#include "shared/base/error.h"

struct evq_rundirs;

struct evq_rundirs_ops {
    /* path: the run's directory, existing. */
    enum evq_status (*open)(void *context, const char *path, void **ret_run, struct evq_error *err);
    /* Everything written to the run is durable after it. */
    enum evq_status (*flush)(void *run, struct evq_error *err);
    void (*close)(void *run); // After a flush, or when the process gives up.
};

/*
 * Makes base/leaf-to-be and takes base/LOCK_NAME, ".NAME.lock", (EVQ_E_CONFLICT names its holder).
 * A run's directory is base/RUN/leaf (leaf "" : base/RUN). At most open_max runs stay open; the one
 * written longest ago is flushed and closed first.
 */
enum evq_status evq_rundirs_open(const char *base, const char *leaf, const char *lock_name,
                                 size_t open_max, const struct evq_rundirs_ops *ops, void *context,
                                 struct evq_rundirs **ret_dirs,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether a run may have a directory of that name, whichever sinks share the base: it is legal, and
 * none of their lock files' (".NAME.lock"). */
bool evq_rundirs_name_valid(const char *name);
/* The run's state, opened when it is not. EVQ_E_INVALID: of its name. Borrowed until the next call.
 */
enum evq_status evq_rundirs_get(struct evq_rundirs *dirs, const char *run, void **ret_run,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* What became of a write to the run that get() gave (NULL: none). Where it failed, and not of what
 * was written, the run is closed as by a flush that failed: all since the last comes again. */
void evq_rundirs_wrote(struct evq_rundirs *dirs, const void *run, enum evq_status status);
/* Flushes every run written since the last flush. One whose flush fails is closed: what it knows
 * may be ahead of its files, or these were removed; the next write opens it anew, with its
 * directory. */
enum evq_status evq_rundirs_flush(struct evq_rundirs *dirs, struct evq_error *err) EVQ_CHECK_RESULT;
/* Opens each run whose directory is wanted. Their close() then finishes what an earlier process,
 * which was killed, left undone. A run that cannot be opened is left for the next time. */
void evq_rundirs_visit(struct evq_rundirs *dirs, bool (*wanted)(const char *directory));
void evq_rundirs_close(struct evq_rundirs *dirs); // Accepts NULL; gives the lock up.

#endif
