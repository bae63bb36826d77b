/* Measures how well a language model predicts text: token, word and byte perplexity of documents,
 * and the eval_loss of a Trainer under its own name. */
#include <math.h>
#include <string.h>

#include "worker/tasks/task.h"
#include "worker/tasks/task_options.h"
#include "worker/tasks/window_modes.h"

enum { SUM_N, SUM_TOKENS, SUM_WORDS, SUM_BYTES, SUM_NAN, SUM_LOSS, SUM_BATCH_LOSS, SUM_COUNT };
_Static_assert(SUM_COUNT <= EVQ_TASK_SUMS_MAX, "EVQ_TASK_SUMS_MAX is too small");

/* n counts documents, or a Trainer's samples. batch_loss adds up, for each sample, the mean loss of
 * its batch. */
static const struct evq_task_sum_name sum_names[SUM_COUNT] = {
    {"n", true},          {"tokens", true}, {"words", true},      {"bytes", true},
    {"nan_tokens", true}, {"loss", false},  {"batch_loss", false}};

static const char *const option_keys[] = {"mode",    "length",  "stride",        "batch_size",
                                          "samples", "compute", "metric_prefix", NULL};

enum mode { MODE_ROLLING, MODE_STRIDED, MODE_BLOCKS, MODE_TRAINER, MODE_COUNT };
static const char *const mode_names[MODE_COUNT] = {"rolling", "strided", "blocks", "trainer"};

struct settings {
    enum mode mode;
    bool joined;    // A Trainer's samples are blocks of all documents joined together.
    int64_t stride; // 0: half of the length.
    int64_t batch_size;
};

static const char *option(const struct evq_task_config *config, const char *key,
                          const char *fallback)
{
    return evq_pair_get(config->options, config->option_count, key, fallback);
}

/* Refuses options that mean nothing in the chosen mode. */
static enum evq_status check_mode(const struct evq_task_config *config,
                                  const struct settings *settings, struct evq_error *err)
{
    static const char *const of_mode[][2] = {
        {"stride", "strided"}, {"batch_size", "trainer"}, {"samples", "trainer"}};

    for (size_t i = 0; i < sizeof(of_mode) / sizeof(of_mode[0]); i++) {
        if (option(config, of_mode[i][0], NULL) != NULL &&
            strcmp(mode_names[settings->mode], of_mode[i][1]) != 0) {
            return evq_error_set(err, EVQ_E_INVALID, "perplexity: %s is for mode %s, not for %s",
                                 of_mode[i][0], of_mode[i][1], mode_names[settings->mode]);
        }
    }
    return EVQ_OK;
}

static enum evq_status read_settings(const struct evq_task_config *config,
                                     struct settings *settings, struct evq_error *err)
{
    static const char *const samples[] = {"documents", "blocks"};
    const char *format = evq_pair_get(config->data, config->data_count, "format", "");
    const char *word = option(config, "mode", strcmp(format, "tokens") == 0 ? "blocks" : "rolling");
    const char *sample = option(config, "samples", "blocks");

    *settings = (struct settings){.mode = MODE_COUNT};
    for (size_t i = 0; i < MODE_COUNT; i++) {
        settings->mode = strcmp(word, mode_names[i]) == 0 ? (enum mode)i : settings->mode;
    }
    if (settings->mode == MODE_COUNT) {
        return evq_task_options_unknown("perplexity: mode", word, mode_names, MODE_COUNT, err);
    }
    settings->joined = strcmp(sample, "blocks") == 0;
    if (!settings->joined && strcmp(sample, "documents") != 0) {
        return evq_task_options_unknown("perplexity: samples", sample, samples, 2, err);
    }
    enum evq_status status = check_mode(config, settings, err);
    if (status == EVQ_OK) {
        status = evq_task_options_integer(config->options, config->option_count, "stride",
                                          "perplexity", 1, INT32_MAX, 0, &settings->stride, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_task_options_integer(config->options, config->option_count, "batch_size",
                                     "perplexity", 1, INT32_MAX, 8, &settings->batch_size, err);
    }
    return status;
}

static enum evq_status perplexity_head(const struct evq_task_config *config,
                                       struct evq_op *ret_head, struct evq_error *err)
{
    struct settings settings;
    const enum evq_status status = read_settings(config, &settings, err);

    return status == EVQ_OK ? evq_task_score_head(config, ret_head, err) : status;
}

static enum evq_status perplexity_windows(struct evq_windows *windows, struct evq_error *err)
{
    struct settings settings;
    const enum evq_status status = read_settings(windows->config, &settings, err);

    if (status != EVQ_OK) {
        return status;
    }
    switch (settings.mode) {
    case MODE_ROLLING:
        return evq_window_modes_rolling(windows, err);
    case MODE_STRIDED:
        return evq_window_modes_strided(
            windows, settings.stride > 0 ? (int32_t)settings.stride : (windows->length_max + 1) / 2,
            err);
    case MODE_BLOCKS:
        return evq_window_modes_blocks(windows, err);
    default:
        return settings.joined
                   ? evq_window_modes_joined(windows, (int32_t)settings.batch_size, err)
                   : evq_window_modes_documents(windows, (int32_t)settings.batch_size, err);
    }
}

/* Adds whole batches: the number of samples times the mean loss of their tokens. */
static void add_batches(struct evq_task_sum *sums, const struct evq_windows *windows,
                        const struct settings *settings)
{
    const int64_t samples = evq_window_modes_samples(windows, settings->joined);
    int64_t next = 0;

    for (int64_t i = 0; i < windows->count; i = next) {
        const int64_t batch = windows->items[i].group;
        const int64_t left = samples - batch * settings->batch_size;
        const int64_t size = left < settings->batch_size ? left : settings->batch_size;
        double loss = 0.0;
        int64_t tokens = 0;
        for (next = i; next < windows->count && windows->items[next].group == batch; next++) {
            loss += windows->results[next].loss;
            tokens += windows->items[next].scored;
        }
        sums[SUM_N].count += size;
        evq_task_sum_add(&sums[SUM_BATCH_LOSS], (double)size * (loss / (double)tokens));
    }
}

static void add_documents(struct evq_task_sum *sums, const struct evq_windows *windows)
{
    for (size_t i = 0; i < windows->corpus->passage_count; i++) {
        if (evq_windows_own(windows, (int64_t)i)) {
            sums[SUM_N].count++;
            sums[SUM_WORDS].count += windows->corpus->passages[i].words;
            sums[SUM_BYTES].count += windows->corpus->passages[i].bytes;
        }
    }
}

static void perplexity_add(struct evq_task_sum *sums, const struct evq_windows *windows)
{
    struct settings settings;

    if (read_settings(windows->config, &settings, NULL) != EVQ_OK) {
        return; // The options were read before, otherwise there would be no windows.
    }
    for (int64_t i = 0; i < windows->count; i++) {
        sums[SUM_TOKENS].count += windows->items[i].scored;
        sums[SUM_NAN].count += windows->results[i].nans;
        evq_task_sum_add(&sums[SUM_LOSS], windows->results[i].loss);
    }
    if (settings.mode == MODE_TRAINER) {
        add_batches(sums, windows, &settings);
    } else {
        add_documents(sums, windows);
    }
}

static double count_of(const struct evq_result *result, const char *name)
{
    return (double)evq_task_sum_of(result, name)->count;
}

static enum evq_status perplexity_metrics(const struct evq_task_config *config,
                                          const struct evq_result *result,
                                          struct evq_task_metrics *metrics, struct evq_error *err)
{
    const double tokens = count_of(result, "tokens");
    const double words = count_of(result, "words");
    const double bytes = count_of(result, "bytes");
    const double nans = count_of(result, "nan_tokens");
    const double loss = evq_task_sum_of(result, "loss")->value;
    struct settings settings;

    const enum evq_status status = read_settings(config, &settings, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (tokens < 1.0) {
        return evq_error_set(err, EVQ_E_INVALID, "the data give no token to predict");
    }
    evq_task_metric_add(metrics, "loss", loss / tokens, 0, (double)NAN);
    evq_task_metric_add(metrics, "perplexity", exp(loss / tokens), 0, (double)NAN);
    if (settings.mode == MODE_TRAINER) {
        evq_task_metric_add(metrics, "eval_loss",
                            evq_task_sum_of(result, "batch_loss")->value / count_of(result, "n"), 0,
                            (double)NAN);
    }
    // The harness's metrics refer to whole documents in which every token is predicted, and to
    // text, not to tokens.
    if (settings.mode == MODE_ROLLING && bytes > 0.0) {
        evq_task_metric_add(metrics, "word_perplexity", exp(loss / words), 0, (double)NAN);
        evq_task_metric_add(metrics, "byte_perplexity", exp(loss / bytes), 0, (double)NAN);
        evq_task_metric_add(metrics, "bits_per_byte", loss / bytes / log(2.0), 0, (double)NAN);
    }
    if (nans > 0.0) {
        evq_task_metric_add(metrics, "nan_tokens", nans, -1, (double)NAN);
    }
    return EVQ_OK;
}

/* A sample is a window, because a document may be the whole of the data. */
static void perplexity_keep(const struct evq_windows *windows, int64_t window,
                            const struct evq_item *item, struct evq_sample *sample,
                            struct evq_task_texts *texts)
{
    const double loss = windows->results[window].loss;
    const int32_t scored = windows->items[window].scored;

    (void)item, (void)texts;
    evq_task_score_add(sample, "loss", loss / scored);
    sample->logprob = -loss;
    sample->tokens = scored;
}

static const struct evq_task_tokens perplexity_tokens = {.kind = EVQ_CORPUS_DOCUMENTS,
                                                         .windows = perplexity_windows,
                                                         .add = perplexity_add,
                                                         .keep = perplexity_keep,
                                                         .weighted = "loss"};

const struct evq_task evq_task_perplexity = {
    .name = "perplexity",
    .options = option_keys,
    .sums = sum_names,
    .sum_count = SUM_COUNT,
    .head = perplexity_head,
    .tokens = &perplexity_tokens,
    .metrics = perplexity_metrics,
};
