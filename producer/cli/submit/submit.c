/*
 * evalq submit: submits one checkpoint, one job per suite, and waits for the queue's reply.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "producer/cli/json.h"
#include "producer/cli/submit/checkpoint_listing.h"
#include "producer/cli/submit/submission.h"
#include "producer/cli/submit/waiting.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/buffer.h"
#include "shared/base/nearest.h"

#define SUITES_SHOWN_MAX 64

static const char *reason_of(const struct evq_submitted *one)
{
    return strcmp(one->reason, "every") == 0 ? "the suite's `every` does not divide its step"
                                             : one->reason;
}

static void print_sent(const struct evq_cli *cli, const struct evq_submission *s,
                       const struct evq_submission_sent *sent)
{
    for (size_t i = 0; i < s->suite_count; i++) {
        const struct evq_submitted *one = &sent->submitted[i];
        const char *answer = evq_submission_answer(one->answer);
        if (cli->terminal.plain) {
            (void)printf("%s\t%s\t%s\n", one->id, answer, evq_job_state_name(one->state));
        } else if (one->answer == EVQ_SUBMIT_DUPLICATE) {
            (void)printf("%s  %s: it is %s\n", one->id, answer, evq_job_state_name(one->state));
        } else if (one->reason[0] != '\0') {
            (void)printf("%s  %s: %s\n", one->id, answer, reason_of(one));
        } else {
            (void)printf("%s  %s\n", one->id, answer);
        }
    }
}

static json_t *document(const struct evq_submission *s, const struct evq_submission_sent *sent)
{
    json_t *jobs = json_array();
    for (size_t i = 0; i < s->suite_count; i++) {
        const struct evq_submitted *one = &sent->submitted[i];
        (void)json_array_append_new(jobs, json_pack("{s:s, s:s, s:s, s:s}", "id", one->id, "answer",
                                                    evq_submission_answer(one->answer), "state",
                                                    evq_job_state_name(one->state), "reason",
                                                    reason_of(one)));
    }
    return json_pack("{s:s, s:b, s:o}", "fingerprint", sent->fingerprint, "pinned",
                     (int)sent->pinned, "jobs", jobs);
}

/* Returns --step, or the step in the name by the rules of scan (checkpoint-400, step_400.pt). */
static enum evq_status find_step(struct evq_cli *cli, int64_t *ret_step, struct evq_error *err)
{
    char name[PATH_MAX];
    struct stat info;
    const char *path = evq_cli_arg(cli, 0);
    *ret_step = evq_option_integer(&cli->options, "step", -1);
    if (*ret_step >= 0) {
        return EVQ_OK;
    }
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/') {
        bytes--;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(bytes < PATH_MAX ? bytes : PATH_MAX - 1), path);
    const char *slash = strrchr(name, '/');
    const char *base = slash != NULL ? slash + 1 : name;
    bool is_there = stat(name, &info) == 0;
    bool is_directory = is_there && S_ISDIR(info.st_mode);
    // A missing checkpoint needs no step: the next check reports that it is missing.
    if (!evq_checkpoint_listing_step(base, is_directory, NULL, ret_step) &&
        (is_there || !evq_checkpoint_listing_step(base, true, NULL, ret_step))) {
        return evq_cli_usage(cli, err,
                             "--step is missing, and the name '%s' does not tell at which training "
                             "step it was saved",
                             base);
    }
    return EVQ_OK;
}

/* "did you mean 'quick'? Workers offer: quick, slow": what to do about a suite that no worker
 * offers. The nearest name may also come from the configuration. */
static void advise(const struct evq_cli *cli, const char *name, const json_t *stats,
                   struct evq_buffer *out)
{
    const char *known[SUITES_SHOWN_MAX];
    size_t offered = 0;
    size_t count = 0;
    size_t index = 0;
    const json_t *suite = NULL;

    json_array_foreach(json_object_get(stats, "suites"), index, suite)
    {
        if (json_is_true(json_object_get(suite, "offered")) && count < SUITES_SHOWN_MAX) {
            known[count++] = evq_json_text(suite, "name", "");
        }
    }
    offered = count;
    for (size_t i = 0; i < cli->config->suite_count && count < SUITES_SHOWN_MAX; i++) {
        known[count++] = cli->config->suites[i].name;
    }
    const char *near = evq_nearest_word(name, known, count);
    if (near != NULL && strcmp(near, name) != 0) {
        evq_buffer_printf(out, "did you mean '%s'?", near);
    } else {
        evq_buffer_text(out, "start a worker whose configuration has this suite.");
    }
    evq_buffer_text(out, offered > 0 ? " Workers offer: " : " No worker offers a suite now");
    for (size_t i = 0; i < offered; i++) {
        evq_buffer_printf(out, "%s%s", i > 0 ? ", " : "", known[i]);
    }
}

/* Prints one warning about a job that cannot run now: the suite's name may be a typing error. */
static void warn_of(struct evq_cli *cli, const char *id, const char *suite, const char *why,
                    json_t **stats)
{
    char shown[512];
    struct evq_buffer advice;

    evq_buffer_init(&advice, 65536);
    if (strncmp(why, "no worker offers", 16) == 0 &&
        (*stats != NULL || evq_view_stats(cli, stats, NULL) == EVQ_OK)) {
        evq_buffer_text(&advice, "; ");
        advise(cli, suite, *stats, &advice);
    }
    const char *text = evq_buffer_string(&advice);
    evq_cli_say(cli, "evalq: warning: %s waits: %s%s", id,
                evq_error_escape(why, strlen(why), shown, sizeof shown), text != NULL ? text : "");
    evq_buffer_free(&advice);
}

static void warn_of_blocked(struct evq_cli *cli, const struct evq_submission *s,
                            const struct evq_submission_sent *sent)
{
    json_t *stats = NULL;
    for (size_t i = 0; i < s->suite_count; i++) {
        const struct evq_submitted *one = &sent->submitted[i];
        json_t *view = NULL;
        if (one->state != EVQ_JOB_QUEUED || evq_view_job(cli, one->id, &view, NULL) != EVQ_OK) {
            continue; // The job was submitted, and that is what counts.
        }
        if (json_is_true(json_object_get(view, "blocked"))) {
            warn_of(cli, one->id, s->suites[i], evq_json_text(view, "why", ""), &stats);
        }
        json_decref(view);
    }
    json_decref(stats);
}

static enum evq_status submit_run(struct evq_cli *cli, struct evq_error *err)
{
    struct evq_submission submission;
    struct evq_submission_sent sent;
    int64_t step = 0;
    enum evq_status status = find_step(cli, &step, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = evq_submission_read(cli, &submission, err);
    if (status == EVQ_OK) {
        status = evq_cli_open(cli, err);
    }
    if (status == EVQ_OK) {
        status = evq_submission_send(cli, &submission, evq_cli_arg(cli, 0), step, &sent, err);
        if (sent.fingerprint[0] == '\0' &&
            (status == EVQ_E_IO || status == EVQ_E_INVALID || status == EVQ_E_LIMIT)) {
            cli->exit_code = EVQ_EXIT_BAD_INPUT; // Nothing was sent, so the checkpoint is at fault.
        }
    }
    if (status == EVQ_OK && cli->terminal.json && !evq_option_flag(&cli->options, "wait")) {
        status = evq_json_print(document(&submission, &sent), err);
    } else if (status == EVQ_OK && !cli->terminal.json) {
        print_sent(cli, &submission, &sent);
        (void)fflush(stdout);
    }
    if (status == EVQ_OK) {
        warn_of_blocked(cli, &submission, &sent);
    }
    if (status == EVQ_OK && evq_option_flag(&cli->options, "wait")) {
        const char *ids[EVQ_SUBMISSION_SUITES_MAX];
        for (size_t i = 0; i < submission.suite_count; i++) {
            ids[i] = sent.submitted[i].id;
        }
        status = evq_waiting_jobs(cli, ids, submission.suite_count,
                                  evq_option_integer(&cli->options, "timeout", -1), err);
    }
    evq_submission_free(&submission);
    return status;
}

static const struct evq_option options[] = {
    {"run", 'r', EVQ_OPTION_TEXT, "RUN", "training run; default $EVALQ_RUN", 0, 0},
    {"step", 's', EVQ_OPTION_INTEGER, "N",
     "training step of the checkpoint; default: the number in its name, as for scan", 0,
     EVQ_JOB_STEP_MAX - 1},
    {"suite", 'S', EVQ_OPTION_LIST, "SUITE[,SUITE...]", "what to evaluate; may be repeated", 0, 0},
    {"variant", 0, EVQ_OPTION_TEXT, "NAME", "regular (default), ema, or a name", 0, 0},
    {"policy", 0, EVQ_OPTION_CHOICE, "all|latest|backfill",
     "all: evaluate every step, in order; latest: a newer step replaces those that wait; "
     "backfill: the newest step first, then the steps in the widest gaps",
     0, 0},
    {"priority", 0, EVQ_OPTION_CHOICE, "urgent|high|normal|backfill", "default normal", 0, 0},
    {"keep", 0, EVQ_OPTION_FLAG, NULL,
     "never skip this checkpoint for a newer one; use it for the final checkpoint", 0, 0},
    {"pin", 0, EVQ_OPTION_FLAG, NULL,
     "keep the files until the jobs end, as a reflink, a hard link or a copy", 0, 0},
    {"param", 'p', EVQ_OPTION_LIST, "NAME=VALUE", "parameter for the evaluator; may be repeated", 0,
     0},
    {"needs", 0, EVQ_OPTION_TEXT, "NEEDS",
     "what the job needs, instead of the suite's needs; such as gpus=2,gpu_memory=40GiB,labels=a+b",
     0, 0},
    {"format", 0, EVQ_OPTION_TEXT, "NAME", "format of the checkpoint, if it cannot be detected", 0,
     0},
    {"session", 0, EVQ_OPTION_INTEGER, "MS",
     "start time of the training process in unix milliseconds; steps of a later session are newer "
     "than all steps of an earlier one; default 0",
     0, INT64_MAX / 2},
    {"delay", 0, EVQ_OPTION_INTEGER, "SECONDS", "do not start the job earlier than this", 0,
     30 * 86400},
    {"wait", 0, EVQ_OPTION_FLAG, NULL, "wait until the jobs end, and print their results", 0, 0},
    {"timeout", 0, EVQ_OPTION_INTEGER, "SECONDS",
     "with --wait: wait at most so long; default: no limit", 0, 1000000000},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_submit = {
    .name = "submit",
    .arguments = "PATH --run RUN [--step N] --suite SUITE [OPTION...]",
    .summary = "Submit one checkpoint for evaluation",
    .description =
        "Checks that PATH is a complete checkpoint, takes its fingerprint and submits one "
        "job per suite. PATH is a file or a directory below a configured root.\n\nIf the "
        "queue has the same checkpoint already, the answer is `duplicate`, and the exit code "
        "is 0. If the step has other weights now, a job that waits gets the new weights. If "
        "the job runs or has ended, a new generation, JOB~2, is submitted. If no worker "
        "offers the suite, submit prints a warning, and the job waits for such a "
        "worker.\n\nExit code 4, with --wait: a job did not end as done. 124: the timeout "
        "passed.\n\nExample: `evalq submit out/checkpoint-500 --run my-run --suite heldout "
        "--wait`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .role = "producer",
    .run = submit_run,
};
