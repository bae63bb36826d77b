/*
 * The scoring head: computes the logits of a few rows, one tile of the vocabulary at a time.
 */
#ifndef EVQ_KERNELS_CPU_SCORE_H
#define EVQ_KERNELS_CPU_SCORE_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/weights.h"

struct evq_score {
    const struct evq_kernels *kernels;
    const float *in;
    size_t in_stride;
    int32_t rows, k;
    const struct evq_weight *weight;
    const float *bias;              // Or NULL.
    float scale, cap;               // As in struct evq_op.
    const int32_t *first;           // [rows + 1]: the index of each row's first score.
    const int32_t *targets;         // The target of every score of the batch.
    struct evq_row_result *results; // The results of the whole batch.
    float *scratch;                 // evq_score_scratch_floats(), aligned to 64 bytes.
};

size_t evq_score_scratch_floats(const struct evq_kernels *kernels, int32_t rows, int32_t k);

/* Fills in the results of these rows' scores. */
void evq_score_run(const struct evq_score *score);

#endif
