/*
 * Mixtures of experts: which experts a row gets, and their feed-forward blocks. The rows of an
 * expert are gathered, so that its weights are read once for all of them. Any thread. Each row is
 * summed over its experts in ascending order, so its bits do not depend on the rows beside it.
 */
#ifndef EVQ_KERNELS_CPU_EXPERTS_H
#define EVQ_KERNELS_CPU_EXPERTS_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/weights.h"

#define EVQ_EXPERTS_ROWS 2048 // Most rows of one call.

struct evq_experts {
    const struct evq_kernels *kernels;
    const struct evq_op *op;
    const struct evq_weight *weights; // Of all slots of the plan.
    int32_t rows;
    const float *in, *routes, *residual;
    size_t in_stride, routes_stride, residual_stride;
    float *out; // It may be residual.
    size_t out_stride;
    float *scratch; // evq_experts_scratch_floats(), aligned to 64 bytes.
};

size_t evq_experts_scratch_floats(const struct evq_kernels *kernels, const struct evq_op *op);
void evq_experts_run(const struct evq_experts *run);

/* ROUTE on rows of logits. */
void evq_experts_route(const struct evq_op *op, const float *in, size_t in_stride, int32_t rows,
                       float *out, size_t out_stride);

#endif
