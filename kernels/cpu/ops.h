/*
 * Losses, and scaling by column: plain loops on rows `stride` floats apart. Any thread. The CUDA
 * twins in kernels/cuda/ops.h give the same numbers.
 */
#ifndef EVQ_KERNELS_CPU_OPS_H
#define EVQ_KERNELS_CPU_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

/* out[r, c] = in[r, c] * weight[c] + bias[c]; weight and bias NULL: in * scale + shift. out may be
 * in. */
void evq_ops_scale_shift(const float *in, size_t in_stride, int32_t rows, int32_t columns,
                         const float *weight, const float *bias, float scale, float shift,
                         float *out, size_t out_stride);

/*
 * Cross-entropy in nats, first maximum, and whether the label is among the top_k largest (ties: the
 * lower index first). Labels are in range. A row with a NaN has a NaN loss, predicted -1, and is
 * not correct.
 */
void evq_ops_cross_entropy(const float *logits, size_t stride, int32_t rows, int32_t classes,
                           const int32_t *labels, int32_t top_k, struct evq_row_result *results);

/* Sums of squared and absolute errors of each row; targets lie one after another. */
void evq_ops_squared_error(const float *outputs, size_t stride, int32_t rows, int32_t columns,
                           const float *targets, struct evq_row_result *results);

#endif
