/*
 * Tables of cosines and sines for the rotary positions of a plan. They are kept while plans use the
 * same ones.
 */
#ifndef EVQ_KERNELS_CPU_ROPE_H
#define EVQ_KERNELS_CPU_ROPE_H

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"

struct evq_rope_table {
    // Lines of n / 2 cosines, then n / 2 sines, multiplied by scale: one for each position. With
    // far frequencies, the first `near` lines are for short sequences, and the others for long.
    struct evq_block block;
    struct evq_block frequencies; // The near ones, then the far ones.
    int32_t n, lines, near;
    float scale;
};

struct evq_rope {
    struct evq_rope_table *tables; // The different tables of the plan's operations.
    size_t count;
    size_t *of_op; // The table of each operation; valid only for ROPE.
};

/* The line of the operation's table for a position in a sequence of so many tokens. */
int32_t evq_rope_line(const struct evq_op *op, int32_t position, int32_t length);

/* EVQ_E_NOMEM. */
enum evq_status evq_rope_prepare(struct evq_rope *rope, const struct evq_plan *plan,
                                 struct evq_memory *memory, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_rope_release(struct evq_rope *rope, struct evq_memory *memory);

#endif
