/*
 * How a plan is run. Attention and means combine rows, and experts read their weights once for many
 * rows, so they run alone. Between them every row is independent, so those operations form a
 * segment that takes a chunk of rows through all of them while its values are in the cache. Only
 * buffers that are needed after a segment are kept for all rows of a batch. After the last of
 * these, only scored rows continue.
 */
#ifndef EVQ_KERNELS_CPU_SCHEDULE_H
#define EVQ_KERNELS_CPU_SCHEDULE_H

#include <stdbool.h>

#include "kernels/backend.h"

#define EVQ_SCHEDULE_CHUNK 256 // Most rows of a chunk.

struct evq_segment {
    size_t first, end; // Operations.
    bool alone;        // The segment is exactly one attention, mean or experts.
    bool scores;       // The segment ends with the head and runs on the scored rows.
};

struct evq_schedule_buffer {
    bool shared;      // The buffer is kept for all rows; otherwise each thread has a chunk of it.
    size_t stride;    // Floats between rows.
    size_t at;        // Offset of its chunk in a thread's part.
    size_t shared_at; // Offset in the memory for all rows.
};

struct evq_schedule {
    struct evq_segment *segments;
    size_t segment_count;
    struct evq_schedule_buffer *buffers;
    size_t thread_floats; // Floats of the chunks of all buffers.
    size_t shared_floats;
};

/* The plan must have passed evq_plan_check(). EVQ_E_NOMEM. Replaces the previous schedule. */
enum evq_status evq_schedule_make(struct evq_schedule *schedule, const struct evq_plan *plan,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
void evq_schedule_release(struct evq_schedule *schedule);

#endif
