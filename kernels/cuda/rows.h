/* Rows of values on the device, which the operations read and write. */
#ifndef EVQ_KERNELS_CUDA_ROWS_H
#define EVQ_KERNELS_CUDA_ROWS_H

#include <stdbool.h>
#include <stdint.h>

/* bf16 rows, and fp32 rows beside them, begin at multiples of 8 values. */
struct evq_cuda_rows {
    void *d_data;
    int64_t stride; // Values between the starts of two rows.
    bool bf16;      // Otherwise fp32.
};

#endif
