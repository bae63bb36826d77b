/*
 * Runs a batch through the prepared plan on all threads of the pool.
 */
#ifndef EVQ_KERNELS_CPU_RUN_H
#define EVQ_KERNELS_CPU_RUN_H

#include "kernels/cpu/state.h"

/* Floats of scratch that one thread needs besides its chunks of buffers. */
size_t evq_run_scratch_floats(const struct evq_kernels *kernels, const struct evq_plan *plan);

/* The plan must be prepared, its weights put, and the batch checked and read into state->tokens. */
void evq_run(struct evq_cpu_state *state, const struct evq_batch *batch,
             struct evq_row_result *results);

#endif
