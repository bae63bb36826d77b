/*
 * Answers requests for log-likelihoods, one checkpoint after another: how likely a continuation is
 * after its context, and how likely a whole text is. Texts become tokens as in
 * lm-evaluation-harness. Backend, buffers and tokenizer are kept between checkpoints. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_SCORES_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_SCORES_H

#include "worker/evaluators/native/native.h"

struct evq_native_scorer;

struct evq_native_scorer_model { // Valid until the next load.
    const char *family;
    int32_t vocabulary, context; // Number of tokens; rows of the longest sequence.
    const char *compute, *device;
    const char *no_tokenizer; // Why only tokens can be scored; "": texts can be scored too.
};

struct evq_native_scorer_text {
    const char *text; // NULL: there are ids.
    int32_t *ids;
    size_t count; // Bytes of the text, or number of ids.
};

struct evq_native_score {
    double logprob; // In nats.
    bool greedy;    // Every scored token is the most likely one.
};

/* native and report (its progress() alone) are borrowed. config is too: the base of an adapter must
 * lie beneath one of its roots. EVQ_E_NOMEM. */
enum evq_status evq_native_scorer_new(struct evq_native *native, const struct evq_config *config,
                                      const struct evq_eval_report *report,
                                      struct evq_native_scorer **ret_scorer,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_native_scorer_free(struct evq_native_scorer *scorer); // Accepts NULL.

/*
 * Opens the checkpoint at path instead of the present one and drops waiting requests. The weights
 * are read when the first request is scored.
 * - variant: which weights; NULL: regular.
 * - how: model options, the options `compute` and `length` of a task over tokens, and the data keys
 *   `tokenizer` and `prefix`.
 * Both are borrowed until the next load. Returns the errors of evq_native_eval(); then no
 * checkpoint is loaded.
 */
enum evq_status evq_native_scorer_load(struct evq_native_scorer *scorer, const char *path,
                                       const char *variant, const struct evq_task_config *how,
                                       struct evq_native_scorer_model *ret_model,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Adds texts that wait for evq_native_scorer_run(): continuations of a context, or whole texts if
 * context is NULL. All waiting texts are of one kind. EVQ_E_INVALID, EVQ_E_UNSUPPORTED (text, but
 * there is no tokenizer), EVQ_E_LIMIT, EVQ_E_NOMEM: nothing waits any more.
 */
enum evq_status evq_native_scorer_add(struct evq_native_scorer *scorer,
                                      const struct evq_native_scorer_text *context,
                                      const struct evq_native_scorer_text *texts, int32_t count,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Scores the waiting texts, the longest first. *ret_scores has one entry for each in the order of
 * the calls, and is valid until the next call. Afterwards nothing waits. Returns the errors of
 * evq_native_eval(). */
enum evq_status evq_native_scorer_run(struct evq_native_scorer *scorer,
                                      const struct evq_native_score **ret_scores, size_t *ret_count,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
