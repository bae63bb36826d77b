/* Finds which of several texts is most likely after a context, as lm-evaluation-harness does: by
 * the sum of the tokens' log-probabilities (acc), by that sum per character (acc_norm), and per
 * byte (acc_bytes). If values are equal, the first text wins. */
#include <math.h>
#include <stdio.h>

#include "worker/tasks/task.h"

enum { SUM_N, SUM_ACC, SUM_NORM, SUM_BYTES, SUM_TOKENS, SUM_NAN, SUM_COUNT };
_Static_assert(SUM_COUNT <= EVQ_TASK_SUMS_MAX, "EVQ_TASK_SUMS_MAX is too small");

static const struct evq_task_sum_name sum_names[SUM_COUNT] = {
    {"n", true},      {"correct", true},  {"correct_norm", true}, {"correct_bytes", true},
    {"tokens", true}, {"nan_items", true}};

static const char *const option_keys[] = {"length", "compute", "metric_prefix", NULL};

enum measure { BY_SUM, BY_CHARACTERS, BY_BYTES };

/* The first passage of the item with the largest value; -1 if any value is NaN. */
static int32_t likeliest(const struct evq_windows *windows, int64_t window,
                         const struct evq_item *item, enum measure measure)
{
    const struct evq_passage *passages = windows->corpus->passages + item->first;
    double best = -(double)INFINITY;
    int32_t at = 0;

    for (int32_t p = 0; p < item->passages; p++) {
        const double over = measure == BY_SUM          ? 1.0
                            : measure == BY_CHARACTERS ? (double)passages[p].characters
                                                       : (double)passages[p].bytes;
        const double value = -windows->results[window + p].loss / over;
        if (isnan(value)) {
            return -1;
        }
        if (value > best) {
            best = value;
            at = p;
        }
    }
    return at;
}

static void multiple_choice_add(struct evq_task_sum *sums, const struct evq_windows *windows)
{
    int64_t window = 0;

    for (size_t i = 0; i < windows->corpus->item_count; i++) {
        const struct evq_item *item = &windows->corpus->items[i];
        if (!evq_windows_own(windows, (int64_t)i)) {
            continue;
        }
        const int32_t best = likeliest(windows, window, item, BY_SUM);
        sums[SUM_N].count++;
        sums[SUM_ACC].count += best == item->gold;
        sums[SUM_NORM].count += likeliest(windows, window, item, BY_CHARACTERS) == item->gold;
        sums[SUM_BYTES].count += likeliest(windows, window, item, BY_BYTES) == item->gold;
        sums[SUM_NAN].count += best < 0;
        for (int32_t p = 0; p < item->passages; p++) {
            sums[SUM_TOKENS].count += windows->items[window + p].scored;
        }
        window += item->passages;
    }
}

static enum evq_status multiple_choice_metrics(const struct evq_task_config *config,
                                               const struct evq_result *result,
                                               struct evq_task_metrics *metrics,
                                               struct evq_error *err)
{
    static const char *const names[][2] = {
        {"acc", "correct"}, {"acc_norm", "correct_norm"}, {"acc_bytes", "correct_bytes"}};
    const int64_t n = evq_task_sum_of(result, "n")->count;
    const int64_t nans = evq_task_sum_of(result, "nan_items")->count;

    (void)config, (void)err;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const int64_t hits = evq_task_sum_of(result, names[i][1])->count;
        evq_task_metric_add_share(metrics, names[i][0], hits, n, nans);
    }
    if (nans > 0) {
        evq_task_metric_add(metrics, "nan_items", (double)nans, -1, (double)NAN);
    }
    return EVQ_OK;
}

static void multiple_choice_keep(const struct evq_windows *windows, int64_t window,
                                 const struct evq_item *item, struct evq_sample *sample,
                                 struct evq_task_texts *texts)
{
    const int32_t best = likeliest(windows, window, item, BY_SUM);
    const bool norm = likeliest(windows, window, item, BY_CHARACTERS) == item->gold;
    const bool bytes = likeliest(windows, window, item, BY_BYTES) == item->gold;

    // Without a number, no choice is the best, and the samples of the task are refused.
    evq_task_score_add(sample, "acc", best < 0 ? (double)NAN : (double)(best == item->gold));
    evq_task_score_add(sample, "acc_norm", norm ? 1.0 : 0.0);
    evq_task_score_add(sample, "acc_bytes", bytes ? 1.0 : 0.0);
    evq_task_answers(sample, texts, best, item->gold);
    sample->logprob = -windows->results[window + item->gold].loss;
    sample->tokens = windows->items[window + item->gold].scored;
}

static const struct evq_task_tokens multiple_choice_tokens = {.kind = EVQ_CORPUS_CHOICES,
                                                              .windows = evq_windows_of_items,
                                                              .add = multiple_choice_add,
                                                              .keep = multiple_choice_keep,
                                                              .weighted = ""};

const struct evq_task evq_task_multiple_choice = {
    .name = "multiple_choice",
    .options = option_keys,
    .sums = sum_names,
    .sum_count = SUM_COUNT,
    .head = evq_task_score_head,
    .tokens = &multiple_choice_tokens,
    .metrics = multiple_choice_metrics,
};
