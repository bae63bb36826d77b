/*
 * The CUDA twins of kernels/cpu/ops.h: the same operations on device memory, in order on one
 * stream. Launchers check the launch, do not allocate and do not wait. A fault inside a kernel
 * appears at the next synchronisation. Zero rows are allowed and do nothing. Rows are fp32 here.
 */
#ifndef EVQ_KERNELS_CUDA_OPS_H
#define EVQ_KERNELS_CUDA_OPS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h" // The C headers declare C functions.
#include "kernels/cuda/rows.h"

/* EVQ_OK for cudaSuccess; EVQ_E_NOMEM if memory is short; otherwise EVQ_E_DEVICE with CUDA's
 * message. It clears the error, unless the error sticks to the process. */
enum evq_status evq_cuda_status(cudaError_t code, const char *what,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* The rows are packed. */
enum evq_status evq_bias_activate_launch(float *d_values, int32_t rows, int32_t columns,
                                         const float *d_bias, enum evq_activation activation,
                                         cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cross_entropy_launch(const struct evq_cuda_rows *logits, int32_t rows,
                                         int32_t classes, const int32_t *d_labels, int32_t top_k,
                                         struct evq_row_result *d_results, cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* d_targets is packed. */
enum evq_status evq_squared_error_launch(const struct evq_cuda_rows *outputs, int32_t rows,
                                         int32_t columns, const float *d_targets,
                                         struct evq_row_result *d_results, cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#ifdef __cplusplus
}
#endif

#endif
