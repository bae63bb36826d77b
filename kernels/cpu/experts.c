#include "kernels/cpu/experts.h"

#include <math.h>
#include <string.h>

#define BLOCK 256 // Rows of a product.

/* Floats of one row in the scratch. */
static size_t stride_of(int32_t columns)
{
    return (((size_t)columns + EVQ_KERNELS_PAD + 15) / 16 | 1) * 16;
}

struct parts {                           // Parts of the scratch.
    float *rows, *wide, *gated, *result; // [BLOCK], of k, 2 * inner, inner and n columns.
    float *rounded;                      // The input of a product, rounded.
    float *sums;                         // The scratch of a product.
    int32_t *mine;                       // [EVQ_EXPERTS_ROWS]: the rows of an expert.
};

static size_t widest_rounded(const struct evq_op *op)
{
    return evq_kernels_rounded_stride(op->k > op->inner ? op->k : op->inner);
}

size_t evq_experts_scratch_floats(const struct evq_kernels *kernels, const struct evq_op *op)
{
    return (stride_of(op->k) + stride_of(2 * op->inner) + stride_of(op->inner) + stride_of(op->n) +
            widest_rounded(op)) *
               BLOCK +
           kernels->gemm_scratch_floats(BLOCK) + EVQ_EXPERTS_ROWS;
}

static struct parts place(const struct evq_experts *run)
{
    const struct evq_op *op = run->op;
    struct parts parts;

    parts.rows = run->scratch;
    parts.wide = parts.rows + stride_of(op->k) * BLOCK;
    parts.gated = parts.wide + stride_of(2 * op->inner) * BLOCK;
    parts.result = parts.gated + stride_of(op->inner) * BLOCK;
    parts.rounded = parts.result + stride_of(op->n) * BLOCK;
    parts.sums = parts.rounded + widest_rounded(op) * BLOCK;
    parts.mine = (void *)(parts.sums + run->kernels->gemm_scratch_floats(BLOCK));
    return parts;
}

/* The product of the rows with the matrix of a slot. bias: a slot with a row for each expert, or
 * -1.
 */
static void multiply(const struct evq_experts *run, const struct parts *parts, int32_t slot,
                     int32_t bias, int32_t expert, const float *in, int32_t rows, float *out)
{
    const float *biases = bias >= 0 ? run->weights[bias].block.data : NULL;
    const struct evq_weight *weight = &run->weights[slot];
    struct evq_gemm gemm = {.rows = rows,
                            .n = weight->rows,
                            .k = weight->columns,
                            .pairs = weight->form == EVQ_WEIGHT_PANELS_BF16,
                            .in = in,
                            .in_stride = stride_of(weight->columns),
                            .panels = weight->block.data,
                            .bias = biases != NULL ? biases + (size_t)expert * (size_t)weight->rows
                                                   : NULL,
                            .out = out,
                            .out_stride = stride_of(weight->rows),
                            .scratch = parts->sums};

    if (gemm.pairs) {
        const size_t stride = evq_kernels_rounded_stride(gemm.k);
        run->kernels->round(in, gemm.in_stride, rows, gemm.k, parts->rounded, stride);
        gemm.in = parts->rounded;
        gemm.in_stride = stride;
    }
    run->kernels->gemm(&gemm);
}

/* Adds what one expert gives for `count` rows. */
static void run_block(const struct evq_experts *run, const struct parts *parts, int32_t expert,
                      const int32_t *mine, int32_t count)
{
    const struct evq_op *op = run->op;

    for (int32_t i = 0; i < count; i++) {
        memcpy(parts->rows + (size_t)i * stride_of(op->k),
               run->in + (size_t)mine[i] * run->in_stride, (size_t)op->k * sizeof(float));
    }
    multiply(run, parts, op->weight + expert, op->bias, expert, parts->rows, count, parts->wide);
    if (op->neighbours) {
        run->kernels->gate_pairs(parts->wide, stride_of(2 * op->inner), count, op->inner, op->scale,
                                 op->cap, parts->gated, stride_of(op->inner));
    } else {
        run->kernels->gate(parts->wide, stride_of(2 * op->inner), count, op->inner, op->activation,
                           parts->gated, stride_of(op->inner));
    }
    multiply(run, parts, op->down + expert, op->down_bias, expert, parts->gated, count,
             parts->result);
    for (int32_t i = 0; i < count; i++) {
        const size_t row = (size_t)mine[i];
        const float route = run->routes[row * run->routes_stride + (size_t)expert];
        float *out = run->out + row * run->out_stride;
        run->kernels->add(parts->result + (size_t)i * stride_of(op->n), 0, 1, op->n, route, out, 0,
                          out, 0);
    }
}

void evq_experts_run(const struct evq_experts *run)
{
    const struct evq_op *op = run->op;
    const struct parts parts = place(run);

    for (int32_t r = 0; r < run->rows && run->out != run->residual; r++) {
        memcpy(run->out + (size_t)r * run->out_stride,
               run->residual + (size_t)r * run->residual_stride, (size_t)op->n * sizeof(float));
    }
    for (int32_t expert = 0; expert < op->experts; expert++) {
        int32_t count = 0;
        for (int32_t r = 0; r < run->rows; r++) {
            // A NaN is not 0, so it reaches the result.
            if (run->routes[(size_t)r * run->routes_stride + (size_t)expert] != 0.0f) {
                parts.mine[count++] = r;
            }
        }
        for (int32_t first = 0; first < count; first += BLOCK) {
            run_block(run, &parts, expert, parts.mine + first,
                      count - first < BLOCK ? count - first : BLOCK);
        }
    }
}

/* The sum of exp(logit - top) of all logits. */
static double sum_of(const float *logits, int32_t n, float top)
{
    double sum = 0.0;

    for (int32_t e = 0; e < n; e++) {
        sum += exp((double)logits[e] - (double)top);
    }
    return sum;
}

/* The largest logit whose weight is not set yet; unset weights are below 0. */
static int32_t next_of(const float *logits, const float *weights, int32_t n)
{
    int32_t best = -1;

    for (int32_t e = 0; e < n; e++) {
        if (weights[e] < 0.0f && (best < 0 || logits[e] > logits[best])) {
            best = e;
        }
    }
    return best;
}

static void route_row(const struct evq_op *op, const float *logits, float *weights)
{
    double sum = 0.0;
    float top = logits[0];

    for (int32_t e = 0; e < op->n; e++) {
        top = logits[e] > top ? logits[e] : top;
        weights[e] = -1.0f;
    }
    const double all = sum_of(logits, op->n, top);
    for (int32_t i = 0; i < op->top_k; i++) {
        const int32_t best = next_of(logits, weights, op->n);
        const double share = exp((double)logits[best] - (double)top);
        weights[best] = (float)share;
        sum += share;
    }
    sum = op->whole || isnan(all) ? all : sum; // A NaN among the logits reaches every weight.
    for (int32_t e = 0; e < op->n; e++) {
        weights[e] = weights[e] < 0.0f && !isnan(all) ? 0.0f : (float)((double)weights[e] / sum);
    }
}

void evq_experts_route(const struct evq_op *op, const float *in, size_t in_stride, int32_t rows,
                       float *out, size_t out_stride)
{
    float logits[EVQ_EXPERTS_MAX];

    for (int32_t r = 0; r < rows; r++) {
        memcpy(logits, in + (size_t)r * in_stride, (size_t)op->n * sizeof(float));
        route_row(op, logits, out + (size_t)r * out_stride);
    }
}
