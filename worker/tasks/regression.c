/* Adds up the squared and absolute errors between the model's outputs and the targets. */
#include <math.h>

#include "worker/tasks/task.h"

enum { SUM_N, SUM_VALUES, SUM_SQUARED, SUM_ABSOLUTE, SUM_COUNT };
_Static_assert(SUM_COUNT <= EVQ_TASK_SUMS_MAX, "EVQ_TASK_SUMS_MAX is too small");

static const struct evq_task_sum_name sum_names[SUM_COUNT] = {
    {"n", true}, {"values", true}, {"squared_error", false}, {"absolute_error", false}};

static const char *const option_keys[] = {"metric_prefix", NULL};

static enum evq_status regression_head(const struct evq_task_config *config,
                                       struct evq_op *ret_head, struct evq_error *err)
{
    (void)config; // This task has no options for the head.
    (void)err;
    *ret_head = (struct evq_op){.kind = EVQ_OP_SQUARED_ERROR};
    return EVQ_OK;
}

static enum evq_status regression_check(const struct evq_dataset *dataset, int32_t outputs,
                                        struct evq_error *err)
{
    if (dataset->answer_columns != outputs) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' holds %d targets a sample, but the model has %d outputs",
                             dataset->answers_name, (int)dataset->answer_columns, (int)outputs);
    }
    return EVQ_OK;
}

static void regression_add(struct evq_task_sum *sums, const struct evq_row_result *rows,
                           int32_t row_count, int32_t columns)
{
    for (int32_t i = 0; i < row_count; i++) {
        evq_task_sum_add(&sums[SUM_SQUARED], rows[i].loss);
        evq_task_sum_add(&sums[SUM_ABSOLUTE], rows[i].abs_loss);
    }
    sums[SUM_N].count += row_count;
    sums[SUM_VALUES].count += (int64_t)row_count * columns;
}

static enum evq_status regression_metrics(const struct evq_task_config *config,
                                          const struct evq_result *result,
                                          struct evq_task_metrics *metrics, struct evq_error *err)
{
    const double values =
        (double)evq_task_sum_of(result, "values")->count; // Every output of every sample counts.

    (void)config, (void)err;
    evq_task_metric_add(metrics, "mse", evq_task_sum_of(result, "squared_error")->value / values, 0,
                        (double)NAN);
    evq_task_metric_add(metrics, "mae", evq_task_sum_of(result, "absolute_error")->value / values,
                        0, (double)NAN);
    return EVQ_OK;
}

static void regression_keep(const struct evq_task_config *config, const struct evq_row_result *row,
                            int32_t label, int32_t columns, struct evq_sample *sample,
                            struct evq_task_texts *texts)
{
    (void)config, (void)label, (void)texts;
    evq_task_score_add(sample, "mse", row->loss / columns);
    evq_task_score_add(sample, "mae", row->abs_loss / columns);
}

static const struct evq_task_samples regression_samples = {.answers = EVQ_ANSWER_TARGETS,
                                                           .check = regression_check,
                                                           .add = regression_add,
                                                           .keep = regression_keep};

const struct evq_task evq_task_regression = {
    .name = "regression",
    .options = option_keys,
    .sums = sum_names,
    .sum_count = SUM_COUNT,
    .head = regression_head,
    .samples = &regression_samples,
    .metrics = regression_metrics,
};
