/*
 * How a plan is run. Attention joins rows; between two attentions every row goes its own way, so
 * those operations form a segment that takes a chunk of rows through all of them while its values
 * are in the cache. Only buffers that outlive a segment are kept for all rows of a batch. After the
 * last attention only the rows that are scored go on.
 */
#ifndef EVQ_KERNELS_CPU_SCHEDULE_H
#define EVQ_KERNELS_CPU_SCHEDULE_H

#include <stdbool.h>

#include "kernels/backend.h"

#define EVQ_SCHEDULE_CHUNK 256 // Rows of a chunk, at most.

struct evq_segment {
    size_t first, end; // Operations.
    bool attention;    // Exactly one, an attention.
    bool scores;       // Ends with the scoring head: runs on the scored rows.
};

struct evq_buffer {
    bool shared;      // Kept for all rows; else for a chunk of each thread.
    size_t stride;    // Floats from row to row.
    size_t at;        // Offset of its chunk in a thread's part.
    size_t shared_at; // Offset in what is kept for all rows.
};

struct evq_schedule {
    struct evq_segment *segments;
    size_t segment_count;
    struct evq_buffer *buffers;
    size_t thread_floats; // Chunks of all buffers.
    size_t shared_floats;
};

/* The plan passed evq_plan_check(). EVQ_E_NOMEM. Replaces what is there. */
enum evq_status evq_schedule_make(struct evq_schedule *schedule, const struct evq_plan *plan,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
void evq_schedule_release(struct evq_schedule *schedule);

#endif
