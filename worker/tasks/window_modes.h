/*
 * The ways to divide documents into windows. Each window is offered to the shards in turn, so that
 * N shards together score the same as one. windows->length_max is the length L below. One thread.
 */
#ifndef EVQ_WORKER_TASKS_WINDOW_MODES_H
#define EVQ_WORKER_TASKS_WINDOW_MODES_H

#include "worker/tasks/windows.h"

/*
 * As in lm-evaluation-harness (get_rolling_token_windows with context_len 1): every token of a
 * document is predicted once. The first window has L tokens after the prefix, the next ones L
 * tokens after the token before them, and the last one gets as much context as fits. EVQ_E_INVALID:
 * the corpus has no prefix.
 */
enum evq_status evq_window_modes_rolling(struct evq_windows *windows,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * As on the page "Perplexity of fixed-length models" of Transformers: windows of L tokens begin
 * every `stride` tokens. Of each window, the tokens that no earlier window contained are scored,
 * and never its first.
 */
enum evq_status evq_window_modes_strided(struct evq_windows *windows, int32_t stride,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* As in nanoGPT and llm.c: L inputs at a time, each followed by its target. Every token except a
 * document's first is predicted once. */
enum evq_status evq_window_modes_blocks(struct evq_windows *windows,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Samples as a Trainer makes them, in groups of batch_size, dealt out by group. From documents: the
 * first L tokens of each. From blocks: all documents joined, L tokens at a time, and the rest is
 * dropped. The first token of a sample is not scored.
 */
enum evq_status evq_window_modes_documents(struct evq_windows *windows, int32_t batch_size,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_window_modes_joined(struct evq_windows *windows, int32_t batch_size,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Number of samples of all shards, from documents or from blocks. */
int64_t evq_window_modes_samples(const struct evq_windows *windows, bool joined);

#endif
