/*
 * evalq suite: adds a suite that runs tasks of a harness against a model server to evalq.yaml.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "producer/cli/cli.h"
#include "producer/cli/init/config_file.h"
#include "producer/cli/json.h"
#include "producer/cli/verbs.h"
#include "shared/base/file.h"

#define TASKS_MAX  64
#define BYTES_MAX  (1 << 20)
#define NO_SUCH    3 // check_tasks exits with it if the harness has no such task.
#define NEW_SERVER "vllm"

struct addition {
    char kind[32];            // Kind of the harness.
    char tasks[1024];         // Names, each ended by NUL.
    char *names[TASKS_MAX];   // They point into tasks.
    size_t count;             // How many names.
    char suite[128];          // The name of the suite.
    const char *server;       // The value of --server. NULL: any server.
    const char *evaluator;    // The name of the evaluator.
    const char *python;       // The interpreter that has the harness.
    bool is_evaluator_needed; // The file has no such evaluator.
};

/* "lm-eval:gsm8k,ifeval" */
static enum evq_status read_words(struct evq_cli *cli, struct addition *add, struct evq_error *err)
{
    const char *text = evq_cli_arg(cli, 1);
    const char *colon = strchr(text, ':');
    char *rest = NULL;

    if (strcmp(evq_cli_arg(cli, 0), "add") != 0) {
        return evq_cli_usage(cli, err, "suite: '%s' is no action, expected add",
                             evq_cli_arg(cli, 0));
    }
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof add->kind ||
        strlen(colon + 1) >= sizeof add->tasks) {
        return evq_cli_usage(
            cli, err, "suite: '%s' is not HARNESS:TASK[,TASK...], such as lm-eval:gsm8k", text);
    }
    (void)snprintf(add->kind, sizeof add->kind, "%.*s", (int)(colon - text), text);
    (void)snprintf(add->tasks, sizeof add->tasks, "%s", colon + 1);
    for (char *word = strtok_r(add->tasks, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        if (add->count == TASKS_MAX) {
            return evq_cli_usage(cli, err, "suite: at most %d tasks", TASKS_MAX);
        }
        add->names[add->count++] = word;
    }
    if (add->count == 0) {
        return evq_cli_usage(cli, err, "suite: '%s' names no task", text);
    }
    // A task may be named by a path: inspect_evals/gsm8k, tasks.py@addition.
    const char *last = add->names[0];
    for (const char *at = strpbrk(last, "/@|"); at != NULL && at[1] != '\0';
         at = strpbrk(last, "/@|")) {
        last = at + 1;
    }
    (void)snprintf(add->suite, sizeof add->suite, "%s",
                   evq_option_text(&cli->options, "name", last));
    return evq_cli_check_name(cli, "suite", add->suite, err);
}

/* Whether it is a model server of that kind. */
static bool serves(const struct evq_evaluator *evaluator, const char *server)
{
    json_t *settings =
        evaluator->settings[0] != '\0' ? json_loads(evaluator->settings, 0, NULL) : NULL;
    const bool found =
        settings != NULL &&
        (server == NULL || strcmp(evq_json_text(settings, "server", NEW_SERVER), server) == 0);
    json_decref(settings);
    return found;
}

static enum evq_status choose_evaluator(struct evq_cli *cli, struct addition *add,
                                        struct evq_error *err)
{
    const struct evq_config *config = cli->config;

    for (size_t i = 0; i < config->suite_count; i++) {
        if (strcmp(config->suites[i].name, add->suite) == 0) {
            return evq_cli_usage(cli, err,
                                 "suite: '%s' has a suite '%s'; --name gives another name",
                                 config->file, add->suite);
        }
    }
    add->server = evq_option_text(&cli->options, "server", NULL);
    for (size_t i = 0; i < config->evaluator_count; i++) {
        if (serves(&config->evaluators[i], add->server)) {
            add->evaluator = config->evaluators[i].name;
            add->python = config->evaluators[i].argv[0];
            return EVQ_OK;
        }
    }
    add->is_evaluator_needed = true;
    add->server = add->server != NULL ? add->server : NEW_SERVER;
    add->evaluator = add->server;
    add->python = evq_option_text(&cli->options, "harness-python", "python3");
    return evq_config_evaluator(config, add->evaluator) == NULL
               ? EVQ_OK
               : evq_cli_usage(cli, err, "suite: the evaluator '%s' of '%s' is no model server",
                               add->evaluator, config->file);
}

/* Asks the installed harness for its tasks. It writes to standard error what is wrong. */
static enum evq_status check_tasks(struct evq_cli *cli, const struct addition *add,
                                   struct evq_error *err)
{
    char *argv[TASKS_MAX + 5] = {(char *)(uintptr_t)add->python, "-m",
                                 "evalq.model_server.check_tasks", (char *)(uintptr_t)add->kind};
    pid_t pid = 0;
    int how = 0;

    memcpy(argv + 4, add->names, add->count * sizeof *argv);
    const int code = posix_spawnp(&pid, add->python, NULL, NULL, argv, environ);
    if (code != 0) {
        return evq_error_set(err, EVQ_E_IO, "suite: start '%s': %s", add->python, strerror(code));
    }
    while (waitpid(pid, &how, 0) < 0) {
        if (errno != EINTR) {
            return evq_error_set(err, EVQ_E_IO, "suite: wait for '%s': %s", add->python,
                                 strerror(errno));
        }
    }
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
        cli->exit_code =
            WIFEXITED(how) && WEXITSTATUS(how) == NO_SUCH ? EVQ_EXIT_NOT_FOUND : EVQ_EXIT_ERROR;
    }
    return EVQ_OK;
}

static void put_evaluator(const struct evq_cli *cli, const struct addition *add,
                          struct evq_buffer *out)
{
    static const char *const pythons[] = {"python", "harness-python"};

    evq_buffer_printf(out, "  %s:\n    kind: model_server\n    server: %s\n", add->evaluator,
                      add->server);
    for (size_t i = 0; i < sizeof pythons / sizeof pythons[0]; i++) {
        const char *value = evq_option_text(&cli->options, pythons[i], NULL);
        if (value != NULL) {
            evq_buffer_printf(out, "    %s: ", i == 0 ? "python" : "harness_python");
            evq_config_file_quoted(out, value, strlen(value));
            evq_buffer_text(out, "\n");
        }
    }
    evq_buffer_text(out, "    env_pass: [PYTHONPATH, \"HF_*\"] # Other variables are not passed "
                         "on.\n");
}

static void put_suite(const struct addition *add, struct evq_buffer *out)
{
    evq_buffer_printf(out, "  %s:\n    evaluator: %s\n    harness: {kind: %s, tasks: [", add->suite,
                      add->evaluator, add->kind);
    for (size_t i = 0; i < add->count; i++) {
        evq_buffer_text(out, i > 0 ? ", " : "");
        evq_config_file_quoted(out, add->names[i], strlen(add->names[i]));
    }
    evq_buffer_text(out, "]}\n");
}

/* Adds lines to the section of the text in *buffer. */
static enum evq_status insert(struct evq_buffer *buffer, const char *section,
                              struct evq_buffer *lines, struct evq_error *err)
{
    struct evq_buffer changed;
    const char *text = evq_buffer_string(buffer);
    const char *added = evq_buffer_string(lines);

    evq_buffer_init(&changed, BYTES_MAX);
    enum evq_status status =
        text == NULL || added == NULL
            ? evq_error_set(err, EVQ_E_NOMEM, "no memory for '" EVQ_CONFIG_FILE "'")
            : evq_config_file_insert(text, section, added, &changed, err);
    if (status == EVQ_OK) {
        evq_buffer_free(buffer);
        *buffer = changed;
    } else {
        evq_buffer_free(&changed);
    }
    return status;
}

/* Reads the text as a configuration before it replaces the file, so that what we add cannot break
 * it. */
static enum evq_status check_text(const char *path, const char *text, struct evq_error *err)
{
    char name[PATH_MAX];
    struct evq_config *config = NULL;
    const struct evq_config_source source = {.file = name};

    const int bytes = snprintf(name, sizeof name, "%s.XXXXXX", path);
    int fd = bytes > 0 && (size_t)bytes < sizeof name ? mkostemp(name, O_CLOEXEC) : -1;
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "write beside '%s': %s", path, strerror(errno));
    }
    enum evq_status status = evq_file_write(fd, text, strlen(text), name, err);
    evq_file_close(&fd);
    if (status == EVQ_OK) {
        status = evq_config_load(&source, &config, err);
    }
    (void)unlink(name); // It was ours alone.
    evq_config_free(config);
    return status;
}

static enum evq_status write_text(const char *path, const char *text, struct evq_error *err)
{
    struct stat info;
    char real[PATH_MAX];
    bool exists = false;

    enum evq_status status = check_text(path[0] != '\0' ? path : EVQ_CONFIG_FILE, text, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (path[0] == '\0') {
        status = evq_config_file_create(text, &exists, err);
        return exists ? evq_error_set(err, EVQ_E_IO, "'" EVQ_CONFIG_FILE "' was written meanwhile")
                      : status;
    }
    if (realpath(path, real) == NULL || stat(real, &info) != 0) { // The file behind a link.
        return evq_error_set(err, EVQ_E_IO, "'%s': %s", path, strerror(errno));
    }
    return evq_file_replace(real, text, strlen(text), info.st_mode & 07777, err);
}

/* Prints the suite if it cannot be added to the file. */
static void print_additions(const struct addition *add, struct evq_buffer *evaluator,
                            struct evq_buffer *suite)
{
    const char *evaluator_text = evq_buffer_string(evaluator);
    const char *suite_text = evq_buffer_string(suite);

    if (add->is_evaluator_needed && evaluator_text != NULL) {
        (void)printf("evaluators:\n%s", evaluator_text);
    }
    if (suite_text != NULL) {
        (void)printf("suites:\n%s", suite_text);
    }
}

static enum evq_status change_file(struct evq_cli *cli, const struct addition *add,
                                   struct evq_error *err)
{
    const char *path = cli->config->file;
    struct evq_buffer text;
    struct evq_buffer evaluator;
    struct evq_buffer suite;
    struct evq_error cause = {0};
    enum evq_status status = EVQ_OK;

    evq_buffer_init(&text, BYTES_MAX);
    evq_buffer_init(&evaluator, BYTES_MAX);
    evq_buffer_init(&suite, BYTES_MAX);
    put_evaluator(cli, add, &evaluator);
    put_suite(add, &suite);
    if (path[0] == '\0') {
        evq_config_file_head(&text);
    } else {
        status = evq_file_read(AT_FDCWD, path, 0, BYTES_MAX, &text, err);
    }
    if (status != EVQ_OK) {
        goto out;
    }
    status = add->is_evaluator_needed ? insert(&text, "evaluators", &evaluator, &cause) : EVQ_OK;
    status = status == EVQ_OK ? insert(&text, "suites", &suite, &cause) : status;
    const char *whole = status == EVQ_OK ? evq_buffer_string(&text) : NULL;
    if (whole != NULL) {
        status = write_text(path, whole, &cause);
    }
    if (status != EVQ_OK) {
        cli->exit_code = EVQ_EXIT_CONFIG;
        (void)evq_error_set(err, status, "suite: '%s' was not changed, because %s; add this to it",
                            path[0] != '\0' ? path : EVQ_CONFIG_FILE, cause.message);
        print_additions(add, &evaluator, &suite);
        goto out;
    }
    evq_cli_say(cli, "evalq: added the suite '%s' to '%s'", add->suite,
                path[0] != '\0' ? path : EVQ_CONFIG_FILE);
out:
    evq_buffer_free(&suite);
    evq_buffer_free(&evaluator);
    evq_buffer_free(&text);
    return status;
}

static enum evq_status suite_run(struct evq_cli *cli, struct evq_error *err)
{
    struct addition add = {0};

    enum evq_status status = read_words(cli, &add, err);
    if (status == EVQ_OK) {
        status = evq_cli_config(cli, err);
    }
    if (status == EVQ_OK) {
        status = choose_evaluator(cli, &add, err);
    }
    if (status == EVQ_OK) {
        status = check_tasks(cli, &add, err);
    }
    return status == EVQ_OK && cli->exit_code == 0 ? change_file(cli, &add, err) : status;
}

static const struct evq_option options[] = {
    {"server", 0, EVQ_OPTION_CHOICE, "vllm|sglang",
     "the server; default: the first model server in the file, or vllm", 0, 0},
    {"name", 0, EVQ_OPTION_TEXT, "SUITE", "the name of the suite; default: the first task", 0, 0},
    {"python", 0, EVQ_OPTION_TEXT, "PYTHON", "for a new evaluator: the interpreter of the server",
     0, 0},
    {"harness-python", 0, EVQ_OPTION_TEXT, "PYTHON",
     "for a new evaluator: the interpreter that has evalq and the harness", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_suite = {
    .name = "suite",
    .arguments = "add HARNESS:TASK[,TASK...] [--server SERVER]",
    .summary = "Add a suite of generative tasks to evalq.yaml",
    .description =
        "Adds a suite to evalq.yaml that runs these tasks of a harness (lm-eval, lmms-eval, "
        "inspect or lighteval) on a model server. Also adds the evaluator for the server if there "
        "is none. All other lines of the file stay as they are. If there is no evalq.yaml, this "
        "verb writes one. If it cannot add the lines to the file, it prints them.\n\n"
        "Exit code 3: the installed harness has no such task. The message names the nearest "
        "one.\n\n"
        "Example: `evalq suite add lm-eval:gsm8k --server vllm`",
    .words = "add",
    .options = options,
    .arg_min = 2,
    .arg_max = 2,
    .run = suite_run,
};
