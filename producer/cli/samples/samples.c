/*
 * evalq samples: prints the samples of a task: scores, output and target of each item.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "producer/cli/samples/sample_files.h"
#include "producer/cli/samples/sample_text.h"
#include "producer/cli/verbs.h"
#include "shared/samples/samples_reader.h"

struct filter {
    bool wrong;
    bool right;
    const char *grep;   // NULL: none.
    const char *metric; // Decides what is right; NULL: the first score.
    int64_t limit;      // 0: none.
};

/* Whether an item passes. EVQ_E_INVALID: its score is neither right nor wrong. */
static enum evq_status passes(const struct filter *filter, const struct evq_sample *sample,
                              bool *ret, struct evq_error *err)
{
    const struct evq_sample_score *score =
        filter->metric != NULL ? evq_sample_score(sample, filter->metric) : &sample->scores[0];

    *ret = filter->grep == NULL ||
           (sample->output != NULL && strstr(sample->output, filter->grep) != NULL) ||
           (sample->target != NULL && strstr(sample->target, filter->grep) != NULL);
    if (!filter->wrong && !filter->right) {
        return EVQ_OK;
    }
    if (score == NULL || (score->value != 0.0 && score->value != 1.0)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "item '%s' has no score%s%s of 0 or 1, so it is neither right nor "
                             "wrong: choose another with --metric",
                             sample->id, filter->metric != NULL ? " " : "",
                             filter->metric != NULL ? filter->metric : "");
    }
    *ret = *ret && (score->value == 1.0) == filter->right;
    return EVQ_OK;
}

static void print_sample(const struct evq_cli *cli, const struct evq_sample *sample)
{
    char number[EVQ_TERMINAL_NUMBER_BYTES];

    (void)printf("%s%s%s", evq_terminal_colour(&cli->terminal, EVQ_COLOUR_BOLD), sample->id,
                 evq_terminal_colour(&cli->terminal, EVQ_COLOUR_NONE));
    for (size_t i = 0; i < sample->score_count; i++) {
        (void)printf("  %s %s", sample->scores[i].name,
                     evq_terminal_number(sample->scores[i].value, number));
    }
    if (!isnan(sample->logprob)) {
        (void)printf("  logprob %s", evq_terminal_number(sample->logprob, number));
    }
    if (sample->tokens >= 0) {
        (void)printf("  tokens %" PRId64, sample->tokens);
    }
    (void)fputc('\n', stdout);
    evq_sample_text_print(&cli->terminal, "target", sample->target);
    evq_sample_text_print(&cli->terminal, "output", sample->output);
}

static json_t *sample_json(const struct evq_sample *sample)
{
    json_t *scores = json_object();

    for (size_t i = 0; i < sample->score_count; i++) {
        (void)json_object_set_new(scores, sample->scores[i].name,
                                  json_real(sample->scores[i].value));
    }
    json_t *object =
        json_pack("{s:s, s:o, s:s?, s:s?, s:s?}", "id", sample->id, "scores", scores, "output",
                  sample->output, "target", sample->target, "cluster", sample->cluster);
    (void)json_object_set_new(object, "logprob",
                              isnan(sample->logprob) ? json_null() : json_real(sample->logprob));
    (void)json_object_set_new(object, "tokens",
                              sample->tokens < 0 ? json_null() : json_integer(sample->tokens));
    return object;
}

static enum evq_status print_samples(struct evq_cli *cli, const struct evq_sample_file *file,
                                     const struct filter *filter, struct evq_error *err)
{
    struct evq_samples_header header;
    struct evq_samples_reader *reader = NULL;
    int64_t shown = 0;
    int64_t items = 0;
    bool end = false;
    enum evq_status status = evq_samples_reader_open(file->path, &header, &reader, err);

    if (status == EVQ_OK) {
        status = evq_samples_find_check(file, &header, err);
    }
    const bool begun = status == EVQ_OK && cli->terminal.json;
    if (begun) {
        (void)printf("{\"job\": \"%s\", \"task\": \"%s\", \"samples\": [", file->job, file->task);
    }
    while (status == EVQ_OK && (filter->limit == 0 || shown < filter->limit)) {
        struct evq_sample sample;
        bool wanted = false;
        status = evq_samples_reader_next(reader, &sample, &end, err);
        if (status != EVQ_OK || end) {
            break;
        }
        items++;
        status = passes(filter, &sample, &wanted, err);
        if (status == EVQ_OK && wanted && cli->terminal.json) {
            status = evq_sample_text_print_item(sample_json(&sample), shown == 0, err);
        } else if (status == EVQ_OK && wanted) {
            print_sample(cli, &sample);
        }
        shown += wanted;
    }
    if (begun) {
        (void)fputs(shown > 0 ? "\n]}\n" : "]}\n",
                    stdout); // The list is valid JSON even after an error.
    } else if (status == EVQ_OK) {
        evq_cli_say(cli, "%" PRId64 " of %s%" PRId64 " items of %s", shown, end ? "" : "the first ",
                    items, file->task);
    }
    evq_samples_reader_close(reader);
    return status;
}

static enum evq_status samples_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *run = evq_cli_arg(cli, 0);
    const int64_t step = evq_option_integer(&cli->options, "step", -1);
    const struct filter filter = {.wrong = evq_option_flag(&cli->options, "wrong"),
                                  .right = evq_option_flag(&cli->options, "right"),
                                  .grep = evq_option_text(&cli->options, "grep", NULL),
                                  .metric = evq_option_text(&cli->options, "metric", NULL),
                                  .limit = evq_option_integer(&cli->options, "limit", 0)};
    struct evq_sample_place place = {.step = step};
    struct evq_sample_file file;
    enum evq_status status = EVQ_OK;

    if (filter.wrong && filter.right) {
        return evq_cli_usage(cli, err, "samples: --wrong and --right exclude each other");
    }
    if (strchr(run, '@') != NULL && step < 0) {
        status = evq_sample_place_parse(cli, run, &place, err);
    } else {
        status = evq_cli_check_name(cli, "run", run, err);
        (void)snprintf(place.run, sizeof place.run, "%s", run);
    }
    if (status == EVQ_OK && place.step < 0) {
        status = evq_cli_usage(cli, err, "samples: which checkpoint? Add --step N");
    }
    if (status == EVQ_OK) {
        status = evq_cli_config(cli, err);
    }
    if (status == EVQ_OK) {
        status = evq_sample_files_one(cli, &place, &file, err);
    }
    return status == EVQ_OK ? print_samples(cli, &file, &filter, err) : status;
}

static const struct evq_option options[] = {
    {"step", 0, EVQ_OPTION_INTEGER, "N", "the step of the checkpoint", 0, EVQ_JOB_STEP_MAX - 1},
    EVQ_SAMPLE_FILES_OPTIONS,
    {"wrong", 0, EVQ_OPTION_FLAG, NULL, "only items whose score is 0", 0, 0},
    {"right", 0, EVQ_OPTION_FLAG, NULL, "only items whose score is 1", 0, 0},
    {"metric", 'm', EVQ_OPTION_TEXT, "NAME", "which score decides; default: the first", 0, 0},
    {"grep", 'g', EVQ_OPTION_TEXT, "TEXT", "only items with TEXT in output or target", 0, 0},
    {"limit", 'n', EVQ_OPTION_INTEGER, "N", "at most N items", 1, INT32_MAX},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_samples = {
    .name = "samples",
    .arguments = "RUN --step N [--task TASK] [--wrong|--right] [--grep TEXT] [--limit N]",
    .summary = "List what each item of a task got at one checkpoint",
    .description =
        "Reads the samples that a suite with `samples: true` keeps, in samples.directory of the "
        "configuration. Control characters of outputs are escaped. Exit code 3: there are no "
        "samples.\n\nExample: `evalq samples my-run --step 500 --task digits --wrong --limit 20`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_ANY,
    .run = samples_run,
};
