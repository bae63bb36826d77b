/*
 * The TensorBoard event file of one run. On disk it is complete and sorted at every moment, also
 * after a crash: the steps of each tag ascend and each step is there once, so that any reader shows
 * the right curve. One thread.
 *
 * A point after the last one of its tag is appended. A late or repeated point waits in memory until
 * the flush, which merges all such points into a copy of the file. The copy then replaces the file.
 * It gets a new name, because TensorBoard reads a file again only under a new name.
 */
#ifndef EVQ_LOGGER_TENSORBOARD_EVENT_FILE_H
#define EVQ_LOGGER_TENSORBOARD_EVENT_FILE_H

#include "logger/tensorboard/curves.h"

struct evq_event_file;

/*
 * Opens the event file of a run's directory, or prepares a new one. Cuts off a torn record at the
 * end, which was never acknowledged. Errors: EVQ_E_CORRUPT (another program added a file, or
 * changed the order of the steps), EVQ_E_IO, EVQ_E_NOMEM, EVQ_E_LIMIT (the path is too long).
 */
enum evq_status evq_event_file_open(const char *directory, struct evq_event_file **ret_file,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether a point should be given again later, because adding it needs a rewrite of the file and
 * the last rewrite was a moment ago. So a burst of late points costs one rewrite. */
bool evq_event_file_defers(const struct evq_event_file *file, const char *tag, int64_t step);

/*
 * Adds a point. Of two points with one tag and step, the one with the later wall_seconds stays.
 * EVQ_E_INVALID: the tag is too long; nothing changed. After any other error, close the file and
 * repeat what was put since the last flush. Memory is bounded: a put may write to the disk.
 */
enum evq_status evq_event_file_put(struct evq_event_file *file, const char *tag,
                                   const struct evq_point *point,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes all points durable. After an error, close the file and repeat what was put since the last
 * flush. EVQ_E_GONE: somebody removed the file. */
enum evq_status evq_event_file_flush(struct evq_event_file *file,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

void evq_event_file_close(struct evq_event_file *file); // Accepts NULL. Drops what is not flushed.

#endif
