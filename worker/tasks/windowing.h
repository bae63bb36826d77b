/*
 * The ways documents are cut into windows. Each window is offered to the shards in turn, so N
 * shards score what one scores. windows->length_max is the length L below.
 */
#ifndef EVQ_WORKER_TASKS_WINDOWING_H
#define EVQ_WORKER_TASKS_WINDOWING_H

#include "worker/tasks/window.h"

/*
 * As lm-evaluation-harness (get_rolling_token_windows with context_len 1): every token of a
 * document is predicted once; the first L after the prefix, then L at a time after the token before
 * them, and the last ones after as much as fits. EVQ_E_INVALID: the corpus has no prefix.
 */
enum evq_status evq_windowing_rolling(struct evq_windows *windows,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * As the page "Perplexity of fixed-length models" of Transformers: windows of L tokens that begin
 * every `stride` tokens; of each, the tokens that no window before had are scored, and never its
 * first.
 */
enum evq_status evq_windowing_strided(struct evq_windows *windows, int32_t stride,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* As nanoGPT and llm.c: L inputs at a time, each followed by its target; every token but a
 * document's first is predicted once. */
enum evq_status evq_windowing_blocks(struct evq_windows *windows,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Samples as a Trainer has them, batch_size of them a group, dealt out by group. Of documents: the
 * first L tokens of each. Of blocks: all documents as one, L tokens at a time, the rest dropped. A
 * sample's first token is not scored.
 */
enum evq_status evq_windowing_documents(struct evq_windows *windows, int32_t batch_size,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_windowing_joined(struct evq_windows *windows, int32_t batch_size,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
/* Samples there are, of all shards, for one or the other. */
int64_t evq_windowing_samples(const struct evq_windows *windows, bool joined);

#endif
