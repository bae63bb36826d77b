/*
 * evalq gate: decides whether a candidate may replace a baseline. It is made for CI, so the exit
 * code gives the verdict.
 */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"
#include "producer/cli/samples/junit.h"
#include "producer/cli/samples/sample_files.h"
#include "producer/cli/submit/waiting.h"
#include "producer/cli/verbs.h"
#include "shared/base/clock.h"
#include "shared/samples/pairing.h"
#include "shared/statistics/non_inferiority.h"

#define ARRIVAL_MS      30000 // How long a file may take from the worker to the logger.
#define ARRIVAL_LOOK_MS 100

enum { EXIT_NOT_WORSE = 0, EXIT_WORSE = 1, EXIT_TOO_FEW = 3 };

struct gate {
    struct evq_cli *cli;
    double margin;
    double confidence;
    char score[136];
    struct evq_non_inferiority decision;
    char line[512]; // The reason, in one line.
};

/* Reads an option that is a number. */
static enum evq_status read_number(struct evq_cli *cli, const char *name, const char *fallback,
                                   double *ret, struct evq_error *err)
{
    const char *text = evq_option_text(&cli->options, name, fallback);
    char *end = NULL;
    char shown[64];
    const double value = text != NULL ? strtod(text, &end) : 0.0;

    if (text == NULL || end == text || *end != '\0' || !isfinite(value)) {
        return text == NULL
                   ? evq_cli_usage(cli, err, "gate: --%s is missing", name)
                   : evq_cli_usage(cli, err, "gate: --%s is '%s', expected a number", name,
                                   evq_error_escape(text, strlen(text), shown, sizeof shown));
    }
    *ret = value;
    return EVQ_OK;
}

/* The suite whose job makes the samples: --suite, or the only one of the configuration that keeps
 * samples of the task. */
static enum evq_status find_suite(struct evq_cli *cli, const char **ret_suite,
                                  struct evq_error *err)
{
    const char *task = evq_option_text(&cli->options, "task", NULL);
    const char *found = evq_option_text(&cli->options, "suite", NULL);

    for (size_t i = 0; found == NULL && i < cli->config->suite_count; i++) {
        const struct evq_suite *suite = &cli->config->suites[i];
        if (suite->samples && (task == NULL || evq_suite_task(suite, task) != NULL)) {
            for (size_t k = i + 1; k < cli->config->suite_count; k++) {
                const struct evq_suite *other = &cli->config->suites[k];
                if (other->samples && (task == NULL || evq_suite_task(other, task) != NULL)) {
                    return evq_cli_usage(cli, err,
                                         "gate: suites %s and %s fit: name one with "
                                         "--suite",
                                         suite->name, other->name);
                }
            }
            found = suite->name;
        }
    }
    if (found == NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "no suite of %s keeps samples%s%s: add samples: true to one, or name "
                             "it with --suite",
                             cli->config->file[0] != '\0' ? cli->config->file : "the configuration",
                             task != NULL ? " of task " : "", task != NULL ? task : "");
    }
    *ret_suite = found;
    return EVQ_OK;
}

/* Finds the samples of a job that has ended. If workers send them, the file may arrive after the
 * result. */
static enum evq_status await_arrival(struct evq_cli *cli, const struct evq_sample_place *place,
                                     struct evq_sample_file *ret, struct evq_error *err)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + (cli->config->samples.send ? ARRIVAL_MS : 0);
    enum evq_status status = evq_sample_files_one(cli, place, ret, err);

    while (status == EVQ_E_NOT_FOUND && evq_clock_left_ms(deadline_ms) > 0) {
        (void)poll(NULL, 0, ARRIVAL_LOOK_MS);
        status = evq_sample_files_one(cli, place, ret, err);
    }
    return status;
}

/* Finds the samples of a checkpoint, and waits for their job if there are none yet. */
static enum evq_status await_file(struct evq_cli *cli, const struct evq_sample_place *place,
                                  struct evq_sample_file *ret, struct evq_error *err)
{
    int64_t timeout = evq_option_integer(&cli->options, "timeout", -1);
    const char *suite = NULL;
    char id[EVQ_JOB_ID_BYTES_MAX];
    enum evq_status status = evq_sample_files_one(cli, place, ret, err);

    if (status != EVQ_E_NOT_FOUND) {
        return status;
    }
    status = find_suite(cli, &suite, err);
    if (status == EVQ_OK) {
        status = evq_waiting_open(cli, &timeout, err);
    }
    if (status == EVQ_OK) {
        (void)snprintf(id, sizeof id, "%s/%" PRId64 "/%s/%s", place->run, place->step,
                       evq_option_text(&cli->options, "variant", "regular"), suite);
        evq_cli_say(cli, "evalq: waiting for %s", id);
        status = evq_waiting_one_job(cli, id, timeout, err);
    }
    return status == EVQ_OK ? await_arrival(cli, place, ret, err) : status;
}

static enum evq_status decide(struct gate *gate, const struct evq_sample_file *baseline,
                              const struct evq_sample_file *candidate, struct evq_error *err)
{
    struct evq_cli *cli = gate->cli;
    const struct evq_paired_options options = {.seed = EVQ_PAIRING_SEED};
    struct evq_pairing pairing;
    struct evq_pairing_items arrays = {.baseline = NULL};
    const char *score = NULL;
    enum evq_status status = evq_pairing_open(baseline, candidate, false, NULL, &pairing, err);

    // A candidate that lacks the items it would fail on must not pass.
    if (status == EVQ_OK && pairing.pairs.only_a + pairing.pairs.only_b > 0) {
        const char *id = pairing.pairs.first_only_a != NULL ? pairing.pairs.first_only_a
                                                            : pairing.pairs.first_only_b;
        status = evq_error_set(err, EVQ_E_CONFLICT,
                               "%zu items are only in the baseline and %zu only in the candidate, "
                               "such as '%s': a gate compares the same items",
                               pairing.pairs.only_a, pairing.pairs.only_b, id);
    }
    if (status == EVQ_OK) {
        status = evq_pairing_score(&pairing, evq_option_text(&cli->options, "metric", NULL), &score,
                                   err);
    }
    if (status == EVQ_OK) {
        (void)snprintf(gate->score, sizeof gate->score, "%s", score);
        status = evq_pairing_items(&pairing, score, &arrays, err);
    }
    if (status == EVQ_OK) {
        status = evq_non_inferiority_decide(&arrays.items, gate->margin, gate->confidence, &options,
                                            &gate->decision, err);
    }
    evq_pairing_items_free(&arrays);
    evq_pairing_close(&pairing);
    return status;
}

static void explain(struct gate *gate, const char *task)
{
    const struct evq_non_inferiority *d = &gate->decision;
    const struct evq_paired *paired = &d->paired;
    const char *groups = paired->groups == paired->count ? "items" : "groups of items";
    const int percent = (int)lround(100.0 * gate->confidence);
    const char *verdict = d->verdict == EVQ_NOT_WORSE ? "not worse"
                          : d->verdict == EVQ_WORSE   ? "worse"
                                                      : "too few items";
    int bytes =
        snprintf(gate->line, sizeof gate->line,
                 "%s: %s %s %.6g, baseline %.6g, gain %+.4g (at least %+.4g at %d %%, allowed "
                 "%+.4g), %zu %s",
                 verdict, task, gate->score, paired->candidate, paired->baseline, d->gain, d->bound,
                 percent, -gate->margin, paired->groups, groups);

    if (bytes > 0 && bytes < (int)sizeof gate->line && d->verdict == EVQ_TOO_FEW_ITEMS) {
        (void)snprintf(gate->line + bytes, sizeof gate->line - (size_t)bytes,
                       "; about %.0f are needed", d->groups_needed);
    } else if (bytes > 0 && bytes < (int)sizeof gate->line && d->verdict == EVQ_WORSE &&
               !d->shown_worse) {
        (void)snprintf(gate->line + bytes, sizeof gate->line - (size_t)bytes,
                       "; %.0f would be enough for an equal candidate", d->groups_needed);
    }
}

static enum evq_status print(struct gate *gate, const char *task, struct evq_error *err)
{
    const struct evq_non_inferiority *d = &gate->decision;
    const struct evq_paired *paired = &d->paired;
    static const char *const verdicts[] = {"not_worse", "worse", "too_few_items"};

    if (!gate->cli->terminal.json) {
        (void)puts(gate->line);
        return EVQ_OK;
    }
    json_t *out = json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "verdict",
                            verdicts[d->verdict], "task", task, "metric", gate->score, "candidate",
                            paired->candidate, "baseline", paired->baseline, "gain", d->gain,
                            "bound", d->bound, "margin", gate->margin, "confidence",
                            gate->confidence, "needed", d->groups_needed, "reason", gate->line);
    (void)json_object_set_new(out, "items", json_integer((json_int_t)paired->count));
    (void)json_object_set_new(out, "groups", json_integer((json_int_t)paired->groups));
    (void)json_object_set_new(out, "method", json_string(evq_paired_method_name(paired->method)));
    return evq_json_print(out, err);
}

/* An error must not look like an answer, so it never ends with 1 or 3. */
static enum evq_status fail(struct gate *gate, enum evq_status status, struct evq_error *err)
{
    const int code = (int)evq_status_exit_code(status);
    const char *junit = evq_option_text(&gate->cli->options, "junit", NULL);
    struct evq_error ignored;

    if (gate->cli->exit_code == 0 && (code == EXIT_WORSE || code == EXIT_TOO_FEW)) {
        gate->cli->exit_code = EVQ_EXIT_BAD_INPUT;
    }
    if (junit != NULL) {
        // The error that the user sees is the first one.
        (void)!evq_junit_write(junit, evq_cli_arg(gate->cli, 0), "gate", EVQ_JUNIT_ERROR,
                               err->message, &ignored);
    }
    return status;
}

static enum evq_status run_gate(struct gate *gate, struct evq_error *err)
{
    struct evq_cli *cli = gate->cli;
    const char *against = evq_option_text(&cli->options, "against", NULL);
    const char *junit = evq_option_text(&cli->options, "junit", NULL);
    struct evq_sample_place candidate;
    struct evq_sample_place baseline;
    struct evq_sample_file files[2];
    enum evq_status status = EVQ_OK;

    if (against == NULL) {
        return evq_cli_usage(cli, err, "gate: against what? Add --against RUN@STEP");
    }
    status = evq_sample_place_parse(cli, evq_cli_arg(cli, 0), &candidate, err);
    if (status == EVQ_OK) {
        status = evq_sample_place_parse(cli, against, &baseline, err);
    }
    if (status == EVQ_OK) {
        status = read_number(cli, "no-worse-than", NULL, &gate->margin, err);
    }
    if (status == EVQ_OK) {
        status = read_number(cli, "confidence", "0.95", &gate->confidence, err);
    }
    if (status == EVQ_OK) {
        status = evq_cli_config(cli, err);
    }
    if (status == EVQ_OK) {
        status = await_file(cli, &baseline, &files[0], err);
    }
    if (status == EVQ_OK) {
        status = await_file(cli, &candidate, &files[1], err);
    }
    if (status == EVQ_OK) {
        status = decide(gate, &files[0], &files[1], err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    explain(gate, files[0].task);
    if (junit != NULL) {
        status = evq_junit_write(junit, evq_cli_arg(cli, 0), files[0].task,
                                 gate->decision.verdict == EVQ_NOT_WORSE ? EVQ_JUNIT_PASSED
                                                                         : EVQ_JUNIT_FAILED,
                                 gate->line, err);
    }
    return status == EVQ_OK ? print(gate, files[0].task, err) : status;
}

static enum evq_status gate_run(struct evq_cli *cli, struct evq_error *err)
{
    struct gate gate = {.cli = cli};
    const enum evq_status status = run_gate(&gate, err);

    if (status != EVQ_OK) {
        return fail(&gate, status, err);
    }
    cli->exit_code = gate.decision.verdict == EVQ_NOT_WORSE ? EXIT_NOT_WORSE
                     : gate.decision.verdict == EVQ_WORSE   ? EXIT_WORSE
                                                            : EXIT_TOO_FEW;
    return EVQ_OK;
}

static const struct evq_option options[] = {
    {"against", 0, EVQ_OPTION_TEXT, "RUN@STEP", "the baseline", 0, 0},
    {"no-worse-than", 0, EVQ_OPTION_TEXT, "MARGIN",
     "how much worse the candidate may be, such as 0.01", 0, 0},
    {"confidence", 0, EVQ_OPTION_TEXT, "SHARE", "one-sided confidence; default 0.95", 0, 0},
    {"metric", 'm', EVQ_OPTION_TEXT, "NAME", "which score; default: the first", 0, 0},
    EVQ_SAMPLE_FILES_OPTIONS,
    {"timeout", 0, EVQ_OPTION_INTEGER, "SECONDS",
     "wait at most so long for a job; default: no limit", 0, 1000000000},
    {"junit", 0, EVQ_OPTION_TEXT, "FILE", "write a JUnit report", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_gate = {
    .name = "gate",
    .arguments = "RUN@STEP --against RUN@STEP --no-worse-than MARGIN [--task TASK] [--junit FILE]",
    .summary = "Decide whether a checkpoint is no worse than another",
    .description =
        "Compares the samples of both checkpoints item by item. If there are none yet, it waits "
        "for the job that makes them. Exit code 0: not worse than the baseline by more than "
        "MARGIN. 1: worse. 3: there are too few items to tell; the line says how many are "
        "needed. 9: the samples cannot be compared. docs/statistics.md defines the "
        "decision.\n\nExample: `evalq gate new@1000 --against old@1000 --task digits "
        "--no-worse-than 0.01`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_ANY,
    .run = gate_run,
};
