#include "worker/tasks/task.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "worker/tasks/task_options.h"

enum evq_status evq_task_token_options(const struct evq_task_config *config,
                                       struct evq_token_options *ret_options, struct evq_error *err)
{
    static const char *const names[] = {"auto", "fp32", "bf16"};
    const char *word = evq_pair_get(config->options, config->option_count, "compute", names[0]);
    size_t at = 0;
    int64_t length = 0;

    while (at < sizeof(names) / sizeof(names[0]) && strcmp(word, names[at]) != 0) {
        at++;
    }
    if (at == sizeof(names) / sizeof(names[0])) {
        return evq_task_options_unknown("compute", word, names, at, err);
    }
    const enum evq_status status =
        evq_task_options_integer(config->options, config->option_count, "length", config->type, 1,
                                 EVQ_TASK_LENGTH_MAX, 0, &length, err);
    if (status == EVQ_OK) {
        *ret_options =
            (struct evq_token_options){.length = (int32_t)length,
                                       .compute_auto = at == 0,
                                       .compute = at == 2 ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32};
    }
    return status;
}

enum evq_status evq_task_score_head(const struct evq_task_config *config, struct evq_op *ret_head,
                                    struct evq_error *err)
{
    struct evq_token_options options;

    const enum evq_status status = evq_task_token_options(config, &options, err);
    if (status == EVQ_OK) {
        *ret_head = (struct evq_op){.kind = EVQ_OP_SCORE};
    }
    return status;
}

void evq_task_score_add(struct evq_sample *sample, const char *name, double value)
{
    sample->scores[sample->score_count++] = (struct evq_sample_score){name, value};
}

void evq_task_answers(struct evq_sample *sample, struct evq_task_texts *texts, int32_t output,
                      int32_t target)
{
    texts->output[evq_decimal_integer(output, texts->output)] = '\0';
    texts->target[evq_decimal_integer(target, texts->target)] = '\0';
    sample->output = texts->output;
    sample->target = texts->target;
}

void evq_task_sum_add(struct evq_task_sum *sum, double value)
{
    const double total = sum->value + value;

    if (fabs(sum->value) >= fabs(value)) {
        sum->rest += (sum->value - total) + value;
    } else {
        sum->rest += (value - total) + sum->value;
    }
    sum->value = total;
}

enum evq_status evq_task_store(const struct evq_task *task, const struct evq_task_sum *sums,
                               struct evq_result *result, struct evq_error *err)
{
    struct evq_sum *stored = evq_arena_array(result->arena, task->sum_count, sizeof(*stored));

    if (stored == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sums of a result");
    }
    for (size_t i = 0; i < task->sum_count; i++) {
        stored[i].name = task->sums[i].name;
        stored[i].is_count = task->sums[i].is_count;
        stored[i].count = sums[i].count;
        // An infinite sum has no rest; infinity minus infinity would turn it into a NaN.
        stored[i].value = isfinite(sums[i].value) ? sums[i].value + sums[i].rest : sums[i].value;
    }
    result->sums = stored;
    result->sum_count = task->sum_count;
    return EVQ_OK;
}

const struct evq_sum *evq_task_sum_of(const struct evq_result *result, const char *name)
{
    for (size_t i = 0; i < result->sum_count; i++) {
        if (strcmp(result->sums[i].name, name) == 0) {
            return &result->sums[i];
        }
    }
    return NULL;
}

void evq_task_metric_add(struct evq_task_metrics *metrics, const char *name, double value,
                         int32_t higher_is_better, double std_error)
{
    if (metrics->count < EVQ_TASK_METRICS_MAX) {
        metrics->items[metrics->count] = (struct evq_metric){.name = name,
                                                             .value = value,
                                                             .higher_is_better = higher_is_better,
                                                             .std_error = std_error};
    }
    metrics->count++; // evq_task_metrics() refuses too many.
}

void evq_task_metric_add_share(struct evq_task_metrics *metrics, const char *name, int64_t hits,
                               int64_t n, int64_t nans)
{
    const double share = nans > 0 ? (double)NAN : (double)hits / (double)n;

    evq_task_metric_add(metrics, name, share, 1,
                        n > 1 ? sqrt(share * (1.0 - share) / (double)(n - 1)) : (double)NAN);
}

enum evq_status evq_task_metrics(const struct evq_task *task, const struct evq_task_config *config,
                                 struct evq_result *result, struct evq_error *err)
{
    for (size_t i = 0; i < task->sum_count; i++) {
        const struct evq_sum *sum = evq_task_sum_of(result, task->sums[i].name);
        if (sum == NULL || sum->is_count != task->sums[i].is_count ||
            (sum->is_count && sum->count < 0)) {
            return evq_error_set(err, EVQ_E_INVALID, "the sums of task '%s' lack '%s' as a %s",
                                 config->name, task->sums[i].name,
                                 task->sums[i].is_count ? "count" : "number");
        }
    }
    assert(strcmp(task->sums[0].name, "n") == 0);
    const int64_t n = evq_task_sum_of(result, "n")->count;
    if (n == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "task '%s' saw no samples", config->name);
    }
    struct evq_task_metrics metrics = {
        .items = evq_arena_array(result->arena, EVQ_TASK_METRICS_MAX, sizeof(*metrics.items))};
    if (metrics.items == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "metrics of a result");
    }
    const enum evq_status status = task->metrics(config, result, &metrics, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (metrics.count > EVQ_TASK_METRICS_MAX) {
        return evq_error_set(err, EVQ_E_BUG, "task '%s' has %zu metrics, expected at most %d",
                             config->name, metrics.count, EVQ_TASK_METRICS_MAX);
    }
    result->n = n;
    result->metrics = metrics.items;
    result->metric_count = metrics.count;
    return EVQ_OK;
}
