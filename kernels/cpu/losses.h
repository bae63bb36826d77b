/*
 * Losses: plain loops over rows that are `stride` floats apart. Any thread.
 * The launchers in kernels/cuda/launchers.h give the same numbers.
 */
#ifndef EVQ_KERNELS_CPU_LOSSES_H
#define EVQ_KERNELS_CPU_LOSSES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

/*
 * Cross-entropy in nats, the first maximum, and whether the label is among the top_k largest logits
 * (of equal ones, the lower index counts first). Labels must be in range. A row with a NaN has a
 * NaN loss, predicted -1, and is not correct.
 */
void evq_losses_cross_entropy(const float *logits, size_t stride, int32_t rows, int32_t classes,
                              const int32_t *labels, int32_t top_k, struct evq_row_result *results);

/* Sums of squared and absolute errors of each row. The targets are packed. */
void evq_losses_squared_error(const float *outputs, size_t stride, int32_t rows, int32_t columns,
                              const float *targets, struct evq_row_result *results);

#endif
