/* Merges a LoRA adapter into a weight: W + scaling * B A, like PEFT's merge_and_unload(). Any
 * thread. */
#ifndef EVQ_SHARED_CHECKPOINT_ADAPTER_ADAPTER_MERGE_H
#define EVQ_SHARED_CHECKPOINT_ADAPTER_ADAPTER_MERGE_H

#include "shared/checkpoint/checkpoint_builder.h"

struct evq_merge {
    struct evq_tensor base; // The weight without the adapter; it has two dimensions.
    struct evq_tensor a;    // [rank, in]
    struct evq_tensor b;    // [out, rank]
    double scaling;
    bool transposed; // The weight is [in, out], else [out, in].
};

/* Whether values of this type can be merged: F32, F16, BF16, F64. */
bool evq_merge_takes(enum evq_dtype dtype);

/* Reads the merged weight in C order. The product is computed and added in float32, as PEFT holds
 * adapters; the sum is rounded to the weight's type. */
enum evq_status evq_merge_read_f32(const struct evq_checkpoint *checkpoint,
                                   const struct evq_merge *merge, float *out, size_t elements,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* The same in the weight's own type. */
enum evq_status evq_merge_read_raw(const struct evq_checkpoint *checkpoint,
                                   const struct evq_merge *merge, void *out, size_t elements,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
