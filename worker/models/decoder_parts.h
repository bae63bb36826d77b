/*
 * Adds operations, weight slots and wanted tensors to the plan of a decoder while it is made. Lack
 * of memory sets plan->failed. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_DECODER_PARTS_H
#define EVQ_WORKER_MODELS_DECODER_PARTS_H

#include "worker/models/decoder_plan.h"

struct evq_decoder_part { // Some rows of a matrix that are a tensor of their own.
    const char *name;
    int32_t rows;
};

// Values of `layer` for a tensor of no layer: it has the prefix `inside`, or not even that.
enum { EVQ_DECODER_BESIDE = -1, EVQ_DECODER_OUTSIDE = -2 };

/* Makes a name such as "inside layers.3.part.weight". leaf: the last part ("weight"), or "". */
const char *evq_decoder_tensor_name(struct evq_decoder_plan *plan, int32_t layer, const char *part,
                                    const char *leaf);

/* Makes the plan's arrays, which grow as the functions below add to them. False: memory ran out. If
 * it runs out later, plan->failed is set and what is added is lost. */
bool evq_decoder_arrays_begin(struct evq_decoder_plan *plan);

int32_t evq_decoder_add_slot(struct evq_decoder_plan *plan, const char *name, int32_t rows,
                             int32_t columns);
void evq_decoder_want(struct evq_decoder_plan *plan, const struct evq_wanted *wanted);
void evq_decoder_add_op(struct evq_decoder_plan *plan, const struct evq_op *op);

/* Adds a slot of one row, filled by `count` vectors one after another. */
int32_t evq_decoder_add_vector(struct evq_decoder_plan *plan, int32_t layer,
                               const struct evq_decoder_part *parts, size_t count, const char *leaf,
                               enum evq_source_kind kind);
/* Adds a slot for a matrix of the rows of `count` tensors. */
int32_t evq_decoder_add_matrix(struct evq_decoder_plan *plan, int32_t layer,
                               const struct evq_decoder_part *parts, size_t count, int32_t columns);
/* Adds a norm of hidden values; in may be out. */
void evq_decoder_add_norm(struct evq_decoder_plan *plan, int32_t layer, const char *name,
                          int32_t in, int32_t out);
/* Adds a product. op: everything except its weights and shape. */
void evq_decoder_add_gemm(struct evq_decoder_plan *plan, int32_t layer,
                          const struct evq_decoder_part *parts, size_t count, int32_t columns,
                          bool bias, struct evq_op op);

#endif
