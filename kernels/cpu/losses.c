#include "kernels/cpu/losses.h"

#include <math.h>
#include <stddef.h>

static void row_cross_entropy(const float *row, int32_t classes, int32_t label, int32_t top_k,
                              struct evq_row_result *result)
{
    int32_t best = 0;
    int32_t above = 0; // Number of logits that rank before the label's.
    bool broken = false;

    for (int32_t c = 0; c < classes; c++) {
        broken = broken || isnan(row[c]);
        best = row[c] > row[best] ? c : best;
        above += row[c] > row[label] || (row[c] == row[label] && c < label);
    }
    *result = (struct evq_row_result){.loss = NAN, .predicted = -1};
    if (broken) {
        return;
    }
    const double top = (double)row[best];
    double sum = 0.0;
    for (int32_t c = 0; c < classes; c++) {
        sum += exp((double)row[c] - top);
    }
    result->loss = log(sum) - ((double)row[label] - top);
    result->predicted = best;
    result->correct = best == label;
    result->in_top_k = above < top_k;
}

void evq_losses_cross_entropy(const float *logits, size_t stride, int32_t rows, int32_t classes,
                              const int32_t *labels, int32_t top_k, struct evq_row_result *results)
{
    for (int32_t r = 0; r < rows; r++) {
        row_cross_entropy(logits + (size_t)r * stride, classes, labels[r], top_k, &results[r]);
    }
}

void evq_losses_squared_error(const float *outputs, size_t stride, int32_t rows, int32_t columns,
                              const float *targets, struct evq_row_result *results)
{
    for (int32_t r = 0; r < rows; r++) {
        double squared = 0.0;
        double absolute = 0.0;
        for (int32_t c = 0; c < columns; c++) {
            const double difference = (double)outputs[(size_t)r * stride + (size_t)c] -
                                      (double)targets[(size_t)r * (size_t)columns + (size_t)c];
            squared += difference * difference;
            absolute += fabs(difference);
        }
        results[r] =
            (struct evq_row_result){.loss = squared, .abs_loss = absolute, .predicted = -1};
    }
}
