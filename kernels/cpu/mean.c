#include "kernels/cpu/mean.h"

#define COLUMNS 64 // Columns that are summed at a time.

void evq_mean_rows(const float *in, size_t in_stride, int32_t rows, int32_t n, float *out,
                   size_t out_stride)
{
    for (int32_t first = 0; first < n; first += COLUMNS) {
        const int32_t columns = n - first < COLUMNS ? n - first : COLUMNS;
        double sums[COLUMNS] = {0};
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < columns; c++) {
                sums[c] += (double)in[(size_t)r * in_stride + (size_t)(first + c)];
            }
        }
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < columns; c++) {
                out[(size_t)r * out_stride + (size_t)(first + c)] = (float)(sums[c] / rows);
            }
        }
    }
}
