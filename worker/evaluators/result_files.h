/*
 * Reads results that programs leave in files: flat JSON at $EVALQ_RESULT, or the results directory
 * of lm-evaluation-harness or lmms-eval. docs/evaluators.md shows the formats. Any thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_RESULT_FILES_H
#define EVQ_WORKER_EVALUATORS_RESULT_FILES_H

#include <jansson.h>

#include "shared/config/config.h"
#include "shared/queue/result.h"

struct evq_results {           // The caller frees it with evq_results_free().
    struct evq_result **items; // In the order of the suite's tasks.
    size_t count;
};
void evq_results_free(struct evq_results *results); // Leaves it empty. Accepts a zeroed one.

/*
 * form "": path is a file with {METRIC: number, ...} for a suite of one task, or {TASK: {METRIC:
 * number, ...}, ...}. "n" is the number of samples, and "METRIC_stderr" the standard error of
 * METRIC. form "lm-eval" or "lmms-eval": path is a directory, and the newest results*.json or
 * *_results.json beneath it is read. Every task of the suite that is not in tasks_done must be
 * there. EVQ_E_NOT_FOUND: there is no file. EVQ_E_CORRUPT, EVQ_E_INVALID, EVQ_E_LIMIT: the message
 * says what is wrong.
 */
enum evq_status evq_result_files_read(const struct evq_suite *suite, const char *const *tasks_done,
                                      size_t task_done_count, const char *form, const char *path,
                                      struct evq_results *ret_results,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes the result of one task from one {METRIC: number, ...} object. where is used in messages.
 * The caller frees *ret_result. */
enum evq_status evq_results_task(const char *task, const json_t *metrics, const char *where,
                                 struct evq_result **ret_result,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
