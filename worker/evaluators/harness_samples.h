/*
 * Reads the samples that lm-evaluation-harness and lmms-eval write with --log_samples. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_HARNESS_SAMPLES_H
#define EVQ_WORKER_EVALUATORS_HARNESS_SAMPLES_H

#include "shared/queue/result.h"
#include "worker/evaluators/sample_store.h"

/*
 * Adds the items of the newest file of the task beneath `results`. form: "lm-eval" or "lmms-eval".
 * cluster: "", or the field of an item's doc that names its cluster.
 * task: the harness's name of it. result: of the task; the scores get the names of its metrics. A
 * task with several filters has its items once for each, and the first filter counts. Whatever is
 * wrong is a fault of the store.
 */
void evq_harness_samples_add(struct evq_sample_store *store, const char *results, const char *task,
                             const char *form, const char *cluster,
                             const struct evq_result *result);

#endif
