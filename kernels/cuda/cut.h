/*
 * Cuts a plan into parts for several devices, which run one after another.
 */
#ifndef EVQ_KERNELS_CUDA_CUT_H
#define EVQ_KERNELS_CUDA_CUT_H

#include "kernels/backend.h"

struct evq_cuda_part {
    size_t first, end; // The operations [first, end); none if they are equal.
    int32_t taken;     // The buffer that the part before leaves for this one; -1: none.
};

/* Fills parts[count] in order, so that the largest part has as few values of weights as possible. A
 * plan is cut only where one buffer carries everything that later operations read (buffer 0
 * comes from the batch), and not before an operation in place, which a device may combine with the
 * one before it. If there are fewer such places, the last parts are empty. plan was checked. */
enum evq_status evq_cuda_cut(const struct evq_plan *plan, size_t count, struct evq_cuda_part *parts,
                             struct evq_error *err) EVQ_CHECK_RESULT;

#define EVQ_CUDA_OP_SLOTS 3

/* The slots that an operation reads; -1: none. */
void evq_cuda_op_slots(const struct evq_op *op, int32_t slots[EVQ_CUDA_OP_SLOTS]);

#endif
