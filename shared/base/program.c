#include "shared/base/program.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "shared/base/bash_completion.h"
#include "shared/base/json_memory.h"

#define TABLES_MAX 8

static enum evq_status options_parse(const struct evq_man *man, int argc, char **argv,
                                     struct evq_option_set *set, struct evq_error *err)
{
    const struct evq_option *tables[TABLES_MAX] = {NULL};
    size_t count = 0;

    for (size_t i = 0; man->options[i] != NULL && count + 1 < TABLES_MAX; i++) {
        tables[count++] = man->options[i];
    }
    for (size_t i = 0; man->common[i] != NULL && count + 1 < TABLES_MAX; i++) {
        tables[count++] = man->common[i];
    }
    const enum evq_status status = evq_option_parse(set, tables, argc, argv, false, err);
    if (status == EVQ_OK && set->arg_count > 0 && man->list == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "unexpected argument '%s'", set->args[0]);
    }
    return status;
}

bool evq_program_begin(const struct evq_man *man, int argc, char **argv, struct evq_option_set *set,
                       int *ret_code)
{
    const struct rlimit none = {0, 0};
    struct evq_error err = {EVQ_OK, ""};

    evq_json_memory_watch();
    (void)setrlimit(RLIMIT_CORE, &none); // Lowering it is always allowed.
    (void)signal(SIGPIPE, SIG_IGN);      // Cannot fail for this signal, nor for the next.
    // If our parent ignored it, we would not learn when a child ends.
    (void)signal(SIGCHLD, SIG_DFL);
    *ret_code = EVQ_EXIT_OK;
    if (argc == 3 && strcmp(argv[1], "--write-man") == 0) {
        if (evq_bash_completion_pages(man, argv[2], &err) != EVQ_OK) {
            *ret_code = evq_program_fail(man, &err, EVQ_EXIT_ERROR);
        }
        return false;
    }
    if (options_parse(man, argc, argv, set, &err) != EVQ_OK) {
        *ret_code = evq_program_fail(man, &err, EVQ_EXIT_USAGE);
        return false;
    }
    if (evq_option_flag(set, "help")) {
        evq_man_help(man, stdout);
        return false;
    }
    if (evq_option_flag(set, "version")) {
        (void)printf("%s %s\n", man->command, EVQ_VERSION);
        return false;
    }
    evq_option_log_open(set, man->command);
    return true;
}

void evq_program_signals(bool hup, sigset_t *ret_signals)
{
    (void)sigemptyset(ret_signals);
    (void)sigaddset(ret_signals, SIGTERM);
    (void)sigaddset(ret_signals, SIGINT);
    if (hup) {
        (void)sigaddset(ret_signals, SIGHUP);
    }
    (void)pthread_sigmask(SIG_BLOCK, ret_signals, NULL);
}

int evq_program_exit_code(enum evq_status status)
{
    if (status == EVQ_E_TIMEOUT) {
        return EVQ_EXIT_UNREACHABLE;
    }
    return status == EVQ_E_INVALID ? EVQ_EXIT_CONFIG : (int)evq_status_exit_code(status);
}

int evq_program_fail(const struct evq_man *man, const struct evq_error *err, int code)
{
    char line[2048]; // Words of the command line may hold anything.

    (void)fprintf(stderr, "%s: %s\n", man->command,
                  evq_error_escape(err->message, strlen(err->message), line, sizeof(line)));
    return code;
}
