/*
 * evalq diff: prints the items whose score differs between two checkpoints.
 */
#include <inttypes.h>
#include <string.h>

#include "producer/cli/samples/sample_files.h"
#include "producer/cli/samples/sample_text.h"
#include "producer/cli/verbs.h"
#include "shared/samples/pairing.h"

struct side_by_side {
    struct evq_cli *cli;
    struct evq_pairing pairing;
    const char *score;
    size_t at_a; // Index of the score on each side.
    size_t at_b;
    size_t better;
    size_t worse;
};

static void print_pair(const struct side_by_side *to, const struct evq_samples_pair *pair,
                       bool better)
{
    const struct evq_terminal *terminal = &to->cli->terminal;
    char before[EVQ_TERMINAL_NUMBER_BYTES];
    char after[EVQ_TERMINAL_NUMBER_BYTES];

    (void)printf("%s%s%s  %s %s -> %s%s%s\n", evq_terminal_colour(terminal, EVQ_COLOUR_BOLD),
                 pair->a->id, evq_terminal_colour(terminal, EVQ_COLOUR_NONE), to->score,
                 evq_terminal_number(pair->a->scores[to->at_a], before),
                 evq_terminal_colour(terminal, better ? EVQ_COLOUR_GREEN : EVQ_COLOUR_RED),
                 evq_terminal_number(pair->b->scores[to->at_b], after),
                 evq_terminal_colour(terminal, EVQ_COLOUR_NONE));
    evq_sample_text_print(terminal, "target", pair->a->target);
    evq_sample_text_print(terminal, "A", pair->a->output);
    evq_sample_text_print(terminal, "B", pair->b->output);
}

static json_t *pair_json(const struct side_by_side *to, const struct evq_samples_pair *pair,
                         bool better)
{
    return json_pack("{s:s, s:b, s:f, s:f, s:s?, s:s?, s:s?}", "id", pair->a->id, "better", better,
                     "a", pair->a->scores[to->at_a], "b", pair->b->scores[to->at_b], "target",
                     pair->a->target, "output_a", pair->a->output, "output_b", pair->b->output);
}

static enum evq_status print_pairs(struct side_by_side *to, struct evq_error *err)
{
    const struct evq_samples_pairs *pairs = &to->pairing.pairs;
    const bool higher = evq_pairing_higher(to->score);
    const size_t limit = (size_t)evq_option_integer(&to->cli->options, "limit", INT32_MAX);
    const bool json = to->cli->terminal.json;
    enum evq_status status = EVQ_OK;
    size_t shown = 0;

    if (json) {
        (void)printf("{\"items\": [");
    }
    for (size_t i = 0; status == EVQ_OK && i < pairs->count; i++) {
        const struct evq_samples_pair *pair = &pairs->pairs[i];
        const double off = pair->b->scores[to->at_b] - pair->a->scores[to->at_a];
        const bool better = (off > 0.0) == higher;
        if (off == 0.0) {
            continue;
        }
        to->better += better;
        to->worse += !better;
        if (shown < limit && json) {
            status = evq_sample_text_print_item(pair_json(to, pair, better), shown == 0, err);
        } else if (shown < limit) {
            print_pair(to, pair, better);
        }
        shown++;
    }
    if (json) {
        (void)printf("%s], \"better\": %zu, \"worse\": %zu, \"common\": %zu, "
                     "\"only_a\": %zu, \"only_b\": %zu}\n",
                     shown > 0 ? "\n" : "", to->better, to->worse, pairs->count, pairs->only_a,
                     pairs->only_b);
    } else if (status == EVQ_OK) {
        evq_cli_say(to->cli,
                    "%zu of %zu items differ: %zu better, %zu worse; only in A: %zu, only in B: "
                    "%zu",
                    to->better + to->worse, pairs->count, to->better, to->worse, pairs->only_a,
                    pairs->only_b);
    }
    return status;
}

static enum evq_status diff_run(struct evq_cli *cli, struct evq_error *err)
{
    struct side_by_side to = {.cli = cli};
    struct evq_sample_place places[2];
    struct evq_sample_file files[2];
    enum evq_status status = EVQ_OK;

    for (int i = 0; status == EVQ_OK && i < 2; i++) {
        status = evq_sample_place_parse(cli, evq_cli_arg(cli, i), &places[i], err);
    }
    if (status == EVQ_OK) {
        status = evq_cli_config(cli, err);
    }
    for (int i = 0; status == EVQ_OK && i < 2; i++) {
        status = evq_sample_files_one(cli, &places[i], &files[i], err);
    }
    if (status == EVQ_OK) {
        status = evq_pairing_open(&files[0], &files[1], true, NULL, &to.pairing, err);
    }
    if (status == EVQ_OK) {
        status = evq_pairing_score(&to.pairing, evq_option_text(&cli->options, "metric", NULL),
                                   &to.score, err);
    }
    if (status == EVQ_OK) {
        to.at_a = evq_samples_set_name(to.pairing.a, to.score);
        to.at_b = evq_samples_set_name(to.pairing.b, to.score);
        status = print_pairs(&to, err);
    }
    evq_pairing_close(&to.pairing);
    return status;
}

static const struct evq_option options[] = {
    EVQ_SAMPLE_FILES_OPTIONS,
    {"metric", 'm', EVQ_OPTION_TEXT, "NAME", "which score; default: the first", 0, 0},
    {"limit", 'n', EVQ_OPTION_INTEGER, "N", "list at most N items; all are counted", 1, INT32_MAX},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_diff = {
    .name = "diff",
    .arguments = "RUN@STEP RUN@STEP [--task TASK] [--metric NAME] [--limit N]",
    .summary = "List the items whose score differs between two checkpoints",
    .description =
        "Prints each such item with the target and both outputs: A is the first checkpoint, B the "
        "second. Control characters of outputs are escaped. Exit code 3: there are no samples. 1: "
        "the samples cannot be compared.\n\nExample: `evalq diff my-run@500 my-run@1000 --task "
        "digits`",
    .options = options,
    .arg_min = 2,
    .arg_max = 2,
    .takes = EVQ_TAKES_ANY,
    .run = diff_run,
};
