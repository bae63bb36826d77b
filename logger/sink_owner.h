/* Finds out whether another logger serves the same sink. Two loggers with a sink of the same name
 * each get only some of its results. Each logger tells Redis every few seconds that it serves the
 * sink, and reads which logger told so last. One thread.
 */
#ifndef EVQ_LOGGER_SINK_OWNER_H
#define EVQ_LOGGER_SINK_OWNER_H

#include <limits.h>

#include "shared/queue/queue.h"

struct evq_sink_owner {
    char id[24];               // New with each start.
    char place[PATH_MAX + 80]; // Host and directory.
    bool said;
    int64_t due_ms;   // When to tell Redis again, monotonic,
    int64_t other_ms; // and when another logger was last seen.
    char text[2 * EVQ_SINK_PLACE_BYTES_MAX +
              128]; // A sentence about the other logger; "": there is none.
};

/* directory: where its sinks write. */
void evq_sink_owner_init(struct evq_sink_owner *owner, const char *directory);
/* Tells Redis every few seconds that this logger serves the sink. *ret_changed: text changed. It is
 * also true the first time, because Redis may still have the text of an earlier logger. */
enum evq_status evq_sink_owner_say(struct evq_sink_owner *owner, struct evq_queue *queue,
                                   const char *sink, bool *ret_changed,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
