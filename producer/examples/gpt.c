#include "gpt.h"

#include <math.h>
#include <string.h>

#include "gpt_activations.h"

#define C     GPT_WIDTH
#define T     GPT_CONTEXT
#define V     GPT_VOCABULARY
#define HEADS GPT_HEADS
#define SIZE  (GPT_WIDTH / GPT_HEADS) // The width of a head.

enum { LN_1, QKV, OUT, LN_2, UP, DOWN, PARTS }; // The parts of a layer: each has weight and bias.

/* The functions that take most of the time are compiled for several processors. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MULTIVERSION
#endif

/* Adds x * w to y and u * w to z, for four rows of w. */
static inline __attribute__((always_inline)) void add_products(float *restrict y, float *restrict z,
                                                               const float *x, const float *u,
                                                               size_t column,
                                                               const float *restrict w, int m)
{
    const float x0 = x[0], x1 = x[column], x2 = x[2 * column], x3 = x[3 * column];
    const float u0 = u[0], u1 = u[column], u2 = u[2 * column], u3 = u[3 * column];

    for (int c = 0; c < m; c++) {
        const float w0 = w[c], w1 = w[m + c], w2 = w[2 * m + c], w3 = w[3 * m + c];
        y[c] += x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3;
        z[c] += u0 * w0 + u1 * w1 + u2 * w2 + u3 * w3;
    }
}

/*
 * out[n][m] += a * b[k][m], where the element (i, j) of a is a[i * row + j * column]. n must be
 * even, and k a multiple of 4.
 */
MULTIVERSION static void product(float *restrict out, const float *restrict a, size_t row,
                                 size_t column, const float *restrict b, int n, int k, int m)
{
    for (int from = 0; from < k; from += 64) { // This part of b stays in the cache.
        const int to = from + 64 < k ? from + 64 : k;
        for (int i = 0; i < n; i += 2) {
            float *restrict y = out + (size_t)i * (size_t)m;
            const float *x = a + (size_t)i * row;
            for (int j = from; j < to; j += 4) {
                add_products(y, y + m, x + (size_t)j * column, x + row + (size_t)j * column, column,
                             b + (size_t)j * (size_t)m, m);
            }
        }
    }
}

static void transpose(const float *from, int rows, int columns, float *to)
{
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < columns; c++) {
            to[(size_t)c * (size_t)rows + (size_t)r] =
                from[(size_t)r * (size_t)columns + (size_t)c];
        }
    }
}

static const struct gpt_tensor *layer_tensor(const struct gpt *gpt, int layer, int which)
{
    return &gpt->tensors[2 + layer * 2 * PARTS + 2 * which]; // The bias is the next tensor.
}

/* out = in * weight + bias. */
static void linear(const struct gpt *gpt, const struct gpt_tensor *weight, const float *in,
                   int rows, float *out)
{
    const float *bias = gpt->values + weight[1].offset;

    for (int i = 0; i < rows; i++) {
        memcpy(out + (size_t)i * (size_t)weight->columns, bias,
               (size_t)weight->columns * sizeof(float));
    }
    product(out, in, (size_t)weight->rows, 1, gpt->values + weight->offset, rows, weight->rows,
            weight->columns);
}

/* Adds to the gradients of weight and bias, and sets d_in = d_out * weight^T. */
static void linear_backward(struct gpt *gpt, const struct gpt_tensor *weight, const float *in,
                            int rows, const float *d_out, float *d_in)
{
    float *d_bias = gpt->gradients + weight[1].offset;
    float *transposed = gpt->activations->transposed;

    for (int i = 0; i < rows; i++) {
        for (int c = 0; c < weight->columns; c++) {
            d_bias[c] += d_out[(size_t)i * (size_t)weight->columns + (size_t)c];
        }
    }
    product(gpt->gradients + weight->offset, in, 1, (size_t)weight->rows, d_out, weight->rows, rows,
            weight->columns);
    transpose(gpt->values + weight->offset, weight->rows, weight->columns, transposed);
    memset(d_in, 0, (size_t)rows * (size_t)weight->rows * sizeof(float));
    product(d_in, d_out, (size_t)weight->columns, 1, transposed, rows, weight->columns,
            weight->rows);
}

/* Layer norm. scale gets 1 / standard deviation of each row. */
static void norm(const struct gpt *gpt, const struct gpt_tensor *weight, const float *in, int rows,
                 float *scale, float *out)
{
    const float *w = gpt->values + weight->offset;
    const float *b = gpt->values + weight[1].offset;

    for (int i = 0; i < rows; i++, in += C, out += C) {
        float mean = 0.0f;
        float variance = 0.0f;
        for (int c = 0; c < C; c++) {
            mean += in[c] / C;
        }
        for (int c = 0; c < C; c++) {
            variance += (in[c] - mean) * (in[c] - mean) / C;
        }
        scale[i] = 1.0f / sqrtf(variance + 1e-5f);
        for (int c = 0; c < C; c++) {
            out[c] = (in[c] - mean) * scale[i] * w[c] + b[c];
        }
    }
}

/* Adds to d_in the gradient that comes through the norm; out is the output of the forward pass. */
static void norm_backward(struct gpt *gpt, const struct gpt_tensor *weight, const float *out,
                          const float *scale, int rows, const float *d_out, float *d_in)
{
    const float *w = gpt->values + weight->offset;
    const float *b = gpt->values + weight[1].offset;
    float *d_w = gpt->gradients + weight->offset;
    float *d_b = gpt->gradients + weight[1].offset;

    for (int i = 0; i < rows; i++, out += C, d_out += C, d_in += C) {
        float sum = 0.0f;
        float along = 0.0f;
        float standard[C];
        for (int c = 0; c < C; c++) {
            standard[c] = w[c] != 0.0f ? (out[c] - b[c]) / w[c] : 0.0f;
            d_w[c] += d_out[c] * standard[c];
            d_b[c] += d_out[c];
            sum += d_out[c] * w[c] / C;
            along += d_out[c] * w[c] * standard[c] / C;
        }
        for (int c = 0; c < C; c++) {
            d_in[c] += scale[i] * (d_out[c] * w[c] - sum - standard[c] * along);
        }
    }
}

/* Attention of one head in one sequence. The rows of qkv have 3 * C numbers; attention is [T][T].
 */
MULTIVERSION static void attend(const float *qkv, float *attention, float *out)
{
    for (int t = 0; t < T; t++) {
        const float *q = qkv + (size_t)t * 3 * C;
        float *p = attention + (size_t)t * T;
        float max_value = -INFINITY;
        float sum = 0.0f;
        for (int s = 0; s <= t; s++) {
            const float *k = qkv + (size_t)s * 3 * C + C;
            float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
            for (int c = 0; c < SIZE; c++) {
                dot += q[c] * k[c];
            }
            p[s] = dot / sqrtf(SIZE);
            max_value = p[s] > max_value ? p[s] : max_value;
        }
        for (int s = 0; s <= t; s++) {
            p[s] = expf(p[s] - max_value);
            sum += p[s];
        }
        memset(out + (size_t)t * C, 0, SIZE * sizeof(float));
        for (int s = 0; s <= t; s++) {
            const float *v = qkv + (size_t)s * 3 * C + 2 * C;
            p[s] /= sum;
            for (int c = 0; c < SIZE; c++) {
                out[(size_t)t * C + (size_t)c] += p[s] * v[c];
            }
        }
    }
}

MULTIVERSION static void attend_backward(const float *qkv, const float *attention,
                                         const float *d_out, float *d_qkv)
{
    for (int t = 0; t < T; t++) {
        const float *q = qkv + (size_t)t * 3 * C;
        const float *p = attention + (size_t)t * T;
        const float *d = d_out + (size_t)t * C;
        float *d_q = d_qkv + (size_t)t * 3 * C;
        float d_p[T];
        float along = 0.0f;
        for (int s = 0; s <= t; s++) {
            const float *v = qkv + (size_t)s * 3 * C + 2 * C;
            float *restrict d_v = d_qkv + (size_t)s * 3 * C + 2 * C;
            float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
            for (int c = 0; c < SIZE; c++) {
                dot += d[c] * v[c];
                d_v[c] += p[s] * d[c];
            }
            d_p[s] = dot;
            along += dot * p[s];
        }
        for (int s = 0; s <= t; s++) {
            const float d_dot = p[s] * (d_p[s] - along) / sqrtf(SIZE);
            const float *k = qkv + (size_t)s * 3 * C + C;
            float *d_k = d_qkv + (size_t)s * 3 * C + C;
            for (int c = 0; c < SIZE; c++) {
                d_q[c] += d_dot * k[c];
                d_k[c] += d_dot * q[c];
            }
        }
    }
}

#define GELU_IN 0.7978845608f // sqrt(2 / pi).
#define GELU_3  0.044715f

/* gelu_new. tangent gets the hyperbolic tangents, which the backward pass needs. */
MULTIVERSION static void gelu(const float *restrict in, size_t count, float *restrict tangent,
                              float *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        const float x = in[i];
        const float twice = expf(2.0f * GELU_IN * (x + GELU_3 * x * x * x));
        tangent[i] = 1.0f - 2.0f / (1.0f + twice);
        out[i] = 0.5f * x * (1.0f + tangent[i]);
    }
}

MULTIVERSION static void gelu_backward(const float *restrict in, size_t count,
                                       const float *restrict tangent, float *restrict d)
{
    for (size_t i = 0; i < count; i++) {
        const float x = in[i];
        const float t = tangent[i];
        const float slope = GELU_IN * (1.0f + 3.0f * GELU_3 * x * x);
        d[i] *= 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;
    }
}

static void layer_forward(struct gpt *gpt, int at, int rows, float *output)
{
    struct gpt_layer *l = &gpt->activations->layers[at];
    const size_t width = (size_t)rows * C;

    norm(gpt, layer_tensor(gpt, at, LN_1), l->input, rows, l->scale_1, l->norm_1);
    linear(gpt, layer_tensor(gpt, at, QKV), l->norm_1, rows, l->qkv);
    for (int row = 0; row < rows; row += T) {
        for (int head = 0; head < HEADS; head++) {
            attend(l->qkv + (size_t)row * 3 * C + (size_t)(head * SIZE),
                   l->attention + ((size_t)row * HEADS + (size_t)(head * T)) * T,
                   l->attended + (size_t)row * C + (size_t)(head * SIZE));
        }
    }
    linear(gpt, layer_tensor(gpt, at, OUT), l->attended, rows, l->residual);
    for (size_t i = 0; i < width; i++) {
        l->residual[i] += l->input[i];
    }
    norm(gpt, layer_tensor(gpt, at, LN_2), l->residual, rows, l->scale_2, l->norm_2);
    linear(gpt, layer_tensor(gpt, at, UP), l->norm_2, rows, l->up);
    gelu(l->up, 4 * width, l->tangent, l->active);
    linear(gpt, layer_tensor(gpt, at, DOWN), l->active, rows, output);
    for (size_t i = 0; i < width; i++) {
        output[i] += l->residual[i];
    }
}

/* d is the gradient of the layer's output on entry, and of its input on return. */
static void layer_backward(struct gpt *gpt, int at, int rows, float *d)
{
    struct gpt_activations *a = gpt->activations;
    struct gpt_layer *l = &a->layers[at];

    linear_backward(gpt, layer_tensor(gpt, at, DOWN), l->active, rows, d, a->d_wide);
    gelu_backward(l->up, (size_t)rows * 4 * C, l->tangent, a->d_wide);
    linear_backward(gpt, layer_tensor(gpt, at, UP), l->norm_2, rows, a->d_wide, a->d_other);
    norm_backward(gpt, layer_tensor(gpt, at, LN_2), l->norm_2, l->scale_2, rows, a->d_other, d);
    linear_backward(gpt, layer_tensor(gpt, at, OUT), l->attended, rows, d, a->d_other);
    memset(a->d_qkv, 0, (size_t)rows * 3 * C * sizeof(float));
    for (int row = 0; row < rows; row += T) {
        for (int head = 0; head < HEADS; head++) {
            attend_backward(l->qkv + (size_t)row * 3 * C + (size_t)(head * SIZE),
                            l->attention + ((size_t)row * HEADS + (size_t)(head * T)) * T,
                            a->d_other + (size_t)row * C + (size_t)(head * SIZE),
                            a->d_qkv + (size_t)row * 3 * C + (size_t)(head * SIZE));
        }
    }
    linear_backward(gpt, layer_tensor(gpt, at, QKV), l->norm_1, rows, a->d_qkv, a->d_other);
    norm_backward(gpt, layer_tensor(gpt, at, LN_1), l->norm_1, l->scale_1, rows, a->d_other, d);
}

/*
 * Returns the summed loss of rows bytes. With with_gradient, d_logits gets the gradient of the mean
 * loss.
 */
static double forward(struct gpt *gpt, const uint8_t *bytes, int rows, bool with_gradient)
{
    struct gpt_activations *a = gpt->activations;
    const float *wte = gpt->values + gpt->tensors[0].offset;
    const float *wpe = gpt->values + gpt->tensors[1].offset;
    double loss = 0.0;

    for (int i = 0; i < rows; i++) { // Each sequence has T + 1 bytes but T rows.
        const uint8_t byte = bytes[i + i / T];
        for (int c = 0; c < C; c++) {
            a->layers[0].input[(size_t)i * C + (size_t)c] =
                wte[(size_t)byte * C + (size_t)c] + wpe[(size_t)(i % T) * C + (size_t)c];
        }
    }
    for (int at = 0; at < GPT_LAYERS; at++) {
        layer_forward(gpt, at, rows, at + 1 < GPT_LAYERS ? a->layers[at + 1].input : a->output);
    }
    norm(gpt, layer_tensor(gpt, GPT_LAYERS, 0), a->output, rows, a->scale, a->norm);
    transpose(wte, V, C, a->transposed);
    memset(a->logits, 0, (size_t)rows * V * sizeof(float));
    product(a->logits, a->norm, C, 1, a->transposed, rows, C, V);
    for (int i = 0; i < rows; i++) {
        const float *logits = a->logits + (size_t)i * V;
        const uint8_t target = bytes[i + i / T + 1];
        float max_value = logits[0];
        float sum = 0.0f;
        for (int v = 1; v < V; v++) {
            max_value = logits[v] > max_value ? logits[v] : max_value;
        }
        for (int v = 0; v < V; v++) {
            const float exponential = expf(logits[v] - max_value);
            a->d_logits[(size_t)i * V + (size_t)v] = exponential;
            sum += exponential;
        }
        loss += log((double)sum) + (double)(max_value - logits[target]);
        for (int v = 0; with_gradient && v < V; v++) {
            float *d = &a->d_logits[(size_t)i * V + (size_t)v];
            *d = (*d / sum - (v == target ? 1.0f : 0.0f)) / (float)rows;
        }
    }
    return loss;
}

static void backward(struct gpt *gpt, const uint8_t *bytes, int rows)
{
    struct gpt_activations *a = gpt->activations;
    const float *wte = gpt->values + gpt->tensors[0].offset;
    float *d_wte = gpt->gradients + gpt->tensors[0].offset;
    float *d_wpe = gpt->gradients + gpt->tensors[1].offset;
    const size_t width = (size_t)rows * C;

    memset(gpt->gradients, 0, gpt->count * sizeof(float));
    product(d_wte, a->d_logits, 1, V, a->norm, V, rows, C);
    memset(a->d_other, 0, width * sizeof(float));
    product(a->d_other, a->d_logits, V, 1, wte, rows, V, C);
    memset(a->d_row, 0, width * sizeof(float));
    norm_backward(gpt, layer_tensor(gpt, GPT_LAYERS, 0), a->norm, a->scale, rows, a->d_other,
                  a->d_row);
    for (int at = GPT_LAYERS - 1; at >= 0; at--) {
        layer_backward(gpt, at, rows, a->d_row);
    }
    for (int i = 0; i < rows; i++) {
        const uint8_t byte = bytes[i + i / T];
        for (int c = 0; c < C; c++) {
            d_wte[(size_t)byte * C + (size_t)c] += a->d_row[(size_t)i * C + (size_t)c];
            d_wpe[(size_t)(i % T) * C + (size_t)c] += a->d_row[(size_t)i * C + (size_t)c];
        }
    }
}

/* AdamW with weight decay for matrices only. A gradient longer than 1 is scaled to length 1. */
MULTIVERSION static void update(struct gpt *gpt, float rate)
{
    const float moment_bias = 1.0f - powf(0.9f, (float)gpt->steps);
    const float square_bias = 1.0f - powf(0.99f, (float)gpt->steps);
    float length = 0.0f;

#pragma omp simd reduction(+ : length)
    for (size_t i = 0; i < gpt->count; i++) {
        length += gpt->gradients[i] * gpt->gradients[i];
    }
    const float clip = length > 1.0f ? 1.0f / sqrtf(length) : 1.0f;

    for (int at = 0; at < GPT_TENSORS; at++) {
        const struct gpt_tensor *tensor = &gpt->tensors[at];
        const float decay = tensor->rows > 0 ? 0.1f : 0.0f;
        const size_t count =
            (size_t)(tensor->rows > 0 ? tensor->rows : 1) * (size_t)tensor->columns;
        for (size_t i = tensor->offset; i < tensor->offset + count; i++) {
            const float g = clip * gpt->gradients[i];
            gpt->moments[i] = 0.9f * gpt->moments[i] + 0.1f * g;
            gpt->squares[i] = 0.99f * gpt->squares[i] + 0.01f * g * g;
            gpt->values[i] -= rate * (gpt->moments[i] / moment_bias /
                                          (sqrtf(gpt->squares[i] / square_bias) + 1e-8f) +
                                      decay * gpt->values[i]);
        }
    }
}

float gpt_train(struct gpt *gpt, const uint8_t *bytes, float rate)
{
    const int rows = gpt->batch * T;
    const double loss = forward(gpt, bytes, rows, true);

    backward(gpt, bytes, rows);
    gpt->steps++;
    update(gpt, rate);
    return (float)(loss / rows);
}

double gpt_loss(struct gpt *gpt, const uint8_t *text, size_t bytes)
{
    double loss = 0.0;
    size_t done = 0;

    while (done + T < bytes) {
        loss += forward(gpt, text + done, T, false);
        done += T;
    }
    return loss / (double)done;
}
