/*
 * Whether another logger serves the same sink. Two with a sink of one name each get some of its
 * results, and the files of each hold what it got. Who hears of another one since it said itself
 * that it serves the sink knows that both do; of one that has ended nothing is heard so. One
 * thread.
 */
#ifndef EVQ_LOGGER_SINK_OWNER_H
#define EVQ_LOGGER_SINK_OWNER_H

#include <limits.h>

#include "shared/queue/queue.h"

struct evq_sink_owner {
    char id[24];               // New with each start.
    char place[PATH_MAX + 80]; // Host and directory.
    bool said;
    int64_t due_ms;                                // When it is said again, monotonic,
    int64_t other_ms;                              // and when another one was heard of last.
    char text[2 * EVQ_SINK_PLACE_BYTES_MAX + 128]; // That there is another one; "": there is none.
};

/* directory: where its sinks write. */
void evq_sink_owner_init(struct evq_sink_owner *served, const char *directory);
/* Every few seconds says that this one serves the sink. *ret_changed: text is another now; the
 * first time too, since the text of one that has ended may still be told. */
enum evq_status evq_sink_owner_say(struct evq_sink_owner *served, struct evq_queue *queue,
                                   const char *sink, bool *ret_changed,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
