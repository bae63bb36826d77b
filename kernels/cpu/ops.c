#include "kernels/cpu/ops.h"

#include <math.h>
#include <stddef.h>

static float activate(float x, enum evq_activation activation)
{
    switch (activation) {
    case EVQ_ACT_RELU:
        return x < 0.0f ? 0.0f : x; // Written so that a NaN passes.
    case EVQ_ACT_TANH:
        return tanhf(x);
    case EVQ_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case EVQ_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case EVQ_ACT_SILU:
        return x / (1.0f + expf(-x));
    case EVQ_ACT_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case EVQ_ACT_GELU_QUICK:
        return x / (1.0f + expf(-1.702f * x));
    case EVQ_ACT_NONE:
    case EVQ_ACT_COUNT:
        break;
    }
    return x;
}

static void row_relu(float *row, int32_t columns)
{
    for (int32_t c = 0; c < columns; c++) {
        row[c] = row[c] < 0.0f ? 0.0f : row[c];
    }
}

void evq_ops_bias_activate(float *values, int32_t rows, int32_t columns, const float *bias,
                           enum evq_activation activation)
{
    for (int32_t r = 0; r < rows; r++) {
        float *row = values + (size_t)r * (size_t)columns;
        for (int32_t c = 0; c < columns && bias != NULL; c++) {
            row[c] += bias[c];
        }
        if (activation == EVQ_ACT_RELU) {
            row_relu(row, columns); // Apart from the rest, so that it is vectorised.
        } else if (activation != EVQ_ACT_NONE) {
            for (int32_t c = 0; c < columns; c++) {
                row[c] = activate(row[c], activation);
            }
        }
    }
}

void evq_ops_scale_shift(const float *in, int32_t rows, int32_t columns, const float *weight,
                         const float *bias, float scale, float shift, float *out)
{
    for (int32_t r = 0; r < rows; r++) {
        const float *from = in + (size_t)r * (size_t)columns;
        float *to = out + (size_t)r * (size_t)columns;
        for (int32_t c = 0; c < columns; c++) {
            to[c] =
                from[c] * (weight != NULL ? weight[c] : scale) + (bias != NULL ? bias[c] : shift);
        }
    }
}

static void row_cross_entropy(const float *row, int32_t classes, int32_t label, int32_t top_k,
                              struct evq_row_result *result)
{
    int32_t best = 0;
    int32_t above = 0; // Logits that come before the label's.
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

void evq_ops_cross_entropy(const float *logits, int32_t rows, int32_t classes,
                           const int32_t *labels, int32_t top_k, struct evq_row_result *results)
{
    for (int32_t r = 0; r < rows; r++) {
        row_cross_entropy(logits + (size_t)r * (size_t)classes, classes, labels[r], top_k,
                          &results[r]);
    }
}

void evq_ops_squared_error(const float *outputs, int32_t rows, int32_t columns,
                           const float *targets, struct evq_row_result *results)
{
    for (int32_t r = 0; r < rows; r++) {
        double squared = 0.0;
        double absolute = 0.0;
        for (int32_t c = 0; c < columns; c++) {
            const size_t at = (size_t)r * (size_t)columns + (size_t)c;
            const double difference = (double)outputs[at] - (double)targets[at];
            squared += difference * difference;
            absolute += fabs(difference);
        }
        results[r] =
            (struct evq_row_result){.loss = squared, .abs_loss = absolute, .predicted = -1};
    }
}
