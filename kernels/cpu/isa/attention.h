/*
 * Causal attention of one head for a block of queries, block of keys by block of keys. The queries
 * lie in the lanes: scores and their exponentials need no sum across a register, and keys and
 * values are read as they stand. Blocks of keys start at multiples of KEYS in the sequence, and a
 * block that a query does not see changes nothing of it: its bits depend on its sequence alone.
 */
#ifndef EVQ_KERNELS_CPU_ISA_ATTENTION_H
#define EVQ_KERNELS_CPU_ISA_ATTENTION_H

#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vecmath.h"
#include "kernels/cpu/kernels.h"

#define KEYS 64 // Of a block.

/* Everything [..][PANEL]: queries, scores, sums of values; then the largest score and the sum of
 * each query. */
static size_t attention_scratch_floats(int32_t size)
{
    return (2 * (size_t)size + KEYS + 2) * PANEL;
}

static void attention_queries(const struct evq_attention *at, float *queries)
{
    for (int32_t i = 0; i < PANEL; i++) {
        const float *q = at->q + (size_t)(at->first + i) * at->in_stride;
        for (int32_t d = 0; d < at->size; d++) {
            queries[(size_t)d * PANEL + (size_t)i] = i < at->count ? q[d] * at->scale : 0.0f;
        }
    }
}

/* Key `key` is hidden from query i when it comes after it, or a window before it. */
static void attention_mask(const struct evq_attention *at, int32_t key, float *scores)
{
    for (int32_t i = 0; i < PANEL; i++) {
        const int32_t back = at->first + i - key;
        if (back < 0 || (at->window > 0 && back >= at->window)) {
            scores[i] = -INFINITY;
        }
    }
}

/* Turns scores into exponentials; rescales what is summed so far to the new largest score. */
static void attention_weigh(const struct evq_attention *at, int32_t keys, float *scores,
                            float *values, float *tops, float *sums)
{
    for (int32_t v = 0; v < PANEL; v += LANES) {
        const vec before = vec_load(tops + v);
        vec top = before;
        for (int32_t j = 0; j < keys; j++) {
            top = vec_max(vec_load(scores + (size_t)j * PANEL + v), top);
        }
        vec_store(tops + v, top);
        const vec base = vec_select(top == -INFINITY, (vec){0}, top); // Nothing seen as yet.
        vec sum = {0};
        for (int32_t j = 0; j < keys; j++) {
            const vec weight = vec_exp(vec_load(scores + (size_t)j * PANEL + v) - base);
            vec_store(scores + (size_t)j * PANEL + v, weight);
            sum += weight;
        }
        const vec shrink = vec_exp(before - base);
        vec_store(sums + v, vec_load(sums + v) * shrink + sum);
        for (int32_t d = 0; d < at->size; d++) {
            float *value = values + (size_t)d * PANEL + v;
            vec_store(value, vec_load(value) * shrink);
        }
    }
}

static void attention_write(const struct evq_attention *at, const float *values, const float *sums)
{
    for (int32_t i = 0; i < at->count; i++) {
        float *out = at->out + (size_t)(at->first + i) * at->out_stride;
        for (int32_t d = 0; d < at->size; d++) {
            out[d] = values[(size_t)d * PANEL + (size_t)i] / sums[i];
        }
    }
}

static void attention_run(const struct evq_attention *at)
{
    float *queries = at->scratch;
    float *scores = queries + (size_t)at->size * PANEL;
    float *values = scores + (size_t)KEYS * PANEL;
    float *tops = values + (size_t)at->size * PANEL;
    float *sums = tops + PANEL;
    const int32_t end = at->first + at->count; // No query sees further.
    const int32_t low = at->window > 0 && at->first >= at->window ? at->first - at->window + 1 : 0;

    attention_queries(at, queries);
    memset(values, 0, (size_t)at->size * PANEL * sizeof(float));
    memset(sums, 0, PANEL * sizeof(float));
    for (int32_t i = 0; i < PANEL; i++) {
        tops[i] = -INFINITY;
    }
    for (int32_t key = low / KEYS * KEYS; key < end; key += KEYS) {
        const int32_t keys = end - key < KEYS ? end - key : KEYS;
        const size_t at_key = (size_t)key * at->in_stride;
        tile_run(keys, at->k + at_key, at->in_stride, 1, queries, at->size, scores, true);
        const bool whole =
            key + keys <= at->first + 1 && (at->window == 0 || end - 1 - key < at->window);
        for (int32_t j = 0; j < keys && !whole; j++) {
            attention_mask(at, key + j, scores + (size_t)j * PANEL);
        }
        attention_weigh(at, keys, scores, values, tops, sums);
        tile_run(at->size, at->v + at_key, 1, at->in_stride, scores, keys, values, false);
    }
    attention_write(at, values, sums);
}

#endif
