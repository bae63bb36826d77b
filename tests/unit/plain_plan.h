/*
 * A plan evaluated by plain loops in double: what the backends are held against. Follows the
 * definitions of kernels/backend.h line by line, and nothing else.
 */
#ifndef EVQ_TESTS_UNIT_PLAIN_PLAN_H
#define EVQ_TESTS_UNIT_PLAIN_PLAN_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

struct plain {
    const struct evq_plan *plan;
    const struct evq_batch *batch;
    float *const *weights; // One per slot, [rows, columns].
    double **buffers;      // [rows][columns of the buffer].
    struct evq_row_result *results;
};

static double plain_activate(double x, enum evq_activation activation)
{
    switch (activation) {
    case EVQ_ACT_RELU:
        return x < 0.0 ? 0.0 : x;
    case EVQ_ACT_RELU2:
        return x < 0.0 ? 0.0 : x * x;
    case EVQ_ACT_TANH:
        return tanh(x);
    case EVQ_ACT_GELU_ERF:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    case EVQ_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case EVQ_ACT_SILU:
        return x / (1.0 + exp(-x));
    case EVQ_ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case EVQ_ACT_GELU_QUICK:
        return x / (1.0 + exp(-1.702 * x));
    default:
        return x;
    }
}

static double *plain_row(const struct plain *plain, int32_t buffer, int32_t row)
{
    return plain->buffers[buffer] + (size_t)row * (size_t)plain->plan->buffer_columns[buffer];
}

static double plain_weight(const struct plain *plain, int32_t slot, int32_t row, int32_t column,
                           double none)
{
    return slot < 0
               ? none
               : (double)
                     plain->weights[slot][(size_t)row * (size_t)plain->plan->slots[slot].columns +
                                          (size_t)column];
}

static int32_t plain_sequence(const struct evq_batch *batch, int32_t row)
{
    int32_t s = 0;
    while (s + 1 < batch->sequences && batch->starts[s + 1] <= row) {
        s++;
    }
    return s;
}

static double plain_product(const struct plain *plain, const struct evq_op *op, const double *in,
                            int32_t column)
{
    double sum = plain_weight(plain, op->bias, 0, column, 0.0);
    for (int32_t p = 0; p < op->k; p++) {
        sum += in[p] * plain_weight(plain, op->weight, column, p, 0.0);
    }
    return sum;
}

/* One head of a range; its weights begin at the column `first`. */
static void plain_norm(const struct plain *plain, const struct evq_op *op, const double *in,
                       double *out, int32_t first)
{
    const int32_t n = op->n;
    const bool centred = op->kind == EVQ_OP_LAYER_NORM;
    double mean = 0.0;
    double squares = 0.0;
    for (int32_t c = 0; c < n && centred; c++) {
        mean += in[c] / n;
    }
    for (int32_t c = 0; c < n; c++) {
        squares += (in[c] - mean) * (in[c] - mean) / n;
    }
    const double scale = 1.0 / sqrt(squares + (double)op->epsilon);
    for (int32_t c = 0; c < n; c++) {
        out[c] = (in[c] - mean) * scale * plain_weight(plain, op->weight, 0, first + c, 1.0) +
                 (centred ? plain_weight(plain, op->bias, 0, c, 0.0) : 0.0);
    }
}

static void plain_rope(const struct evq_op *op, double *row, int32_t position, int32_t length)
{
    const bool far = op->far_frequencies != NULL && length > op->near;
    const float *frequencies = far ? op->far_frequencies : op->frequencies;
    const int32_t half = (op->k != 0 ? op->k : op->n) / 2;
    for (int32_t h = 0; h < op->heads; h++) {
        double *head = row + op->column + (size_t)h * (size_t)(op->step != 0 ? op->step : op->n);
        for (int32_t i = 0; i < half; i++) {
            double *x = op->neighbours ? head + (size_t)2 * (size_t)i : head + i;
            double *y = op->neighbours ? x + 1 : x + half;
            const double angle = (double)((float)position * frequencies[i]);
            const double a = *x;
            const double b = *y;
            *x = (a * cos(angle) - b * sin(angle)) * (double)op->scale;
            *y = (b * cos(angle) + a * sin(angle)) * (double)op->scale;
        }
    }
}

static double plain_cap(double x, float cap)
{
    return cap > 0.0f ? (double)cap * tanh(x / (double)cap) : x;
}

static void plain_attention(const struct plain *plain, const struct evq_op *op, int32_t row)
{
    const int32_t sequence = plain_sequence(plain->batch, row);
    const int32_t start = plain->batch->starts[sequence];
    const int32_t end = plain->batch->starts[sequence + 1];
    const int32_t low =
        op->window > 0 && row - op->window + 1 > start ? row - op->window + 1 : start;
    const int32_t ahead = op->window > 0 && op->window < end - row ? row + op->window - 1 : end - 1;
    const int32_t high = op->both ? ahead : row;
    double *weights = calloc((size_t)(high + 1), sizeof(*weights));

    for (int32_t h = 0; h < op->heads; h++) {
        const size_t n = (size_t)op->n;
        const bool mixed = op->step > op->n;
        const size_t query = (size_t)h * (mixed ? 3 * n : n);
        const size_t key =
            mixed ? query + n : (size_t)(op->heads + h / (op->heads / op->kv_heads)) * n;
        const size_t value = key + (mixed ? n : (size_t)op->kv_heads * n);
        const double *q = plain_row(plain, op->in, row) + query;
        double *out = plain_row(plain, op->out, row) + (size_t)h * (size_t)op->n;
        const double sink = plain_weight(plain, op->weight, 0, h, -INFINITY);
        double top = sink;
        double sum = 0.0;
        for (int32_t j = low; j <= high; j++) {
            weights[j] = 0.0;
            for (int32_t d = 0; d < op->n; d++) {
                weights[j] +=
                    (double)op->scale * q[d] * plain_row(plain, op->in, j)[key + (size_t)d];
            }
            weights[j] = plain_cap(weights[j], op->cap);
            top = fmax(top, weights[j]);
        }
        sum = exp(sink - top);
        for (int32_t j = low; j <= high; j++) {
            weights[j] = exp(weights[j] - top);
            sum += weights[j];
        }
        for (int32_t d = 0; d < op->n; d++) {
            out[d] = 0.0;
            for (int32_t j = low; j <= high; j++) {
                out[d] += weights[j] / sum * plain_row(plain, op->in, j)[value + (size_t)d];
            }
        }
    }
    free(weights);
}

static void plain_mean(const struct plain *plain, const struct evq_op *op, int32_t row)
{
    const int32_t sequence = plain_sequence(plain->batch, row);
    const int32_t start = plain->batch->starts[sequence];
    const int32_t end = plain->batch->starts[sequence + 1];

    for (int32_t c = 0; c < op->n; c++) {
        double sum = 0.0;
        for (int32_t r = start; r < end; r++) {
            sum += plain_row(plain, op->in, r)[c];
        }
        plain_row(plain, op->out, row)[c] = sum / (end - start);
    }
}

static void plain_score(const struct plain *plain, const struct evq_op *op)
{
    double *logits = calloc((size_t)op->n, sizeof(*logits));

    for (int32_t s = 0; s < plain->batch->scores; s++) {
        const double *in = plain_row(plain, op->in, plain->batch->score_rows[s]);
        double sum = 0.0;
        int32_t best = 0;
        for (int32_t c = 0; c < op->n; c++) {
            logits[c] = plain_product(plain, op, in, c);
            logits[c] *= op->scale != 0.0f ? (double)op->scale : 1.0;
            logits[c] = plain_cap(logits[c], op->cap);
            best = logits[c] > logits[best] ? c : best;
        }
        for (int32_t c = 0; c < op->n; c++) {
            sum += exp(logits[c] - logits[best]);
        }
        const int32_t target = plain->batch->score_targets[s];
        plain->results[s] =
            (struct evq_row_result){.loss = log(sum) + logits[best] - logits[target],
                                    .predicted = best,
                                    .correct = best == target};
    }
    free(logits);
}

/* Whether fewer than top_k logits are larger, or equal and before it. */
static bool plain_is_routed(const struct evq_op *op, const double *in, int32_t expert)
{
    int32_t ahead = 0;

    for (int32_t e = 0; e < op->n; e++) {
        ahead += in[e] > in[expert] || (in[e] == in[expert] && e < expert);
    }
    return ahead < op->top_k;
}

/* in may be out. */
static void plain_route(const struct evq_op *op, const double *in, double *out)
{
    double *weights = calloc((size_t)op->n, sizeof(*weights));
    double sum = 0.0;

    for (int32_t e = 0; e < op->n; e++) {
        const bool routed = plain_is_routed(op, in, e);
        sum += routed || op->whole ? exp(in[e]) : 0.0;
        weights[e] = routed ? exp(in[e]) : 0.0;
    }
    for (int32_t e = 0; e < op->n; e++) {
        out[e] = weights[e] / sum;
    }
    free(weights);
}

static void plain_experts(const struct plain *plain, const struct evq_op *op, int32_t row)
{
    const double *in = plain_row(plain, op->in, row);
    const double *routes = plain_row(plain, op->routes, row);
    double *out = plain_row(plain, op->out, row);
    double *gated = calloc((size_t)op->inner, sizeof(*gated));

    for (int32_t c = 0; c < op->n; c++) {
        out[c] = plain_row(plain, op->residual, row)[c];
    }
    for (int32_t e = 0; e < op->experts; e++) {
        const struct evq_op up = {.weight = op->weight + e, .bias = -1, .k = op->k};
        const struct evq_op down = {.weight = op->down + e, .bias = -1, .k = op->inner};
        for (int32_t c = 0; c < op->inner; c++) {
            const int32_t first = op->neighbours ? 2 * c : c;
            const int32_t second = op->neighbours ? 2 * c + 1 : op->inner + c;
            const double a =
                plain_product(plain, &up, in, first) + plain_weight(plain, op->bias, e, first, 0.0);
            const double b = plain_product(plain, &up, in, second) +
                             plain_weight(plain, op->bias, e, second, 0.0);
            const double gate = fmin(a, (double)op->cap);
            const double bounded = fmax(fmin(b, (double)op->cap), -(double)op->cap);
            gated[c] = op->neighbours
                           ? (bounded + 1.0) * gate / (1.0 + exp(-(double)op->scale * gate))
                           : plain_activate(a, op->activation) * b;
        }
        for (int32_t c = 0; c < op->n; c++) {
            out[c] += routes[e] * (plain_product(plain, &down, gated, c) +
                                   plain_weight(plain, op->down_bias, e, c, 0.0));
        }
    }
    free(gated);
}

static void plain_op_row(const struct plain *plain, const struct evq_op *op, int32_t row)
{
    const struct evq_batch *batch = plain->batch;
    const int32_t sequence = batch->starts != NULL ? plain_sequence(batch, row) : 0;
    const int32_t position = batch->starts != NULL ? row - batch->starts[sequence] : 0;
    const int32_t length =
        batch->starts != NULL ? batch->starts[sequence + 1] - batch->starts[sequence] : 1;
    double *in = plain_row(plain, op->in, row);
    double *out = op->out >= 0 ? plain_row(plain, op->out, row) : NULL;

    switch (op->kind) {
    case EVQ_OP_GEMM:
        for (int32_t c = 0; c < op->n; c++) {
            out[c] = plain_activate(plain_product(plain, op, in, c), op->activation) +
                     (op->residual != 0 ? plain_row(plain, op->residual, row)[c] : 0.0);
        }
        break;
    case EVQ_OP_EMBEDDING:
        for (int32_t c = 0; c < op->n; c++) {
            out[c] =
                (double)op->scale * plain_weight(plain, op->weight, batch->tokens[row], c, 0.0) +
                plain_weight(plain, op->bias, position + op->column, c, 0.0) +
                plain_weight(plain, op->types != 0 ? op->types : -1,
                             batch->types != NULL ? batch->types[row] : 0, c, 0.0);
        }
        break;
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        for (int32_t h = 0; h < op->heads; h++) {
            const size_t at = (size_t)op->column + (size_t)h * (size_t)op->n;
            const bool own = plain->plan->slots[op->weight].columns > op->n;
            plain_norm(plain, op, in + at, out + at, own ? h * op->n : 0);
        }
        break;
    case EVQ_OP_ROPE:
        plain_rope(op, in, position, length);
        break;
    case EVQ_OP_ROUTE:
        plain_route(op, in, out);
        break;
    case EVQ_OP_EXPERTS:
        plain_experts(plain, op, row);
        break;
    case EVQ_OP_ADD:
        for (int32_t c = 0; c < op->n; c++) {
            out[c] = (double)op->scale * in[c] + plain_row(plain, op->residual, row)[c];
        }
        break;
    case EVQ_OP_ATTENTION:
        plain_attention(plain, op, row);
        break;
    case EVQ_OP_MEAN:
        plain_mean(plain, op, row);
        break;
    case EVQ_OP_GATE:
        for (int32_t c = 0; c < op->n; c++) {
            out[c] = plain_activate(in[c], op->activation) * in[op->n + c];
        }
        break;
    default:
        break;
    }
}

/* Runs all but loss heads other than SCORE; ret_results may be NULL without one. Returns the
 * buffers, [buffer_count], freed with plain_free(). */
static inline double **plain_run(const struct evq_plan *plan, const struct evq_batch *batch,
                                 float *const *weights, struct evq_row_result *ret_results)
{
    struct plain plain = {plan, batch, weights,
                          calloc((size_t)plan->buffer_count, sizeof(double *)), ret_results};

    for (int32_t i = 0; i < plan->buffer_count; i++) {
        plain.buffers[i] =
            calloc((size_t)batch->rows * (size_t)plan->buffer_columns[i] + 1, sizeof(double));
    }
    for (size_t i = 0;
         i < (size_t)batch->rows * (size_t)plan->buffer_columns[0] && batch->inputs != NULL; i++) {
        plain.buffers[0][i] = (double)batch->inputs[i];
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        for (int32_t r = 0; r < batch->rows; r++) {
            plain_op_row(&plain, &plan->ops[i], r);
        }
        if (plan->ops[i].kind == EVQ_OP_SCORE) {
            plain_score(&plain, &plan->ops[i]);
        }
    }
    return plain.buffers;
}

static inline void plain_free(double **buffers, int32_t buffer_count)
{
    for (int32_t i = 0; i < buffer_count; i++) {
        free(buffers[i]);
    }
    free(buffers);
}

#endif
