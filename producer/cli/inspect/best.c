/*
 * evalq best, for scripts: prints the best checkpoint of a run.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "producer/cli/inspect/result_table.h"
#include "producer/cli/json.h"
#include "producer/cli/samples/best_step.h"
#include "producer/cli/samples/sample_files.h"
#include "producer/cli/verbs.h"
#include "shared/verify/saved_weights.h"

static enum evq_status best_print_json(const struct evq_best *best, bool lost,
                                       struct evq_error *err)
{
    json_t *value = isfinite(best->value) ? json_real(best->value)
                                          : json_string(isnan(best->value) ? "NaN"
                                                        : best->value > 0  ? "Infinity"
                                                                           : "-Infinity");
    return evq_json_print(json_pack("{s:s, s:s, s:o, s:I, s:s, s:o}", "run", best->run, "metric",
                                    best->metric, "value", value, "step", (json_int_t)best->step,
                                    "job", best->job, "checkpoint",
                                    lost ? json_null() : json_string(best->checkpoint)),
                          err);
}

static enum evq_status best_run(struct evq_cli *cli, struct evq_error *err)
{
    struct evq_best best;
    if (evq_option_flag(&cli->options, "significant")) {
        return evq_best_step_run(cli, evq_cli_arg(cli, 0), evq_cli_arg(cli, 1), err);
    }
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status =
            evq_queue_best_find(cli->queue, evq_cli_arg(cli, 0), evq_cli_arg(cli, 1), &best, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    status =
        evq_saved_weights_verify(cli->queue, cli->config, NULL, best.job, best.checkpoint, err);
    const bool lost = evq_saved_weights_lost(status);
    if (status != EVQ_OK && !lost) {
        return status;
    }
    if (cli->terminal.json) {
        return best_print_json(&best, lost, err);
    }
    char metric[512];
    char checkpoint[2048];
    char step[EVQ_RESULT_TABLE_STEP_BYTES];
    evq_result_table_step_text(best.job, best.step, step);
    evq_error_escape(best.metric, strlen(best.metric), metric, sizeof metric);
    evq_error_escape(best.checkpoint, strlen(best.checkpoint), checkpoint, sizeof checkpoint);
    if (cli->terminal.plain) {
        (void)printf("%s\t%.17g\t%s\t%s\n", step, best.value, metric, lost ? "" : checkpoint);
    } else {
        (void)printf("step %s  %s %.8g  %s%s\n", step, metric, best.value, checkpoint,
                     status == EVQ_OK ? ""
                     : status == EVQ_E_CHANGED
                         ? "  (its weights were not kept: others have this name)"
                         : "  (its weights were not kept)");
    }
    return EVQ_OK;
}

static const struct evq_option options[] = {
    {"significant", 0, EVQ_OPTION_FLAG, NULL,
     "the earliest step that cannot be told apart from the best one, by its samples", 0, 0},
    EVQ_SAMPLE_FILES_OPTIONS,
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_best = {
    .name = "best",
    .arguments = "RUN [METRIC] [--significant]",
    .summary = "Print the best checkpoint of a run so far",
    .description =
        "METRIC is a key such as eval/digits/accuracy, or a part of a key that no other "
        "metric of the run has, such as accuracy. Without METRIC, the first metric by name "
        "is used. The logger's sink `best` finds the best checkpoint, so a result counts "
        "only after the logger has received it. If the training has overwritten the best "
        "checkpoint, best says so (--json: null).\n\n--significant reads samples instead: it "
        "prints the earliest step that a paired comparison cannot tell apart from the best "
        "one. METRIC is then a score, such as accuracy.\n\nExit code 3: there is no such run, "
        "sink, result or metric. The message says which.\n\nExample: `evalq best my-run "
        "accuracy`",
    .options = options,
    .arg_min = 1,
    .arg_max = 2,
    .takes = EVQ_TAKES_RUN,
    .run = best_run,
};
