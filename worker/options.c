#include "worker/options.h"

#include <string.h>

#include "shared/base/man.h"
#include "shared/config/config.h"
#include "shared/queue/job.h"

static const struct evq_option option_table[] = {
    {"slots", 0, EVQ_OPTION_INTEGER, "N",
     "run: number of jobs at once; the devices are shared evenly; default: one per device", 1,
     1024},
    {"devices", 0, EVQ_OPTION_TEXT, "LIST",
     "run, eval, score: auto, cpu, or GPU numbers such as 0,1", 0, 0},
    {"suites", 0, EVQ_OPTION_TEXT, "LIST",
     "run: only these suites of the configuration, such as a,b", 0, 0},
    {"suite", 's', EVQ_OPTION_TEXT, "NAME", "eval: the suite", 0, 0},
    {"variant", 0, EVQ_OPTION_TEXT, "NAME",
     "eval, convert: the weights of the checkpoint, such as ema; default regular", 0, 0},
    {"threads", 0, EVQ_OPTION_INTEGER, "N",
     "run, eval, score: CPU threads per slot; default: cores / slots", 0, 4096},
    {"warm", 0, EVQ_OPTION_FLAG, NULL,
     "run: start the persistent evaluators of all suites before the first job", 0, 0},
    {"max-jobs", 0, EVQ_OPTION_INTEGER, "N", "run: exit after N jobs", 1, INT64_C(1) << 40},
    {"idle-exit", 0, EVQ_OPTION_INTEGER, "SECONDS", "run: exit after so long without a job", 0,
     1 << 30},
    {"deadline", 0, EVQ_OPTION_INTEGER, "UNIX",
     "run: end before this unix time in seconds; default $SLURM_JOB_END_TIME", 1, INT64_C(1) << 40},
    {"json", 0, EVQ_OPTION_FLAG, NULL, "eval, inspect: print one JSON object", 0, 0},
    {"base", 0, EVQ_OPTION_TEXT, "PATH",
     "inspect, convert: base model of a LoRA adapter; default: the path in the adapter. convert: "
     "also where configuration, tokenizer and names come from if the checkpoint lacks them",
     0, 0},
    {"tokenizer", 0, EVQ_OPTION_TEXT, "DIR",
     "convert: where the tokenizer comes from if the checkpoint lacks it; default: --base", 0, 0},
    {"digest", 0, EVQ_OPTION_FLAG, NULL,
     "inspect: also print a digest of all weights, for which every byte is read", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};
static const struct evq_option *const own_tables[] = {option_table, NULL};
static const struct evq_option *const common_tables[] = {evq_option_log, evq_option_common, NULL};

static const struct evq_man_item word_list[] = {
    {"run", "take jobs from the queue until stopped; the default"},
    {"eval", "evaluate one checkpoint here and now, without Redis"},
    {"inspect", "print what a checkpoint holds"},
    {"convert", "write a checkpoint as a Transformers directory"},
    {"score", "answer requests for log-likelihoods on standard input"},
    {NULL, NULL},
};

const struct evq_man evq_options_man = {
    .name = "evalq-worker",
    .command = "evalq-worker",
    .usage = "[run] [OPTION...]\neval PATH --suite NAME [OPTION...]\ninspect PATH [OPTION...]\n"
             "convert PATH OUTPUT [OPTION...]\nscore [OPTION...]",
    .summary = "evaluate checkpoints",
    .description =
        "`run`, which is the default, takes jobs from the queue and evaluates them until it "
        "is stopped. Each slot evaluates one job at a time. `eval` evaluates one checkpoint "
        "here and now, without Redis. `inspect` prints what a checkpoint holds. `convert` writes "
        "the weights of any checkpoint that evalq reads, with an adapter merged, as a Transformers "
        "directory. Without PATH and OUTPUT, `convert` is a prepare command. `score` answers "
        "evalq's model for lm-evaluation-harness, which starts it.\n\nAfter "
        "SIGTERM or SIGINT the worker takes no more jobs. Running jobs have "
        "worker.drain_seconds to end; then they go back to the queue. A second signal sends "
        "them back at once.\n\nExamples: `evalq-worker --devices auto`, `evalq-worker eval "
        "out/checkpoint-500 --suite heldout`",
    .list_title = "Words",
    .list = word_list,
    .options = own_tables,
    .common = common_tables,
    .environment =
        "EVALQ_CONFIG, EVALQ_URL, EVALQ_QUEUE, EVALQ_REDIS_PASSWORD_FILE, SLURM_JOB_END_TIME.",
};

/* Refuses options that belong to another command, because they would be ignored silently. The help
 * of an option names its commands: "run, eval: ...". */
static enum evq_status options_check(const struct evq_option_set *set, const char *command,
                                     struct evq_error *err)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct evq_option *option = set->values[i].option;
        const char *end = strchr(option->help, ':');
        const char *found = strstr(option->help, command);
        const bool own = option >= option_table &&
                         option < option_table + sizeof option_table / sizeof option_table[0];
        if (own && (found == NULL || found > end)) {
            return evq_error_set(err, EVQ_E_INVALID, "--%s is not an option of %s, but of %.*s",
                                 option->name, command, (int)(end - option->help), option->help);
        }
    }
    return EVQ_OK;
}

/* convert takes both paths, or none: prepare gives them in the environment. */
static enum evq_status paths_take(struct evq_options *options, char **words, int count,
                                  struct evq_error *err)
{
    const bool converts = options->command == EVQ_COMMAND_CONVERT;
    const bool wants_path =
        options->command == EVQ_COMMAND_EVAL || options->command == EVQ_COMMAND_INSPECT;
    const int words_max = wants_path ? 2 : converts ? 3 : 1;

    if (wants_path && count < 2) {
        return evq_error_set(err, EVQ_E_INVALID, "%s needs the PATH of a checkpoint", words[0]);
    }
    if (converts && count == 2) {
        return evq_error_set(err, EVQ_E_INVALID, "convert needs a PATH and an OUTPUT directory");
    }
    if (count > words_max) {
        return evq_error_set(err, EVQ_E_INVALID, "unexpected argument '%s': %s takes %s",
                             words[words_max], words[0],
                             wants_path ? "one PATH"
                             : converts ? "PATH and OUTPUT"
                                        : "none");
    }
    options->path = count > 1 ? words[1] : NULL;
    options->output = count > 2 ? words[2] : NULL;
    return EVQ_OK;
}

static enum evq_status words_take(struct evq_options *options, char **words, int count,
                                  struct evq_error *err)
{
    const char *command = count > 0 ? words[0] : "run";

    if (strcmp(command, "run") == 0) {
        options->command = EVQ_COMMAND_RUN;
    } else if (strcmp(command, "eval") == 0) {
        options->command = EVQ_COMMAND_EVAL;
    } else if (strcmp(command, "inspect") == 0) {
        options->command = EVQ_COMMAND_INSPECT;
    } else if (strcmp(command, "convert") == 0) {
        options->command = EVQ_COMMAND_CONVERT;
    } else if (strcmp(command, "score") == 0) {
        options->command = EVQ_COMMAND_SCORE;
    } else if (strcmp(command, "child") == 0) {
        options->command = EVQ_COMMAND_CHILD;
    } else {
        return evq_error_set(err, EVQ_E_INVALID,
                             "unknown command '%s': expected run, eval, inspect, convert or "
                             "score",
                             command);
    }
    enum evq_status status = paths_take(options, words, count, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (options->command == EVQ_COMMAND_EVAL && options->suite == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "eval needs --suite NAME");
    }
    if (options->variant != NULL && !evq_job_name_valid(options->variant, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "--variant '%.64s' is not 1 to %d of the bytes [A-Za-z0-9._-]",
                             options->variant, EVQ_JOB_NAME_BYTES_MAX);
    }
    return EVQ_OK;
}

enum evq_status evq_options_read(const struct evq_option_set *set, struct evq_options *ret_options,
                                 struct evq_error *err)
{
    struct evq_options options = {
        .source = evq_config_source_of(set),
        .suite = evq_option_text(set, "suite", NULL),
        .variant = evq_option_text(set, "variant", NULL),
        .suites = evq_option_text(set, "suites", NULL),
        .devices = evq_option_text(set, "devices", NULL),
        .slots = (int32_t)evq_option_integer(set, "slots", -1),
        .max_jobs = evq_option_integer(set, "max-jobs", 0),
        .idle_exit_s = evq_option_integer(set, "idle-exit", -1),
        .deadline_s = evq_option_integer(set, "deadline", 0),
        .threads = (int32_t)evq_option_integer(set, "threads", -1),
        .warm = evq_option_flag(set, "warm"),
        .json = evq_option_flag(set, "json"),
        .digest = evq_option_flag(set, "digest"),
        .base = evq_option_text(set, "base", NULL),
        .tokenizer = evq_option_text(set, "tokenizer", NULL),
    };
    enum evq_status status = words_take(&options, set->args, set->arg_count, err);
    if (status == EVQ_OK && options.command < EVQ_COMMAND_CHILD) {
        status = options_check(set, set->arg_count > 0 ? set->args[0] : "run", err);
    }
    if (status == EVQ_OK) {
        *ret_options = options;
    }
    return status;
}
