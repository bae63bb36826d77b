/*
 * Provides the results file that clients of LMMS-Eval read: OUTPUT/TIME_results.json in the layout
 * of lm-eval. The evaluator writes it; if not, it is written here from the results in the queue.
 * Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_LMMS_LMMS_RESULT_H
#define EVQ_PRODUCER_GATEWAY_LMMS_LMMS_RESULT_H

#include <jansson.h>

#include "shared/queue/result.h"

struct evq_lmms_output {
    const char *directory; // The directory of the files.
    const char *job;       // The id of the job. Files of other jobs are ignored.
    const char *variant;
    const char *suffix; // Appended to the names of tasks.
    const char *model;  // The name of the model in the file.
};

/* {"results": path or null, "samples": [paths], "metrics": {TASK: {METRIC: value}}, "variant",
 * "job"}; with "note" why there is no file. results: count of this job. NULL: out of memory. */
json_t *evq_lmms_result(const struct evq_lmms_output *output, struct evq_result *const *results,
                        size_t count);

#endif
