/*
 * The CUDA twins of kernels/cpu/ops.h: the same operations on device memory, in order on one
 * stream. Launchers check the launch, do not allocate and do not wait; a fault inside a kernel
 * shows at the next synchronise. Zero rows do nothing.
 */
#ifndef EVQ_KERNELS_CUDA_OPS_H
#define EVQ_KERNELS_CUDA_OPS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h" // The headers of C declare C functions.

/* EVQ_OK for cudaSuccess; EVQ_E_NOMEM when the device has no room; else EVQ_E_DEVICE with what CUDA
 * says. */
enum evq_status evq_cuda_status(cudaError_t code, const char *what,
                                struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_bias_activate_launch(float *d_values, int32_t rows, int32_t columns,
                                         const float *d_bias, enum evq_activation activation,
                                         cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_scale_shift_launch(const float *d_in, int32_t rows, int32_t columns,
                                       const float *d_weight, const float *d_bias, float scale,
                                       float shift, float *d_out, cudaStream_t stream,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cross_entropy_launch(const float *d_logits, int32_t rows, int32_t classes,
                                         const int32_t *d_labels, int32_t top_k,
                                         struct evq_row_result *d_results, cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_squared_error_launch(const float *d_outputs, int32_t rows, int32_t columns,
                                         const float *d_targets, struct evq_row_result *d_results,
                                         cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#ifdef __cplusplus
}
#endif

#endif
