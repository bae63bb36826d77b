/*
 * Weights that are stored as small numbers and scales: reads what config.json says of them, and
 * checks that the scales fit. worker/loader/dequantise.h computes the weights. Not for sharing
 * between threads.
 */
#ifndef EVQ_WORKER_MODELS_QUANTISED_H
#define EVQ_WORKER_MODELS_QUANTISED_H

#include "worker/models/config.h"
#include "worker/models/model.h"

#define EVQ_MXFP4_BLOCK 32 // Values of a row that share a scale.

enum evq_quantised_method {
    EVQ_QUANTISED_NONE,
    EVQ_QUANTISED_FP8,  // Matrices of FP8 with a tensor "..._scale_inv": a scale for each block.
    EVQ_QUANTISED_MXFP4 // Experts in tensors "..._blocks" and "..._scales".
};

struct evq_quantised {
    enum evq_quantised_method method;
    int64_t block_rows, block_columns; // Size of an FP8 block. 0: a matrix has one scale.
};

/* Reads quantization_config. Faults are kept in config; an unknown method is one.
 * packs_experts: the family can have MXFP4 experts. */
void evq_quantised_read(struct evq_model_config *config, bool packs_experts,
                        struct evq_quantised *quantised);

/*
 * Gives the source its scales; source->tensor is set already. scale NULL: the checkpoint has none,
 * which is right for weights that are not quantised. file: where the tensor is, for messages.
 * EVQ_E_UNSUPPORTED: the types, shapes or layouts of tensor and scales are not handled.
 * EVQ_E_INVALID: the scales are missing, or MXFP4 scales do not fit.
 */
enum evq_status evq_quantised_take(const struct evq_quantised *quantised, const char *file,
                                   const struct evq_tensor *scale, struct evq_source *source,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
