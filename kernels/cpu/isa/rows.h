/*
 * Operations on rows between the matrix products: activations, gates, norms, rotary positions.
 */
#ifndef EVQ_KERNELS_CPU_ISA_ROWS_H
#define EVQ_KERNELS_CPU_ISA_ROWS_H

#include <stddef.h>

#include "kernels/cpu/isa/vecmath.h"
#include "kernels/cpu/kernels.h"

static void rows_activate(float *values, size_t stride, int32_t rows, int32_t n,
                          enum evq_activation activation)
{
    for (int32_t r = 0; r < rows; r++) {
        float *row = values + (size_t)r * stride;
        for (int32_t c = 0; c < n; c += LANES) { // Behind n it uses the row's spare room.
            vec_store(row + c, vec_activate(vec_load(row + c), activation));
        }
    }
}

static void rows_gate(const float *in, size_t in_stride, int32_t rows, int32_t n,
                      enum evq_activation activation, float *out, size_t out_stride)
{
    for (int32_t r = 0; r < rows; r++) {
        const float *row = in + (size_t)r * in_stride;
        float *to = out + (size_t)r * out_stride;
        for (int32_t c = 0; c < n; c += LANES) {
            vec_store(to + c, vec_activate(vec_load(row + c), activation) * vec_load(row + n + c));
        }
    }
}

static void rows_gate_pairs(const float *in, size_t in_stride, int32_t rows, int32_t n, float slope,
                            float cap, float *out, size_t out_stride)
{
    const vec most = vec_all(cap);

    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < n; c += LANES) {
            float pairs[2 * LANES];
            const int32_t left = n - c < LANES ? n - c : LANES;
            memset(pairs, 0, sizeof(pairs));
            memcpy(pairs, in + (size_t)r * in_stride + 2 * (size_t)c,
                   2 * (size_t)left * sizeof(float));
            vec gate = {0};
            vec up = {0};
            for (int32_t i = 0; i < LANES; i++) {
                gate[i] = pairs[2 * i];
                up[i] = pairs[2 * i + 1];
            }
            gate = vec_min(most, gate);
            up = vec_max(-most, vec_min(most, up));
            vec_store(out + (size_t)r * out_stride + c,
                      (up + 1.0f) * vec_times_sigmoid(gate, gate * slope));
        }
    }
}

/* A whole register if c + LANES <= n, otherwise the remaining values and zeros. */
static inline vec row_part(const float *row, int32_t c, int32_t n)
{
    return c + LANES <= n ? vec_load(row + c) : vec_load_some(row + c, n - c, 0.0f);
}

static inline void row_part_store(float *row, int32_t c, int32_t n, vec v)
{
    if (c + LANES <= n) {
        vec_store(row + c, v);
    } else {
        vec_store_some(row + c, v, n - c);
    }
}

static float row_mean(const float *row, int32_t n)
{
    vec sum = {0};

    for (int32_t c = 0; c < n; c += LANES) {
        sum += row_part(row, c, n);
    }
    return vec_sum(sum) / (float)n;
}

/* Sum of (row - centre)^2. */
static float row_squares(const float *row, int32_t n, float centre)
{
    vec sum = {0};
    int32_t c = 0;

    for (; c + LANES <= n; c += LANES) {
        const vec off = vec_load(row + c) - centre;
        sum += off * off;
    }
    if (c < n) {
        const vec off = vec_load_some(row + c, n - c, centre) - centre;
        sum += off * off;
    }
    return vec_sum(sum);
}

static void rows_layer_norm(const float *in, size_t in_stride, int32_t rows, int32_t n,
                            const float *weight, const float *bias, float epsilon, float *out,
                            size_t out_stride)
{
    for (int32_t r = 0; r < rows; r++) {
        const float *row = in + (size_t)r * in_stride;
        float *to = out + (size_t)r * out_stride;
        const float mean = row_mean(row, n);
        const float scale = 1.0f / sqrtf(row_squares(row, n, mean) / (float)n + epsilon);
        for (int32_t c = 0; c < n; c += LANES) {
            vec x = (row_part(row, c, n) - mean) * scale * vec_load(weight + c);
            if (bias != NULL) {
                x += vec_load(bias + c);
            }
            row_part_store(to, c, n, x);
        }
    }
}

static void rows_rms_norm(const float *in, size_t in_stride, int32_t rows, int32_t heads, int32_t n,
                          const float *weight, float epsilon, float *out, size_t out_stride)
{
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t h = 0; h < heads; h++) {
            const float *head = in + (size_t)r * in_stride + (size_t)h * (size_t)n;
            float *to = out + (size_t)r * out_stride + (size_t)h * (size_t)n;
            const float scale = 1.0f / sqrtf(row_squares(head, n, 0.0f) / (float)n + epsilon);
            for (int32_t c = 0; c < n; c += LANES) {
                row_part_store(to, c, n, row_part(head, c, n) * scale * vec_load(weight + c));
            }
        }
    }
}

/* Rotates the pairs (i, i + half). */
static void row_turn_halves(float *low, int32_t half, const float *cosines, const float *sines)
{
    float *high = low + half;

    for (int32_t c = 0; c < half; c += LANES) {
        const vec a = row_part(low, c, half);
        const vec b = row_part(high, c, half);
        const vec cosine = row_part(cosines, c, half);
        const vec sine = row_part(sines, c, half);
        row_part_store(low, c, half, a * cosine - b * sine);
        row_part_store(high, c, half, b * cosine + a * sine);
    }
}

/* Rotates the pairs (2 i, 2 i + 1). */
static void row_turn_neighbours(float *head, int32_t half, const float *cosines, const float *sines)
{
    for (int32_t i = 0; i < half; i++) {
        const float a = head[2 * i];
        const float b = head[2 * i + 1];
        head[2 * i] = a * cosines[i] - b * sines[i];
        head[2 * i + 1] = b * cosines[i] + a * sines[i];
    }
}

static void rows_rope(float *values, size_t stride, int32_t rows, const struct evq_turn *turn)
{
    const int32_t half = turn->n / 2;

    for (int32_t r = 0; r < rows; r++) {
        const float *cosines = turn->table + (size_t)turn->lines[r] * (size_t)turn->n;
        for (int32_t h = 0; h < turn->heads; h++) {
            float *head = values + (size_t)r * stride + (size_t)h * (size_t)turn->step;
            if (turn->neighbours) {
                row_turn_neighbours(head, half, cosines, cosines + half);
            } else {
                row_turn_halves(head, half, cosines, cosines + half);
            }
        }
    }
}

/* Behind n it uses the rows' spare room, like the activations. */
static void rows_add(const float *in, size_t in_stride, int32_t rows, int32_t n, float scale,
                     const float *residual, size_t residual_stride, float *out, size_t out_stride)
{
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < n; c += LANES) {
            const vec sum = vec_load(in + (size_t)r * in_stride + c) * scale +
                            vec_load(residual + (size_t)r * residual_stride + c);
            vec_store(out + (size_t)r * out_stride + c, sum);
        }
    }
}

static void rows_cap(float *values, size_t stride, int32_t rows, int32_t n, float scale, float cap)
{
    for (int32_t r = 0; r < rows; r++) {
        float *row = values + (size_t)r * stride;
        for (int32_t c = 0; c < n; c += LANES) {
            const vec x = vec_load(row + c) * scale;
            vec_store(row + c, cap > 0.0f ? vec_tanh(x / cap) * cap : x);
        }
    }
}

#endif
