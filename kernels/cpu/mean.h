/*
 * The mean of the rows of a sequence. Any thread.
 */
#ifndef EVQ_KERNELS_CPU_MEAN_H
#define EVQ_KERNELS_CPU_MEAN_H

#include <stddef.h>
#include <stdint.h>

/* Writes the mean of the rows of in[rows, n] to each row of out. Rows are in_stride and out_stride
 * floats apart. The sums are doubles. */
void evq_mean_rows(const float *in, size_t in_stride, int32_t rows, int32_t n, float *out,
                   size_t out_stride);

#endif
