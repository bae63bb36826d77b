#include "worker/evaluators/program_samples.h"

#include <stdio.h>
#include <string.h>

#include "worker/evaluators/harness_samples.h"
#include "worker/evaluators/sample_store.h"

#define PATH_BYTES 8192

void evq_program_samples_keep(const struct evq_eval_request *request, const char *form,
                              struct evq_result *result)
{
    struct evq_sample_store *store = evq_sample_store_new(request, result->task, "", "");
    const struct evq_task_config *task = evq_suite_task(request->suite, result->task);
    char path[PATH_BYTES];

    if (store == NULL) {
        return;
    }
    if (form[0] != '\0') {
        const char *source =
            task != NULL ? evq_pair_get(task->options, task->option_count, "source", result->task)
                         : result->task;
        const char *cluster =
            task != NULL ? evq_pair_get(task->options, task->option_count, "cluster", "") : "";
        (void)snprintf(path, sizeof path, "%s/results", request->scratch);
        evq_harness_samples_add(store, path, strcmp(source, "*") == 0 ? result->task : source, form,
                                cluster, result);
    } else {
        const bool several = request->suite->task_count > 1;
        (void)snprintf(path, sizeof path, "%s/samples%s%s.jsonl", request->scratch,
                       several ? "_" : "", several ? result->task : "");
        evq_sample_store_add_file(store, path);
    }
    evq_sample_store_finish(store, result);
}
