/*
 * The state of an opened CPU backend. One thread, except for what run.c does with the pool.
 */
#ifndef EVQ_KERNELS_CPU_STATE_H
#define EVQ_KERNELS_CPU_STATE_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/tokens.h"
#include "kernels/cpu/weights.h"

struct evq_cpu_state {
    struct evq_pool *pool;
    enum evq_isa isa;
    const struct evq_kernels *kernels;
    struct evq_memory memory;
    const struct evq_plan *plan; // NULL: not prepared.
    struct evq_weights weights;
    struct evq_schedule schedule;
    struct evq_tokens tokens;
    struct evq_rope rope;
    struct evq_block shared; // Buffers that are kept for all rows.
    struct evq_block
        threads; // For each thread: a chunk of every buffer, then the scratch of the kernels.
    size_t thread_floats;
    struct evq_backend_stats stats;
};

#endif
