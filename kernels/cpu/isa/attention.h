/*
 * Attention of one head for a block of queries, one block of keys after another. Each lane
 * holds one query, so scores and exponentials need no sum across a register, and keys and values
 * are read as they are stored. Blocks of keys start at multiples of KEYS in the sequence. A block
 * that a query does not see does not change its result, so the bits of a result depend only on its
 * own sequence.
 */
#ifndef EVQ_KERNELS_CPU_ISA_ATTENTION_H
#define EVQ_KERNELS_CPU_ISA_ATTENTION_H

#include "kernels/cpu/isa/pairs.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vecmath.h"
#include "kernels/cpu/kernels.h"

#define KEYS 64 // Keys in a block.

/* Parts of the scratch memory. */
struct attention_parts {
    float *queries; // [size][PANEL], or pairs.
    float *scores;  // [KEYS][PANEL]: scores, later their exponentials, later pairs of these.
    float *values;  // [size][PANEL]: the sums so far.
    float *tops;    // [PANEL]: the largest score,
    float *sums;    // and the sum of the exponentials, for each query.
    float *joined;  // Pairs of keys or values, [KEYS][joined_stride].
    size_t joined_stride;
};

static size_t attention_joined_stride(int32_t size)
{
    return ((size_t)size + 2 * LANES - 1) / LANES * LANES;
}

static size_t attention_scratch_floats(int32_t size)
{
    return (2 * (size_t)size + KEYS + 2) * PANEL + attention_joined_stride(size) * KEYS;
}

static struct attention_parts attention_place(const struct evq_attention *at)
{
    const size_t size = (size_t)at->size;
    float *next = at->scratch;

    return (struct attention_parts){.queries = next,
                                    .scores = next + size * PANEL,
                                    .values = next + (size + KEYS) * PANEL,
                                    .tops = next + (2 * size + KEYS) * PANEL,
                                    .sums = next + (2 * size + KEYS + 1) * PANEL,
                                    .joined = next + (2 * size + KEYS + 2) * PANEL,
                                    .joined_stride = attention_joined_stride(at->size)};
}

static void attention_queries(const struct evq_attention *at, const struct attention_parts *parts)
{
    for (int32_t i = 0; i < PANEL; i++) {
        const float *q = at->q + (size_t)(at->first + i) * at->in_stride;
        for (int32_t d = 0; d < at->size; d++) {
            parts->queries[(size_t)d * PANEL + (size_t)i] = i < at->count ? q[d] * at->scale : 0.0f;
        }
    }
#if defined(__AVX512BF16__)
    if (at->pairs) {
        pairs_of_rows(parts->queries, PANEL, at->size, PANEL, parts->queries, PANEL);
    }
#endif
}

/* Hides key `key` from query i if the key is outside its window, or comes after the query and the
 * attention is causal. */
static void attention_mask(const struct evq_attention *at, int32_t key, float *scores)
{
    for (int32_t i = 0; i < PANEL; i++) {
        const int32_t back = at->first + i - key;
        const int32_t apart = back < 0 ? -back : back;
        if ((back < 0 && !at->both) || (at->window > 0 && apart >= at->window)) {
            scores[i] = -INFINITY;
        }
    }
}

static void attention_cap(const struct evq_attention *at, float *scores, int32_t keys)
{
    for (int32_t i = 0; i < keys * PANEL; i += LANES) {
        vec_store(scores + i, vec_tanh(vec_load(scores + i) / at->cap) * at->cap);
    }
}

/* Turns scores into exponentials, and rescales the sums so far to the new largest score. */
static void attention_weigh(const struct evq_attention *at, const struct attention_parts *parts,
                            int32_t keys)
{
    float *scores = parts->scores;

    for (int32_t v = 0; v < PANEL; v += LANES) {
        const vec before = vec_load(parts->tops + v);
        vec top = before;
        for (int32_t j = 0; j < keys; j++) {
            top = vec_max(vec_load(scores + (size_t)j * PANEL + v), top);
        }
        vec_store(parts->tops + v, top);
        const vec base = vec_select(top == -INFINITY, (vec){0}, top); // No key was visible so far.
        vec sum = {0};
        for (int32_t j = 0; j < keys; j++) {
            const vec weight = vec_exp(vec_load(scores + (size_t)j * PANEL + v) - base);
            vec_store(scores + (size_t)j * PANEL + v, weight);
            sum += weight;
        }
        const vec shrink = vec_exp(before - base);
        vec_store(parts->sums + v, vec_load(parts->sums + v) * shrink + sum);
        for (int32_t d = 0; d < at->size && vec_any(shrink != 1.0f); d++) {
            float *value = parts->values + (size_t)d * PANEL + v;
            vec_store(value, vec_load(value) * shrink);
        }
    }
}

static void attention_write(const struct evq_attention *at, const struct attention_parts *parts)
{
    for (int32_t i = 0; i < at->count; i++) {
        float *out = at->out + (size_t)(at->first + i) * at->out_stride;
        for (int32_t d = 0; d < at->size; d++) {
            out[d] = parts->values[(size_t)d * PANEL + (size_t)i] / parts->sums[i];
        }
    }
}

/* Computes the scores of a block of keys: [keys][PANEL]. */
static void attention_scores(const struct evq_attention *at, const struct attention_parts *parts,
                             const float *keys, int32_t count)
{
#if defined(__AVX512BF16__)
    if (at->pairs) {
        pairs_round(keys, at->in_stride, count, at->size, parts->joined, parts->joined_stride);
        tile_run(true, count, parts->joined, parts->joined_stride, 1, parts->queries,
                 (at->size + 1) / 2, parts->scores, true);
        return;
    }
#endif
    tile_run(false, count, keys, at->in_stride, 1, parts->queries, at->size, parts->scores, true);
}

/* Adds the block's weighted values to values[size][PANEL]. */
static void attention_sum(const struct evq_attention *at, const struct attention_parts *parts,
                          const float *values, int32_t count)
{
#if defined(__AVX512BF16__)
    if (at->pairs) {
        pairs_of_rows(values, at->in_stride, count, at->size, parts->joined, parts->joined_stride);
        pairs_of_rows(parts->scores, PANEL, count, PANEL, parts->scores, PANEL);
        tile_run(true, at->size, parts->joined, 1, parts->joined_stride, parts->scores,
                 (count + 1) / 2, parts->values, false);
        return;
    }
#endif
    tile_run(false, at->size, values, 1, at->in_stride, parts->scores, count, parts->values, false);
}

/* No query of the block sees this key or a later one. */
static int32_t attention_end(const struct evq_attention *at)
{
    const int32_t next = at->first + at->count;
    const bool far = at->window == 0 || at->window > at->length - next;

    return !at->both ? next : far ? at->length : next + at->window - 1;
}

/* Whether every query of the block sees all keys [key, end). */
static bool attention_whole(const struct evq_attention *at, int32_t key, int32_t end)
{
    const int32_t back = at->first + at->count - 1 - key;
    const int32_t ahead = end - 1 - at->first;

    return (at->window == 0 || (back < at->window && ahead < at->window)) &&
           (at->both || ahead <= 0);
}

static void attention_run(const struct evq_attention *at)
{
    const struct attention_parts parts = attention_place(at);
    const int32_t end = attention_end(at);
    const int32_t low = at->window > 0 && at->first >= at->window ? at->first - at->window + 1 : 0;

    attention_queries(at, &parts);
    memset(parts.values, 0, (size_t)at->size * PANEL * sizeof(float));
    for (int32_t i = 0; i < PANEL; i++) { // The sink is a key before all others.
        parts.tops[i] = at->sink;
        parts.sums[i] = at->sink == -INFINITY ? 0.0f : 1.0f;
    }
    for (int32_t key = low / KEYS * KEYS; key < end; key += KEYS) {
        const int32_t keys = end - key < KEYS ? end - key : KEYS;
        const size_t at_key = (size_t)key * at->in_stride;
        const bool whole = attention_whole(at, key, key + keys);
        attention_scores(at, &parts, at->k + at_key, keys);
        if (at->cap > 0.0f) {
            attention_cap(at, parts.scores, keys);
        }
        for (int32_t j = 0; j < keys && !whole; j++) {
            attention_mask(at, key + j, parts.scores + (size_t)j * PANEL);
        }
        attention_weigh(at, &parts, keys);
        attention_sum(at, &parts, at->v + at_key, keys);
    }
    attention_write(at, &parts);
}

#endif
