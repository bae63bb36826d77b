/*
 * The results directory of lm-evaluation-harness and lmms-eval: DIR/MODEL/results_TIME.json or
 * DIR/MODEL/TIME_results.json. Any thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_HARNESS_RESULTS_H
#define EVQ_WORKER_EVALUATORS_HARNESS_RESULTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "shared/base/error.h"

#define EVQ_HARNESS_NAME_BYTES 256

/* Finds the newest regular file beneath path whose name is wanted. Links are not followed. The
 * caller closes *ret_dir_fd, its directory. EVQ_E_NOT_FOUND. */
enum evq_status evq_harness_file_find(const char *path,
                                      bool (*wanted)(const char *name, const void *context),
                                      const void *context, int *ret_dir_fd,
                                      char ret_name[EVQ_HARNESS_NAME_BYTES],
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Reads the newest results file beneath path as {TASK: {METRIC: number, ..., "n": samples}},
 * without aliases and "N/A" values. The caller decrefs *ret_tasks. EVQ_E_NOT_FOUND: there is no
 * such file.
 */
enum evq_status evq_harness_results_read(const char *path, size_t bytes_max, json_t **ret_tasks,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#endif
