/*
 * Tables of cosines and sines for the rotary positions of a plan. They are kept while plans use the
 * same ones.
 */
#ifndef EVQ_KERNELS_CPU_ROPE_H
#define EVQ_KERNELS_CPU_ROPE_H

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"

struct evq_rope_table {
    struct evq_block block; // [positions][n]: n / 2 cosines, then n / 2 sines, multiplied by scale.
    struct evq_block frequencies;
    int32_t n, positions;
    float scale;
};

struct evq_rope {
    struct evq_rope_table *tables; // The different tables of the plan's operations.
    size_t count;
    size_t *of_op; // The table of each operation; valid only for ROPE.
};

/* EVQ_E_NOMEM. */
enum evq_status evq_rope_prepare(struct evq_rope *rope, const struct evq_plan *plan,
                                 struct evq_memory *memory, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_rope_release(struct evq_rope *rope, struct evq_memory *memory);

#endif
