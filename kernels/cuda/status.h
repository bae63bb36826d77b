/* Turns the errors of the CUDA runtime into statuses. Any thread. */
#ifndef EVQ_KERNELS_CUDA_STATUS_H
#define EVQ_KERNELS_CUDA_STATUS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "shared/base/error.h" // A C header declares C functions.

/* EVQ_OK for cudaSuccess; EVQ_E_NOMEM if memory is short; otherwise EVQ_E_DEVICE with CUDA's
 * message. It clears the error, unless the error sticks to the process. */
enum evq_status evq_cuda_status(cudaError_t code, const char *what,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#ifdef __cplusplus
}
#endif

#endif
