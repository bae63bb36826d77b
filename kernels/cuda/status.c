#include "kernels/cuda/status.h"

enum evq_status evq_cuda_status(cudaError_t code, const char *what, struct evq_error *err)
{
    if (code == cudaSuccess) {
        return EVQ_OK;
    }
    // This clears the error, so that the next launch is not blamed for it.
    (void)cudaGetLastError();
    return evq_error_set(err, code == cudaErrorMemoryAllocation ? EVQ_E_NOMEM : EVQ_E_DEVICE,
                         "%s: %s", what, cudaGetErrorString(code));
}
