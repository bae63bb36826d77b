/*
 * What a suite measures: a loss head for the plan, sums over samples or over windows of tokens, and
 * metrics from the sums. evq_task_metrics() forms the metrics once, from the sums of all shards.
 * Each task is one file, registered in task_table.c.
 */
#ifndef EVQ_WORKER_TASKS_TASK_H
#define EVQ_WORKER_TASKS_TASK_H

#include "kernels/backend.h"
#include "shared/base/decimal.h"
#include "shared/config/config.h"
#include "shared/queue/result.h"
#include "shared/samples/sample.h"
#include "worker/datasets/dataset.h"
#include "worker/tasks/windows.h"

#define EVQ_TASK_SUMS_MAX    8         // Most sums of a task. Each task asserts that its sums fit.
#define EVQ_TASK_METRICS_MAX 8         // Most metrics of a task.
#define EVQ_TASK_LENGTH_MAX  (1 << 24) // Most tokens of a sequence.

struct evq_task_sum { // A running sum. `rest` holds the digits that the double lost.
    int64_t count;
    double value;
    double rest;
};

struct evq_task_sum_name {
    const char *name;
    bool is_count;
};

#define EVQ_TASK_TEXT_BYTES (EVQ_DECIMAL_BYTES + 1)

struct evq_task_texts { // Room for the numbers that a sample shows as text.
    char output[EVQ_TASK_TEXT_BYTES];
    char target[EVQ_TASK_TEXT_BYTES];
};

struct evq_task_samples {         // A task over samples that have one answer each.
    enum evq_answer_kind answers; // What the data set must have besides the inputs.
    /* Checks that the model's outputs and the data's answers match. */
    enum evq_status (*check)(const struct evq_dataset *dataset, int32_t outputs,
                             struct evq_error *err);
    /* columns: number of the model's outputs. */
    void (*add)(struct evq_task_sum *sums, const struct evq_row_result *rows, int32_t row_count,
                int32_t columns);
    /* Sets scores, output and target of one row's sample. label: 0 without labels. */
    void (*keep)(const struct evq_task_config *config, const struct evq_row_result *row,
                 int32_t label, int32_t columns, struct evq_sample *sample,
                 struct evq_task_texts *texts);
};

struct evq_task_tokens { // A task that scores the tokens of a corpus.
    enum evq_corpus_kind kind;
    /* Makes the windows of this shard. */
    enum evq_status (*windows)(struct evq_windows *windows, struct evq_error *err);
    /* Adds windows->results, in the order of the windows, however they were packed. */
    void (*add)(struct evq_task_sum *sums, const struct evq_windows *windows);
    /* Sets everything but the id and the cluster of one sample. window: the first window of the
     * item, or of a task over documents the window itself, and item is NULL. */
    void (*keep)(const struct evq_windows *windows, int64_t window, const struct evq_item *item,
                 struct evq_sample *sample, struct evq_task_texts *texts);
    const char *weighted; // The score that is a mean over tokens; "": none.
};

struct evq_task_metrics { // The metrics of a result while they are formed.
    struct evq_metric *items;
    size_t count;
};

struct evq_task {
    const char *name;           // The `type` in the configuration.
    const char *const *options; // Options that it knows, NULL-terminated.
    const struct evq_task_sum_name *sums;
    size_t sum_count; // At most EVQ_TASK_SUMS_MAX.
    /* Reads the task's options into the head: kind, top_k. */
    enum evq_status (*head)(const struct evq_task_config *config, struct evq_op *ret_head,
                            struct evq_error *err);
    const struct evq_task_samples *samples; // Exactly one of the two is not NULL.
    const struct evq_task_tokens *tokens;
    /* Adds the metrics that follow from result->sums. */
    enum evq_status (*metrics)(const struct evq_task_config *config,
                               const struct evq_result *result, struct evq_task_metrics *metrics,
                               struct evq_error *err);
};

extern const struct evq_task evq_task_classification;
extern const struct evq_task evq_task_text_classification;
extern const struct evq_task evq_task_regression;
extern const struct evq_task evq_task_perplexity;
extern const struct evq_task evq_task_loglikelihood;
extern const struct evq_task evq_task_multiple_choice;

/* Finds the task of a configuration. EVQ_E_INVALID names the unknown type or option. */
enum evq_status evq_task_find(const struct evq_task_config *config,
                              const struct evq_task **ret_task,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* For the tasks: adds a score to a sample, which has room. */
void evq_task_score_add(struct evq_sample *sample, const char *name, double value);
/* Sets the output and the target of a sample to the texts of these numbers. */
void evq_task_answers(struct evq_sample *sample, struct evq_task_texts *texts, int32_t output,
                      int32_t target);

/* Adds one value without losing digits. */
void evq_task_sum_add(struct evq_task_sum *sum, double value);

/* Stores the sums in a result, in its arena. EVQ_E_NOMEM. */
enum evq_status evq_task_store(const struct evq_task *task, const struct evq_task_sum *sums,
                               struct evq_result *result, struct evq_error *err) EVQ_CHECK_RESULT;

/* Forms metrics and n from result->sums. EVQ_E_INVALID: a sum is missing, or there were no samples.
 * EVQ_E_NOMEM. */
enum evq_status evq_task_metrics(const struct evq_task *task, const struct evq_task_config *config,
                                 struct evq_result *result, struct evq_error *err) EVQ_CHECK_RESULT;

/* For the tasks: finds a sum by name. It exists, because that is checked before metrics() is
 * called. */
const struct evq_sum *evq_task_sum_of(const struct evq_result *result, const char *name);
/* For the tasks over tokens: makes the scoring head, and checks `length` and `compute`.
 * EVQ_E_INVALID. */
enum evq_status evq_task_score_head(const struct evq_task_config *config, struct evq_op *ret_head,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Options of a task over tokens. */
struct evq_token_options {
    int32_t length;    // Rows of a sequence; 0: as the model has it.
    bool compute_auto; // The weights and the device decide; otherwise `compute` counts.
    enum evq_compute compute;
};
enum evq_status evq_task_token_options(const struct evq_task_config *config,
                                       struct evq_token_options *ret_options,
                                       struct evq_error *err) EVQ_CHECK_RESULT; // EVQ_E_INVALID.
/* For the tasks: adds a metric. std_error NAN: there is none. */
void evq_task_metric_add(struct evq_task_metrics *metrics, const char *name, double value,
                         int32_t higher_is_better, double std_error);
/* The same for a fraction of n where higher is better, with its standard error: the sample
 * deviation of zeros and ones divided by the root of n, as in lm-evaluation-harness; NaN for n
 * below 2. If nans of the n values are NaN, the fraction is NaN, so that a broken model is never
 * the best. */
void evq_task_metric_add_share(struct evq_task_metrics *metrics, const char *name, int64_t hits,
                               int64_t n, int64_t nans);

#endif
