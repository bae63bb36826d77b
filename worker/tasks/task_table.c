#include <string.h>

#include "worker/tasks/task.h"
#include "worker/tasks/task_options.h"

/* Every task that a suite can name. */
static const struct evq_task *const tasks[] = {
    &evq_task_classification, &evq_task_text_classification, &evq_task_regression,
    &evq_task_perplexity,     &evq_task_loglikelihood,       &evq_task_multiple_choice};
#define TASK_COUNT (sizeof(tasks) / sizeof(tasks[0]))

enum evq_status evq_task_find(const struct evq_task_config *config,
                              const struct evq_task **ret_task, struct evq_error *err)
{
    const char *names[TASK_COUNT];

    for (size_t i = 0; i < TASK_COUNT; i++) {
        names[i] = tasks[i]->name;
        if (strcmp(tasks[i]->name, config->type) == 0) {
            const enum evq_status status = evq_task_options_check(
                config->options, config->option_count, tasks[i]->options, tasks[i]->name, err);
            if (status == EVQ_OK) {
                *ret_task = tasks[i];
            }
            return status;
        }
    }
    return evq_task_options_unknown("task type", config->type, names, TASK_COUNT, err);
}
