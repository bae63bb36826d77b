/*
 * evalq init: writes a short evalq.yaml for the project in the working directory.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "producer/cli/cli.h"
#include "producer/cli/init/config_file.h"
#include "producer/cli/init/project.h"
#include "producer/cli/init/python_script.h"
#include "producer/cli/verbs.h"
#include "shared/base/buffer.h"

#define SUITE       "eval"
#define SCRIPTS_MAX 16

enum { VARIANT_TRAINER, VARIANT_LIGHTNING }; // Indices of variants[].

struct variant {
    const char *option; // Its value says what to evaluate with.
    /* Writes the sections below `roots`. */
    enum evq_status (*write)(struct evq_cli *cli, const char *value, struct evq_buffer *out,
                             struct evq_error *err);
    const char *add[4]; // Lines for the training program, ended by NULL.
};

static enum evq_status write_served(struct evq_cli *cli, const char *module, const char *value,
                                    const char *remark, struct evq_buffer *out,
                                    struct evq_error *err)
{
    const char *colon = strchr(value, ':');

    if (colon == NULL || colon == value || colon[1] == '\0' || strpbrk(value, "/ ") != NULL ||
        (colon - value > 3 && memcmp(colon - 3, ".py", 3) == 0)) {
        return evq_cli_usage(cli, err,
                             "init: '%s' is not MODULE:FUNCTION, such as my_run:make_trainer for "
                             "the function make_trainer in my_run.py",
                             value);
    }
    evq_buffer_printf(out,
                      "evaluators:\n  mine:\n    kind: persistent # Started once; stays in memory "
                      "between checkpoints.\n    argv: [python3, -m, evalq.%s, ",
                      module);
    evq_config_file_quoted(out, value, strlen(value));
    evq_buffer_printf(
        out,
        "] # %s\n    directory: . # Where python3 finds the module.\n    env_pass: "
        "[PYTHONPATH, \"HF_*\"] # Other variables are not passed on.\nsuites:\n  " SUITE
        ":\n    evaluator: mine\n    tasks: [{name: " SUITE "}]\n",
        remark);
    return EVQ_OK;
}

static enum evq_status write_trainer(struct evq_cli *cli, const char *value, struct evq_buffer *out,
                                     struct evq_error *err)
{
    return write_served(cli, "serve_trainer", value, "The function returns a Trainer.", out, err);
}

static enum evq_status write_lightning(struct evq_cli *cli, const char *value,
                                       struct evq_buffer *out, struct evq_error *err)
{
    return write_served(cli, "serve_lightning", value,
                        "Returns (trainer, module, dataloaders or datamodule).", out, err);
}

static enum evq_status write_function(struct evq_cli *cli, const char *value,
                                      struct evq_buffer *out, struct evq_error *err)
{
    return write_served(cli, "serve", value,
                        "Called with the checkpoint; returns a number or {metric: number}.", out,
                        err);
}

static void command_evaluator(const char *value, struct evq_buffer *out)
{
    evq_buffer_text(out, "evaluators:\n  mine:\n    kind: command # Started for each checkpoint.\n"
                         "    argv: [");
    if (strpbrk(value, "|&;<>()$`\\\"'*?~#{}[]!\n") != NULL) {
        evq_buffer_text(out, "sh, -c, ");
        evq_config_file_quoted(out, value, strlen(value));
    } else {
        const char *between = "";
        for (const char *word = value + strspn(value, " "); *word != '\0';) {
            const size_t bytes = strcspn(word, " ");
            evq_buffer_text(out, between);
            evq_config_file_quoted(out, word, bytes);
            word += bytes + strspn(word + bytes, " ");
            between = ", ";
        }
    }
    evq_buffer_text(out, "]\n    directory: .\n    # It reads the checkpoint $EVALQ_CHECKPOINT and "
                         "writes {\"accuracy\": 0.71} to the file $EVALQ_RESULT.\n"
                         "suites:\n  " SUITE ": {evaluator: mine}\n");
}

static enum evq_status write_command(struct evq_cli *cli, const char *value, struct evq_buffer *out,
                                     struct evq_error *err)
{
    if (value[strspn(value, " ")] == '\0') {
        return evq_cli_usage(cli, err, "init: --command names no program");
    }
    command_evaluator(value, out);
    return EVQ_OK;
}

/* Without a variant: a command that gives a number for any file, until the user names another. */
static enum evq_status write_size(struct evq_cli *cli, const char *value, struct evq_buffer *out,
                                  struct evq_error *err)
{
    (void)cli;
    (void)value;
    (void)err;
    evq_buffer_text(out, "# This command measures the size of a checkpoint, which shows that evalq "
                         "works.\n# Put your own evaluation in its place.\n");
    command_evaluator("echo \"{\\\"bytes\\\": $(du -sb \"$EVALQ_CHECKPOINT\" | cut -f1)}\" > "
                      "\"$EVALQ_RESULT\"",
                      out);
    return EVQ_OK;
}

static enum evq_status write_perplexity(struct evq_cli *cli, const char *value,
                                        struct evq_buffer *out, struct evq_error *err)
{
    struct stat info;

    if (stat(value, &info) != 0 || !S_ISREG(info.st_mode)) {
        cli->exit_code = EVQ_EXIT_USAGE;
        return evq_error_set(err, EVQ_E_NOT_FOUND, "init: there is no text file '%s'", value);
    }
    evq_buffer_text(
        out, "suites:\n  " SUITE ": # Runs on evalq's own engine; reads a Transformers "
             "checkpoint with its tokenizer.\n    tasks:\n      - name: heldout\n"
             "        type: perplexity\n        mode: strided # Windows that overlap by "
             "half; docs/suites.md has the other modes.\n        data: {format: text, text: ");
    evq_config_file_quoted(out, value, strlen(value));
    evq_buffer_text(out, "}\n");
    return EVQ_OK;
}

static enum evq_status write_lm_eval(struct evq_cli *cli, const char *value, struct evq_buffer *out,
                                     struct evq_error *err)
{
    size_t count = 0;

    evq_buffer_text(out,
                    "evaluators:\n  lm-eval:\n    kind: persistent # The harness and its tasks "
                    "stay in memory.\n    argv: [python3, -m, evalq.lm_eval] # With --model, "
                    "evalq: log-likelihoods on evalq's own engine.\n    directory: "
                    ".\n    env_pass: [PYTHONPATH, \"HF_*\"] # Other variables are not passed "
                    "on.\n    start_seconds: 600\nsuites:\n  " SUITE
                    ":\n    evaluator: lm-eval\n    tasks:\n");
    for (const char *task = value; *task != '\0';) {
        const size_t bytes = strcspn(task, ",");
        if (bytes > 0) {
            evq_buffer_text(out, "      - {name: ");
            evq_config_file_quoted(out, task, bytes);
            evq_buffer_text(out, "}\n");
            count++;
        }
        task += bytes + (task[bytes] == ',');
    }
    return count > 0 ? EVQ_OK : evq_cli_usage(cli, err, "init: --lm-eval names no task");
}

static const char client_line[] =
    "client = evalq.Client(run=\"NAME\") # once, after `import evalq`";
static const char submit_line[] =
    "client.submit(path, step=step, suites=\"" SUITE "\") # after each save";
static const char callback_line[] =
    "trainer = Trainer(..., callbacks=[EvalqCallback(\"" SUITE "\")])";

static const struct variant variants[] = {
    [VARIANT_TRAINER] = {"trainer",
                         write_trainer,
                         {"from evalq.integrations.transformers import EvalqCallback",
                          callback_line, NULL}},
    [VARIANT_LIGHTNING] =
        {"lightning",
         write_lightning,
         {"from evalq.integrations.lightning import EvalqCallback",
          "trainer = Trainer(..., callbacks=[EvalqCallback(\"" SUITE "\")],",
          "                  limit_val_batches=0) # no validation inside the training", NULL}},
    {"function", write_function, {client_line, submit_line, NULL}},
    {"command", write_command, {client_line, submit_line, NULL}},
    {"perplexity", write_perplexity, {client_line, submit_line, NULL}},
    {"lm-eval", write_lm_eval, {client_line, submit_line, NULL}},
};
static const struct variant no_variant = {NULL, write_size, {client_line, submit_line, NULL}};

static enum evq_status choose(struct evq_cli *cli, const struct variant **ret_variant,
                              const char **ret_value, struct evq_error *err)
{
    *ret_variant = &no_variant;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const char *value = evq_option_text(&cli->options, variants[i].option, NULL);
        if (value != NULL && *ret_value != NULL) {
            return evq_cli_usage(cli, err, "init: --%s and --%s exclude each other",
                                 (*ret_variant)->option, variants[i].option);
        }
        if (value != NULL) {
            *ret_variant = &variants[i];
            *ret_value = value;
        }
    }
    return EVQ_OK;
}

/*
 * Without an option, chooses the variant of the Python file that trains with Transformers or
 * Lightning, and writes "MODULE:FUNCTION" to ret_value. If there is no such file, changes nothing.
 * EVQ_E_INVALID: there are several such files, and not exactly one of them has the function.
 */
static enum evq_status choose_script(struct evq_cli *cli, struct evq_python_script *ret_script,
                                     const struct variant **ret_variant, char ret_value[256],
                                     struct evq_error *err)
{
    struct evq_python_script scripts[SCRIPTS_MAX];
    const size_t count = evq_python_script_find(scripts, SCRIPTS_MAX);

    if (count == 0) {
        return EVQ_OK;
    }
    const char *function = evq_python_script_function(&scripts[0]);
    *ret_variant = &variants[scripts[0].is_lightning ? VARIANT_LIGHTNING : VARIANT_TRAINER];
    (void)snprintf(ret_value, 256, "%s:%s", scripts[0].module, function);
    if (count > 1 && scripts[0].has_function == scripts[1].has_function) {
        return evq_cli_usage(cli, err,
                             "init: '%s.py' and '%s.py' both use a Trainer: choose one, as in "
                             "`evalq init --%s %s`, or another evaluation (`evalq init --help`)",
                             scripts[0].module, scripts[1].module, (*ret_variant)->option,
                             ret_value);
    }
    *ret_script = scripts[0];
    return EVQ_OK;
}

/* Tells the user which script was found, and which function to add if it is missing. */
static void say_script(const struct evq_cli *cli, const struct evq_python_script *script)
{
    const char *function = evq_python_script_function(script);

    evq_cli_say(cli,
                "evalq: '%s.py' uses %s, so the suite evaluates with what its function %s() "
                "returns",
                script->module, script->is_lightning ? "Lightning" : "a Trainer of Transformers",
                function);
    if (script->has_function) {
        return;
    }
    evq_cli_say(cli,
                "evalq: '%s.py' does not have this function yet: add it, and put the code that "
                "starts the training below the last of these lines:\n\n    def %s():\n        "
                "return %s\n\n    if "
                "__name__ == \"__main__\":\n",
                script->module, function,
                script->is_lightning
                    ? "Trainer(logger=False), MyModule(), DataLoader(my_validation_data)"
                    : "Trainer(model, args, eval_dataset=..., compute_metrics=...)");
}

static void say_next(const struct evq_cli *cli, const struct variant *variant,
                     const struct evq_project *project, const char *script)
{
    if (project->lm_eval && variant == &no_variant) {
        evq_cli_say(cli, "evalq: lm-evaluation-harness is installed; to evaluate with it, use "
                         "`evalq init --lm-eval hellaswag,arc_easy`");
    }
    if (project->checkpoint_count > 0) {
        char shown[sizeof project->directory * 2];
        evq_error_escape(project->directory, strlen(project->directory), shown, sizeof shown);
        evq_cli_say(cli, "evalq: found %zu checkpoint%s in '%s'%s", project->checkpoint_count,
                    project->checkpoint_count == 1 ? "" : "s", shown,
                    project->is_trainer ? ", written by a Trainer" : "");
        evq_cli_say(cli,
                    "evalq: to evaluate them now:\n\n    evalq up -- evalq scan '%s' --run "
                    "%s --suite " SUITE "\n",
                    shown, project->run);
    }
    evq_cli_say(cli, "evalq: to evaluate while training, add to your training program:\n");
    for (size_t i = 0; variant->add[i] != NULL; i++) {
        evq_cli_say(cli, "    %s", variant->add[i]);
    }
    evq_cli_say(cli, "\nevalq: then start the training:\n\n    evalq up -- python %s.py\n",
                script[0] != '\0' ? script : "train");
}

static enum evq_status init_run(struct evq_cli *cli, struct evq_error *err)
{
    const struct variant *variant = NULL;
    const char *value = NULL;
    char found[256];
    struct evq_python_script script = {.module = ""};
    struct evq_project project;
    struct evq_buffer out;
    bool exists = false;

    evq_buffer_init(&out, 65536);
    enum evq_status status = choose(cli, &variant, &value, err);
    if (status == EVQ_OK && value == NULL) {
        status = choose_script(cli, &script, &variant, found, err);
        value = found;
    }
    if (status == EVQ_OK) {
        evq_config_file_head(&out);
        status = variant->write(cli, value, &out, err);
    }
    const char *text = status == EVQ_OK ? evq_buffer_string(&out) : NULL;
    if (status == EVQ_OK && text == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for '" EVQ_CONFIG_FILE "'");
    }
    if (status == EVQ_OK) {
        status = evq_config_file_create(text, &exists, err);
    }
    if (status == EVQ_OK) {
        evq_cli_say(cli, exists ? "evalq: '" EVQ_CONFIG_FILE
                                  "' exists and was not changed; add to it:"
                                : "evalq: wrote '" EVQ_CONFIG_FILE "'");
        if (exists) {
            (void)fputs(text, stdout);
            (void)fflush(stdout);
        }
        if (script.module[0] != '\0') {
            say_script(cli, &script);
        }
        evq_project_read(&project);
        say_next(cli, variant, &project, script.module);
    }
    evq_buffer_free(&out);
    return status;
}

static const struct evq_option options[] = {
    {"trainer", 0, EVQ_OPTION_TEXT, "MODULE:FUNCTION",
     "evaluate with the Transformers Trainer that the function returns", 0, 0},
    {"lightning", 0, EVQ_OPTION_TEXT, "MODULE:FUNCTION",
     "evaluate with the Lightning trainer, module and data that the function returns", 0, 0},
    {"function", 0, EVQ_OPTION_TEXT, "MODULE:FUNCTION",
     "evaluate with this Python function, called with each checkpoint", 0, 0},
    {"command", 0, EVQ_OPTION_TEXT, "COMMAND", "evaluate with this program", 0, 0},
    {"perplexity", 0, EVQ_OPTION_TEXT, "FILE",
     "evaluate the perplexity of this text with evalq's own engine", 0, 0},
    {"lm-eval", 0, EVQ_OPTION_TEXT, "TASK[,TASK...]",
     "evaluate these tasks with lm-evaluation-harness", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_init = {
    .name = "init",
    .arguments = "[--trainer M:F | --lightning M:F | --function M:F | --command COMMAND | "
                 "--perplexity FILE | --lm-eval TASKS]",
    .summary = "Write a short evalq.yaml for the project in this directory",
    .description =
        "Writes evalq.yaml into the working directory, with one suite, `" SUITE "`. Prints what "
        "to add to the training program, and the next command. If evalq.yaml exists, init "
        "does not change it but prints the text to add.\n\nWithout an option, init looks for "
        "a Python file in this directory that imports transformers, trl, lightning or "
        "pytorch_lightning and calls `Trainer(`. The suite then evaluates with the file's "
        "function make_trainer(), or make_validation() for Lightning, and init says what to "
        "add if the function is missing. If there are several such files, the one with the "
        "function is used. Without such a file, the suite measures the size of a checkpoint. "
        "This shows that everything works. Then put your own evaluation in its place. init "
        "also looks for checkpoints in this directory and in the two levels below it, and "
        "for lm-evaluation-harness.\n\nExamples: `evalq "
        "init`, `evalq init --command ./eval.sh`",
    .options = options,
    .arg_min = 0,
    .arg_max = 0,
    .run = init_run,
};
