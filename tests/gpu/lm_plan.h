/*
 * Plans of language models with seeded random weights, as the families of worker/models/ make them
 * of a checkpoint, and batches for them. Nothing but kernels/backend.h is needed. A program that
 * runs out of memory ends with a sentence.
 */
#ifndef EVQ_TESTS_GPU_LM_PLAN_H
#define EVQ_TESTS_GPU_LM_PLAN_H

#include "kernels/backend.h"

struct lm_shape {
    const char *name;
    int32_t layers, width, heads, kv_heads, size, hidden, vocabulary;
    int32_t positions; // Learned ones, so many; 0: rotary.
    int32_t window;
    bool layer_norm; // With biases everywhere; else RMS.
    bool qkv_bias, qk_norm, gated, tied;
    enum evq_activation activation;
    float embedding_scale; // 0: 1.
};

/* Small ones, one at least of every family, with heads of every width that kernels treat apart. */
extern const struct lm_shape lm_small[];
extern const size_t lm_small_count;

/* GPT-2 124M and 1.5B, Qwen3-0.6B and 1.7B, Llama-3-8B. */
extern const struct lm_shape lm_large[];
extern const size_t lm_large_count;

struct lm {
    const struct lm_shape *shape;
    struct evq_plan plan;
    struct evq_weight_slot *slots;
    struct evq_op *ops;
    float *frequencies;
    int32_t columns[7];
};

/* rows_max and length_max of its batches. Free with lm_free(). */
struct lm *lm_new(const struct lm_shape *shape, enum evq_compute compute, int32_t rows_max,
                  int32_t length_max);
void lm_free(struct lm *lm);

/* The values of a slot, the caller's to free: matrices spread so that activations stay near 1,
 * scales near 1, the same for the same seed. */
float *lm_weight(const struct lm *lm, size_t slot, uint64_t seed);

struct lm_batch {
    struct evq_batch batch;
    int32_t *tokens, *starts, *score_rows, *score_targets;
};

/* Sequences of these lengths; of each row `scored` in a hundred are scored, some of these twice. */
struct lm_batch *lm_batch_new(int32_t vocabulary, const int32_t *lengths, int32_t count,
                              int32_t scored, uint64_t seed);
void lm_batch_free(struct lm_batch *batch);

/* ---- what all programs here share ---- */

uint64_t lm_random(uint64_t *state);             // Of 64 bits; *state is not 0.
float lm_random_float(uint64_t *state);          // In [-1, 1).
void *lm_alloc(size_t count, size_t item_bytes); // Zeroed, never NULL.
/* What is being done from now on: named by lm_must(), and by lm_watch() where something ends the
 * program, as a time limit does when a kernel hangs. */
void lm_doing(const char *format, ...) __attribute__((format(printf, 1, 2)));
void lm_watch(void);
/* Ends the program with the error's sentence unless status is EVQ_OK. */
void lm_must(enum evq_status status, const struct evq_error *err);

#endif
