/*
 * evalq wait, for scripts: waits until jobs have ended.
 */
#include <string.h>

#include "producer/cli/submit/waiting.h"
#include "producer/cli/verbs.h"

static enum evq_status wait_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *what = evq_cli_arg(cli, 0);
    int64_t timeout = evq_option_integer(&cli->options, "timeout", -1);
    enum evq_status status = evq_waiting_open(cli, &timeout, err);
    if (status != EVQ_OK) {
        return status;
    }
    return strchr(what, '/') != NULL ? evq_waiting_jobs(cli, &what, 1, timeout, err)
                                     : evq_waiting_run(cli, what, timeout, err);
}

static const struct evq_option options[] = {
    {"timeout", 't', EVQ_OPTION_INTEGER, "SECONDS", "wait at most so long; default: no limit", 0,
     1000000000},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_wait = {
    .name = "wait",
    .arguments = "RUN|JOB [--timeout SECONDS]",
    .summary = "Wait until a run has no open job, or until one job has ended",
    .description =
        "JOB is RUN/STEP/VARIANT/SUITE, as submit prints it. When a job has ended, wait "
        "prints its metrics. When all jobs of a run have ended, wait prints how many ended "
        "in which state.\n\nExit code 4: a job of the run is dead, or the job did not end as "
        "done. 124: the timeout passed. 3: there is no such run or job.\n\nExample: `evalq "
        "wait my-run --timeout 3600`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN_OR_JOBS,
    .run = wait_run,
};
