/*
 * Results where a client of LMMS-Eval looks for them: a file OUTPUT/TIME_results.json in the layout
 * of lm-eval, written by the evaluator, or here from what the queue holds. Any thread.
 */
#ifndef EVQ_GATEWAY_LMMS_RESULT_H
#define EVQ_GATEWAY_LMMS_RESULT_H

#include <jansson.h>

#include "shared/queue/result.h"

struct evq_lmms_output {
    const char *directory; // Of the files.
    const char *job;       // Id: the file of another job is not taken for this one's.
    const char *variant;
    const char *suffix; // Put behind the names of tasks; "".
    const char *model;  // For the file.
};

/* {"results": path or null, "samples": [paths], "metrics": {TASK: {METRIC: value}}, "variant",
 * "job"}; with "note" why there is no file. results: count of this job. NULL: out of memory. */
json_t *evq_lmms_result(const struct evq_lmms_output *output, struct evq_result *const *results,
                        size_t count);

#endif
