/* Counts how often the most likely class is the label, and how often the label is among the top_k
 * most likely classes, and adds up the cross-entropy. The items are samples or texts. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "worker/tasks/task.h"
#include "worker/tasks/task_options.h"

#define TOP_K_MAX 1000000

enum { SUM_N, SUM_CORRECT, SUM_TOP_K, SUM_NAN, SUM_LOSS, SUM_COUNT };
_Static_assert(SUM_COUNT <= EVQ_TASK_SUMS_MAX, "EVQ_TASK_SUMS_MAX is too small");

static const struct evq_task_sum_name sum_names[SUM_COUNT] = {{"n", true},
                                                              {"correct", true},
                                                              {"correct_top_k", true},
                                                              {"nan_samples", true},
                                                              {"loss", false}};

static const char *const option_keys[] = {"top_k", "metric_prefix", NULL};
static const char *const text_option_keys[] = {"top_k", "compute", "metric_prefix", NULL};

static enum evq_status read_top_k(const struct evq_task_config *config, int64_t *ret_top_k,
                                  struct evq_error *err)
{
    return evq_task_options_integer(config->options, config->option_count, "top_k",
                                    "classification", 1, TOP_K_MAX, 0, ret_top_k, err);
}

static enum evq_status classification_head(const struct evq_task_config *config,
                                           struct evq_op *ret_head, struct evq_error *err)
{
    int64_t top_k = 0;
    const enum evq_status status = read_top_k(config, &top_k, err);

    if (status == EVQ_OK) {
        *ret_head = (struct evq_op){.kind = EVQ_OP_CROSS_ENTROPY, .top_k = (int32_t)top_k};
    }
    return status;
}

static enum evq_status classification_check(const struct evq_dataset *dataset, int32_t outputs,
                                            struct evq_error *err)
{
    if (outputs < 2) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the model has %d output, classification needs at least 2",
                             (int)outputs);
    }
    return evq_dataset_check_labels(dataset, outputs, err);
}

static void classification_add(struct evq_task_sum *sums, const struct evq_row_result *rows,
                               int32_t row_count, int32_t columns)
{
    (void)columns;
    for (int32_t i = 0; i < row_count; i++) {
        sums[SUM_CORRECT].count += rows[i].correct;
        sums[SUM_TOP_K].count += rows[i].in_top_k;
        sums[SUM_NAN].count += isnan(rows[i].loss) != 0;
        evq_task_sum_add(&sums[SUM_LOSS], rows[i].loss);
    }
    sums[SUM_N].count += row_count;
}

static enum evq_status classification_metrics(const struct evq_task_config *config,
                                              const struct evq_result *result,
                                              struct evq_task_metrics *metrics,
                                              struct evq_error *err)
{
    const int64_t n = evq_task_sum_of(result, "n")->count;
    const int64_t correct = evq_task_sum_of(result, "correct")->count;
    const int64_t in_top_k = evq_task_sum_of(result, "correct_top_k")->count;
    const int64_t nan_samples = evq_task_sum_of(result, "nan_samples")->count;
    int64_t top_k = 0;

    const enum evq_status status = read_top_k(config, &top_k, err);
    if (status != EVQ_OK) {
        return status;
    }
    char *top_name = evq_arena_printf(result->arena, "top%" PRId64 "_accuracy", top_k);
    if (top_name == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "metrics of a result");
    }
    evq_task_metric_add_share(metrics, "accuracy", correct, n, nan_samples);
    evq_task_metric_add(metrics, "cross_entropy",
                        evq_task_sum_of(result, "loss")->value / (double)n, 0, (double)NAN);
    if (top_k > 0) {
        evq_task_metric_add_share(metrics, top_name, in_top_k, n, nan_samples);
    }
    if (nan_samples > 0) {
        evq_task_metric_add(metrics, "nan_samples", (double)nan_samples, -1, (double)NAN);
    }
    return EVQ_OK;
}

static void classification_keep(const struct evq_task_config *config,
                                const struct evq_row_result *row, int32_t label, int32_t columns,
                                struct evq_sample *sample, struct evq_task_texts *texts)
{
    int64_t top_k = 0;

    (void)columns;
    evq_task_score_add(sample, "accuracy", row->correct ? 1.0 : 0.0);
    evq_task_score_add(sample, "cross_entropy", row->loss);
    // The options were read before, otherwise there would be no rows.
    if (read_top_k(config, &top_k, NULL) == EVQ_OK && top_k > 0) {
        evq_task_score_add(sample, "top_k_accuracy", row->in_top_k ? 1.0 : 0.0);
    }
    evq_task_answers(sample, texts, row->predicted, label);
}

static enum evq_status text_head(const struct evq_task_config *config, struct evq_op *ret_head,
                                 struct evq_error *err)
{
    struct evq_token_options options;
    const enum evq_status status = evq_task_token_options(config, &options, err);

    return status == EVQ_OK ? classification_head(config, ret_head, err) : status;
}

static struct evq_row_result row_of(const struct evq_windows *windows, int64_t window)
{
    const struct evq_window_result *result = &windows->results[window];

    return (struct evq_row_result){.loss = result->loss,
                                   .predicted = result->predicted,
                                   .correct = result->greedy > 0,
                                   .in_top_k = result->in_top_k};
}

static void text_add(struct evq_task_sum *sums, const struct evq_windows *windows)
{
    for (int64_t i = 0; i < windows->count; i++) {
        const struct evq_row_result row = row_of(windows, i);
        classification_add(sums, &row, 1, 0);
    }
}

static void text_keep(const struct evq_windows *windows, int64_t window,
                      const struct evq_item *item, struct evq_sample *sample,
                      struct evq_task_texts *texts)
{
    const struct evq_row_result row = row_of(windows, window);

    classification_keep(windows->config, &row, item->gold, 0, sample, texts);
    sample->tokens = windows->items[window].length;
}

static const struct evq_task_tokens text_tokens = {.kind = EVQ_CORPUS_LABELS,
                                                   .windows = evq_windows_of_texts,
                                                   .add = text_add,
                                                   .keep = text_keep,
                                                   .weighted = ""};

const struct evq_task evq_task_text_classification = {
    .name = "text_classification",
    .options = text_option_keys,
    .sums = sum_names,
    .sum_count = SUM_COUNT,
    .head = text_head,
    .tokens = &text_tokens,
    .metrics = classification_metrics,
};

static const struct evq_task_samples classification_samples = {.answers = EVQ_ANSWER_LABELS,
                                                               .check = classification_check,
                                                               .add = classification_add,
                                                               .keep = classification_keep};

const struct evq_task evq_task_classification = {
    .name = "classification",
    .options = option_keys,
    .sums = sum_names,
    .sum_count = SUM_COUNT,
    .head = classification_head,
    .samples = &classification_samples,
    .metrics = classification_metrics,
};
