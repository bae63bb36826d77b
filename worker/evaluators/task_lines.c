#include "worker/evaluators/task_lines.h"

#include <string.h>

enum evq_status evq_task_lines_find(const json_t *line, const struct evq_eval_request *request,
                                    size_t *ret_number, struct evq_error *err)
{
    const char *task = json_string_value(json_object_get(line, "task"));
    size_t number = 0;

    while (number < request->suite->task_count &&
           (task == NULL || strcmp(request->suite->tasks[number].name, task) != 0)) {
        number++;
    }
    if (number == request->suite->task_count) {
        char shown[64];
        task = task != NULL ? task : "";
        return evq_error_set(
            err, EVQ_E_CORRUPT, "a %s message has the \"task\" '%s', expected one of suite '%s'",
            json_string_value(json_object_get(line, "type")),
            evq_error_escape(task, strlen(task), shown, sizeof(shown)), request->suite->name);
    }
    *ret_number = number;
    return EVQ_OK;
}

enum evq_status evq_task_lines_samples(const json_t *line, const struct evq_eval_request *request,
                                       struct evq_sample_store **samples, struct evq_error *err)
{
    const json_t *items = json_object_get(line, "items");
    size_t number = 0;
    size_t i;
    json_t *item;

    const enum evq_status status = evq_task_lines_find(line, request, &number, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *task = request->suite->tasks[number].name;
    if (!json_is_array(items)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "a samples message of task '%s' has no \"items\", expected a list",
                             task);
    }
    if (strcmp(evq_sample_store_task(*samples), task) != 0) {
        evq_sample_store_free(*samples);
        *samples = evq_sample_store_new(request, task, "", "");
    }
    // jansson can iterate over a const array only after a cast. Nothing is changed.
    json_array_foreach((json_t *)(uintptr_t)items, i, item)
    {
        evq_sample_store_add_json(*samples, item);
    }
    return EVQ_OK;
}
