/*
 * The event files of one run directory, all written by us (their names end in ".evalq"). What they
 * hold is read back when the directory is opened; nothing is ever appended to a file of an earlier
 * process. One thread.
 */
#ifndef EVQ_LOGGER_TFRUN_H
#define EVQ_LOGGER_TFRUN_H

#include "logger/tensorboard/point_buffer.h"

struct evq_tfrun;

enum evq_status evq_tfrun_open(const char *directory, struct evq_tfrun **ret_run,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Adds a scalar. When it is flushed, a late or replaced point is followed by every later point of
 * its tag again, in order, however many are late at once: TensorBoard's fast loader drops what lies
 * at or after a step that arrives again (its reservoir.rs), so this yields the sorted curve.
 */
enum evq_status evq_tfrun_put(struct evq_tfrun *run, const char *tag, const struct evq_point *point,
                              struct evq_error *err) EVQ_CHECK_RESULT;
/* Writes and syncs. After a failure, here or of a put, the run reads its files again at the next
 * put. */
enum evq_status evq_tfrun_flush(struct evq_tfrun *run, struct evq_error *err) EVQ_CHECK_RESULT;
/* One sorted file in place of several or of one with points out of order, so that any reader finds
 * ascending steps. */
enum evq_status evq_tfrun_compact(struct evq_tfrun *run, struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether the files of a run may need evq_tfrun_compact(), because a logger wrote to them and has
 * not compacted them since: it is still at work, or it was killed. */
bool evq_tfrun_is_unsorted(const char *directory);
/* All points, flushed or not; to be read, valid until the next call. */
struct evq_point_buffer_set *evq_tfrun_series(struct evq_tfrun *run);
void evq_tfrun_close(struct evq_tfrun *run); // Accepts NULL. Drops what was not flushed.

#endif
