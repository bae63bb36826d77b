/* Scores how likely a text is after its context, as for LAMBADA. As in lm-evaluation-harness, `acc`
 * counts the texts whose every token was the most likely one, and `perplexity` is per text, not per
 * token. */
#include <math.h>

#include "worker/tasks/task.h"

enum { SUM_N, SUM_GREEDY, SUM_TOKENS, SUM_NAN, SUM_LOSS, SUM_COUNT };
_Static_assert(SUM_COUNT <= EVQ_TASK_SUMS_MAX, "EVQ_TASK_SUMS_MAX is too small");

static const struct evq_task_sum_name sum_names[SUM_COUNT] = {
    {"n", true}, {"greedy", true}, {"tokens", true}, {"nan_items", true}, {"loss", false}};

static const char *const option_keys[] = {"length", "compute", "metric_prefix", NULL};

static void loglikelihood_add(struct evq_task_sum *sums, const struct evq_windows *windows)
{
    for (int64_t i = 0; i < windows->count; i++) {
        const struct evq_window_result *result = &windows->results[i];
        sums[SUM_N].count++;
        sums[SUM_GREEDY].count += result->greedy == windows->items[i].scored;
        sums[SUM_TOKENS].count += windows->items[i].scored;
        sums[SUM_NAN].count += result->nans > 0;
        evq_task_sum_add(&sums[SUM_LOSS], result->loss);
    }
}

static enum evq_status loglikelihood_metrics(const struct evq_task_config *config,
                                             const struct evq_result *result,
                                             struct evq_task_metrics *metrics,
                                             struct evq_error *err)
{
    const int64_t n = evq_task_sum_of(result, "n")->count;
    const int64_t greedy = evq_task_sum_of(result, "greedy")->count;
    const int64_t nans = evq_task_sum_of(result, "nan_items")->count;
    const double loss = evq_task_sum_of(result, "loss")->value / (double)n;

    (void)config, (void)err;
    evq_task_metric_add_share(metrics, "acc", greedy, n, nans);
    evq_task_metric_add(metrics, "perplexity", exp(loss), 0, (double)NAN);
    evq_task_metric_add(metrics, "loglikelihood", -loss, 1, (double)NAN);
    if (nans > 0) {
        evq_task_metric_add(metrics, "nan_items", (double)nans, -1, (double)NAN);
    }
    return EVQ_OK;
}

static void loglikelihood_keep(const struct evq_windows *windows, int64_t window,
                               const struct evq_item *item, struct evq_sample *sample,
                               struct evq_task_texts *texts)
{
    const struct evq_window_result *result = &windows->results[window];
    const int32_t scored = windows->items[window].scored;

    (void)item, (void)texts;
    evq_task_score_add(sample, "acc", result->greedy == scored ? 1.0 : 0.0);
    evq_task_score_add(sample, "loglikelihood", -result->loss);
    sample->logprob = -result->loss;
    sample->tokens = scored;
}

static const struct evq_task_tokens loglikelihood_tokens = {.kind = EVQ_CORPUS_TARGETS,
                                                            .windows = evq_windows_of_items,
                                                            .add = loglikelihood_add,
                                                            .keep = loglikelihood_keep,
                                                            .weighted = ""};

const struct evq_task evq_task_loglikelihood = {
    .name = "loglikelihood",
    .options = option_keys,
    .sums = sum_names,
    .sum_count = SUM_COUNT,
    .head = evq_task_score_head,
    .tokens = &loglikelihood_tokens,
    .metrics = loglikelihood_metrics,
};
