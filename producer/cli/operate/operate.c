/*
 * evalq cancel, retry, pause, resume and forget: what an operator does to jobs and runs.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/samples/samples_remove.h"

typedef void (*act_fn)(struct evq_cli *cli, struct evq_job_change *changes, size_t count);

static void say_done(const struct evq_cli *cli, json_t *done, const struct evq_job_change *change)
{
    const char *state = evq_job_state_name(change->state);

    if (cli->terminal.json) {
        (void)json_array_append_new(done,
                                    json_pack("{s:s, s:s}", "id", change->now, "state", state));
    } else if (cli->terminal.plain) {
        (void)printf("%s\t%s\n", change->now, state);
    } else {
        (void)printf("%s  %s\n", change->now,
                     change->state == EVQ_JOB_RUNNING
                         ? "running: its worker stops it at the next heartbeat"
                         : state);
    }
}

/* Reports the faults of some jobs. The first fault of all is kept in *first; others are printed at
 * once. Returns false if a fault concerns the server and not a job: then stop. */
static bool print_slice(const struct evq_cli *cli, const struct evq_job_change *changes,
                        size_t count, json_t *done, struct evq_error *first, size_t *answered)
{
    bool goes_on = true;

    for (size_t i = 0; i < count; i++) {
        const struct evq_job_change *change = &changes[i];
        const bool passes = evq_conn_is_outage(change->status);
        if (change->status == EVQ_OK) {
            say_done(cli, done, change);
        } else if (first->status == EVQ_OK) {
            *first = change->error;
        } else if (!passes || goes_on) {
            evq_cli_say(cli, "evalq: %s", change->error.message);
        }
        goes_on = goes_on && !passes;
        *answered += !passes;
    }
    return goes_on;
}

/* Acts on each id. Reports a fault and continues with the next id. */
static enum evq_status act_on(struct evq_cli *cli, const char *const *ids, size_t count, act_fn act,
                              struct evq_error *err)
{
    json_t *done = json_array();
    struct evq_error first = {EVQ_OK, ""};
    struct evq_job_change *changes = calloc(EVQ_QUEUE_CHANGES, sizeof *changes);
    bool goes_on = changes != NULL;
    size_t answered = 0;

    if (changes == NULL) {
        (void)evq_error_set(&first, EVQ_E_NOMEM, "no memory for %zu jobs", count);
    }
    for (size_t at = 0; goes_on && at < count; at += EVQ_QUEUE_CHANGES) {
        const size_t left = count - at;
        const size_t slice = left < EVQ_QUEUE_CHANGES ? left : EVQ_QUEUE_CHANGES;
        for (size_t i = 0; i < slice; i++) {
            changes[i].id = ids[at + i];
        }
        act(cli, changes, slice);
        goes_on = print_slice(cli, changes, slice, done, &first, &answered);
    }
    if (!goes_on && count > 1) {
        evq_cli_say(cli, "evalq: %zu of %zu jobs were answered; run the command again for the rest",
                    answered, count);
    }
    if (cli->terminal.json && json_array_size(done) + (first.status == EVQ_OK) > 0) {
        struct evq_error unprinted = {EVQ_OK, ""};
        if (evq_json_print(json_pack("{s:O}", "jobs", done), &unprinted) != EVQ_OK &&
            first.status == EVQ_OK) {
            first = unprinted;
        }
    }
    json_decref(done);
    free(changes);
    if (first.status != EVQ_OK && err != NULL) {
        *err = first;
    }
    return first.status;
}

/* Acts on each job of a list of ids. none: what to print if the list is empty. */
static enum evq_status act_on_list(struct evq_cli *cli, const json_t *list, act_fn act,
                                   const char *none, struct evq_error *err)
{
    size_t count = 0;
    const char **ids = calloc(json_array_size(list) + 1, sizeof *ids);
    if (ids == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu jobs", json_array_size(list));
    }
    size_t index = 0;
    const json_t *id = NULL;
    json_array_foreach(list, index, id)
    {
        if (json_is_string(id)) {
            ids[count++] = json_string_value(id);
        }
    }
    if (count == 0) {
        evq_cli_say(cli, "evalq: %s", none);
    }
    enum evq_status status = act_on(cli, ids, count, act, err);
    free(ids);
    return status;
}

static void cancel_some(struct evq_cli *cli, struct evq_job_change *changes, size_t count)
{
    evq_queue_cancel_many(cli->queue, changes, count, evq_option_text(&cli->options, "reason", ""));
}

static enum evq_status cancel_whole_run(struct evq_cli *cli, const char *run, struct evq_error *err)
{
    static const char *const states[] = {"queued", "delayed", "running"};
    json_t *ids = NULL;
    enum evq_status status = evq_cli_confirm(cli, "Cancel every open job of the run?", err);
    for (size_t i = 0; status == EVQ_OK && i < sizeof states / sizeof states[0]; i++) {
        status = evq_view_ids(cli, states[i], run, &ids, err);
    }
    if (status == EVQ_OK && json_array_size(ids) == 0) {
        status = evq_cli_find_run(cli, run, err); // A slip in its name is not "nothing to do".
    }
    if (status == EVQ_OK) {
        status = act_on_list(cli, ids, cancel_some, "no job of the run is open", err);
    }
    json_decref(ids);
    return status;
}

static enum evq_status cancel_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *first = evq_cli_arg(cli, 0);
    enum evq_status status = evq_cli_open(cli, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (strchr(first, '/') != NULL) {
        return act_on(cli, (const char *const *)cli->options.args, (size_t)cli->options.arg_count,
                      cancel_some, err);
    }
    if (cli->options.arg_count > 1) {
        return evq_cli_usage(cli, err,
                             "cancel takes any number of jobs (RUN/STEP/VARIANT/SUITE) or one run");
    }
    return cancel_whole_run(cli, first, err);
}

static const struct evq_option cancel_options[] = {
    {"reason", 0, EVQ_OPTION_TEXT, "TEXT", "reason that is shown with the job", 0, 0},
    {"yes", 'y', EVQ_OPTION_FLAG, NULL, "do not ask", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_cancel = {
    .name = "cancel",
    .arguments = "JOB... | RUN --yes",
    .summary = "Cancel jobs, or every open job of a run",
    .description =
        "A waiting job ends at once. A running job ends at its worker's next heartbeat. "
        "`evalq retry` queues a cancelled job again. If the command is interrupted, run it "
        "again to cancel the rest.\n\nExamples: `evalq cancel my-run/500/regular/heldout`, "
        "`evalq cancel my-run --yes`",
    .options = cancel_options,
    .arg_min = 1,
    .arg_max = -1,
    .takes = EVQ_TAKES_RUN_OR_JOBS,
    .role = "producer",
    .run = cancel_run,
};

static void retry_some(struct evq_cli *cli, struct evq_job_change *changes, size_t count)
{
    evq_queue_retry_many(cli->queue, changes, count);
}

static enum evq_status retry_run(struct evq_cli *cli, struct evq_error *err)
{
    bool dead = evq_option_flag(&cli->options, "dead");
    if (dead == (cli->options.arg_count > 0)) {
        return evq_cli_usage(cli, err,
                             "retry takes jobs (RUN/STEP/VARIANT/SUITE), or --dead [--run RUN]");
    }
    const char *run = evq_option_text(&cli->options, "run", "");
    enum evq_status status = run[0] != '\0' ? evq_cli_check_name(cli, "run", run, err) : EVQ_OK;
    status = status == EVQ_OK ? evq_cli_open(cli, err) : status;
    if (status != EVQ_OK) {
        return status;
    }
    if (!dead) {
        return act_on(cli, (const char *const *)cli->options.args, (size_t)cli->options.arg_count,
                      retry_some, err);
    }
    json_t *ids = NULL;
    status = evq_view_ids(cli, "dead", run, &ids, err);
    if (status == EVQ_OK && json_array_size(ids) == 0 && run[0] != '\0') {
        status = evq_cli_find_run(cli, run, err);
    }
    if (status == EVQ_OK) {
        status = act_on_list(cli, ids, retry_some, "no job is dead", err);
    }
    json_decref(ids);
    return status;
}

static const struct evq_option retry_options[] = {
    {"dead", 0, EVQ_OPTION_FLAG, NULL, "retry every dead job", 0, 0},
    {"run", 'r', EVQ_OPTION_TEXT, "RUN", "with --dead: only jobs of this run", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_retry = {
    .name = "retry",
    .arguments = "JOB... | --dead [--run RUN]",
    .summary = "Queue dead, skipped or cancelled jobs again",
    .description =
        "The job gets its old place in the queue and all its attempts back. If a result of "
        "the job was already published, a new generation, JOB~2, is queued "
        "instead.\n\nExamples: `evalq retry my-run/500/regular/heldout`, `evalq retry --dead "
        "--run my-run`",
    .options = retry_options,
    .arg_min = 0,
    .arg_max = -1,
    .takes = EVQ_TAKES_JOBS,
    .role = "admin",
    .run = retry_run,
};

static enum evq_status set_paused(struct evq_cli *cli, bool paused, struct evq_error *err)
{
    const char *what = evq_cli_arg(cli, 0);
    const char *name = evq_cli_arg(cli, 1);
    enum evq_pause_kind kind = EVQ_PAUSE_QUEUE;
    what = what != NULL ? what : "queue";
    if (strcmp(what, "suite") == 0) {
        kind = EVQ_PAUSE_SUITE;
    } else if (strcmp(what, "run") == 0) {
        kind = EVQ_PAUSE_RUN;
    } else if (strcmp(what, "queue") != 0) {
        return evq_cli_usage(cli, err, "%s needs one of: queue, suite NAME, run NAME",
                             cli->verb->name);
    }
    if ((kind == EVQ_PAUSE_QUEUE) != (name == NULL)) {
        return evq_cli_usage(cli, err, "usage: evalq %s %s", cli->verb->name, cli->verb->arguments);
    }
    enum evq_status status = name != NULL ? evq_cli_check_name(cli, what, name, err) : EVQ_OK;
    status = status == EVQ_OK ? evq_cli_open(cli, err) : status;
    if (status == EVQ_OK) {
        status = evq_queue_pause(cli->queue, kind, name != NULL ? name : "", paused, err);
    }
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:s, s:s, s:b}", "kind", what, "name",
                                          name != NULL ? name : evq_queue_name(cli->queue),
                                          "paused", (int)paused),
                                err);
    } else if (status == EVQ_OK) {
        evq_cli_say(cli, "evalq: %s '%s' %s", what,
                    name != NULL ? name : evq_queue_name(cli->queue),
                    paused ? "is paused; running jobs go on" : "goes on");
    }
    return status;
}

static enum evq_status pause_run(struct evq_cli *cli, struct evq_error *err)
{
    return set_paused(cli, true, err);
}

static enum evq_status resume_run(struct evq_cli *cli, struct evq_error *err)
{
    return set_paused(cli, false, err);
}

const struct evq_verb evq_verb_pause = {
    .name = "pause",
    .arguments = "[queue | suite NAME | run NAME]",
    .summary = "Stop claiming jobs of the queue, a suite or a run",
    .description = "Running jobs go on, and new jobs can be submitted. `evalq resume` ends the "
                   "pause.\n\nExamples: `evalq pause`, `evalq pause run my-run`",
    .words = "queue|suite|run",
    .arg_min = 0,
    .arg_max = 2,
    .role = "admin",
    .run = pause_run,
};

const struct evq_verb evq_verb_resume = {
    .name = "resume",
    .arguments = "[queue | suite NAME | run NAME]",
    .summary = "End a pause",
    .description =
        "Workers claim jobs again.\n\nExamples: `evalq resume`, `evalq resume run my-run`",
    .words = "queue|suite|run",
    .arg_min = 0,
    .arg_max = 2,
    .role = "admin",
    .run = resume_run,
};

struct search {
    const char *run;
    bool found;
};

static enum evq_status compare_run(void *context, const char *run, struct evq_error *err)
{
    struct search *search = context;

    (void)err;
    search->found = search->found || strcmp(search->run, run) == 0;
    return EVQ_OK;
}

/* EVQ_E_NOT_FOUND if the queue does not list the run. A run whose records were all malformed has no
 * counts, but the queue lists it. */
static enum evq_status find_listed(struct evq_cli *cli, const char *run, struct evq_error *err)
{
    struct search search = {.run = run};
    const enum evq_status status = evq_view_each_run(cli, compare_run, &search, err);

    return status != EVQ_OK || search.found ? status : evq_cli_find_run(cli, run, err);
}

static enum evq_status forget_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *run = evq_cli_arg(cli, 0);
    struct evq_run_counts counts = {0};
    int64_t left = 0;
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status = evq_queue_run_counts(cli->queue, run, &counts, err);
    }
    const int64_t all = evq_run_counts_total(&counts);
    if (status == EVQ_OK && all == 0) {
        status = find_listed(cli, run, err);
    }
    if (status == EVQ_OK) {
        status = evq_cli_confirm(cli, "Forget the run, with all its jobs and results?", err);
    }
    do {
        status = status == EVQ_OK ? evq_queue_forget(cli->queue, run, &left, err) : status;
    } while (status == EVQ_OK && left > 0);
    const int64_t samples =
        status == EVQ_OK ? evq_samples_remove(cli->config->samples.directory, run, -1) : 0;
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:s, s:I, s:I}", "run", run, "forgotten",
                                          (json_int_t)all, "samples", (json_int_t)samples),
                                err);
    } else if (status == EVQ_OK) {
        evq_cli_say(cli, "evalq: forgot '%s' with %" PRId64 " job%s", run, all,
                    all == 1 ? "" : "s");
        if (samples > 0) {
            evq_cli_say(cli, "evalq: removed %" PRId64 " files of samples", samples);
        }
    }
    return status;
}

static const struct evq_option forget_options[] = {
    {"yes", 'y', EVQ_OPTION_FLAG, NULL, "do not ask", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_forget = {
    .name = "forget",
    .arguments = "RUN --yes",
    .summary = "Remove a run from the queue, with all its jobs and results",
    .description =
        "Does nothing while a job of the run is running (exit code 1). Sinks keep what they "
        "have stored. Samples of the run in samples.directory of this machine are "
        "removed.\n\nExample: `evalq forget my-run --yes`",
    .options = forget_options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN,
    .role = "admin",
    .run = forget_run,
};
