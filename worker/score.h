/*
 * `evalq-worker score`: answers requests for log-likelihoods on standard input, without Redis.
 * evalq's model for lm-evaluation-harness starts it (producer/python/evalq/lm_eval_model.py).
 *
 * Each request is a JSON object on one line of at most 64 MiB:
 *
 *   {"load": PATH, "variant": TEXT, "model": {}, "data": {}, "options": {}}   opens a checkpoint;
 *       the maps are those of a task, with strings as values: data has `tokenizer` and `prefix`,
 *       options `compute` and `length`; only PATH is required
 *   {"context": TEXT, "texts": [TEXT, ...]}      continuations of a context; they wait, and there
 *       is no answer
 *   {"texts": [TEXT, ...]}                       the same for whole texts
 *   {"score": true}                              scores what waits
 *
 * Instead of a TEXT there can be a list of token ids. Each answer is a line, too:
 *
 *   {"loaded": PATH, "family": TEXT, "vocabulary": N, "context": N, "compute": TEXT,
 *    "device": TEXT, "no_tokenizer": TEXT}
 *   {"done": N, "total": N, "doing": TEXT}                   any number of times before scores:
 *       bytes while weights are loaded, then tokens
 *   {"scores": [[LOGPROB, GREEDY], ...]}                     one for each text
 *   {"error": TEXT}                                          instead of any other answer
 *
 * If a waiting request is refused, the answer to the next `score` says why, and nothing is scored.
 * A line that is not a request ends the program with a message and exit code 9. The end of standard
 * input ends it with exit code 0.
 */
#ifndef EVQ_WORKER_SCORE_H
#define EVQ_WORKER_SCORE_H

#include "worker/options.h"

/* Returns the exit code. Errors that end the program are printed on standard error. */
enum evq_exit evq_score_main(const struct evq_options *options);

#endif
