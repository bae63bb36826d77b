/*
 * The command line of evalq-worker: one table of options that is parsed by, printed by --help and
 * read by the man page.
 */
#ifndef EVQ_WORKER_OPTIONS_H
#define EVQ_WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shared/config.h"
#include "shared/log.h"

enum evq_options_command {
    EVQ_COMMAND_RUN,
    EVQ_COMMAND_EVAL,
    EVQ_COMMAND_INSPECT,
    EVQ_COMMAND_CHILD // Not for people: what the supervisor starts for each slot.
};

struct evq_options {
    enum evq_options_command command;
    bool help;
    bool version;
    struct evq_config_source source;
    const char *path;    // eval, inspect.
    const char *suite;   // eval.
    const char *suites;  // run: "a,b", NULL: all.
    const char *devices; // NULL: the configuration's.
    int32_t slots;       // -1: the configuration's.
    int64_t max_jobs;    // 0: no limit.
    int64_t idle_exit_s; // -1: never.
    int64_t deadline_s;  // Unix seconds; 0: none.
    int32_t threads;     // child, eval: CPU threads; -1: the configuration's.
    bool json;
    bool digest;
    enum evq_log_level log_level;
    enum evq_log_format log_format;
};

/* EVQ_E_INVALID with a sentence. Pointers are into argv and the environment. */
enum evq_status evq_options_parse(int argc, char **argv, struct evq_options *ret_options,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
void evq_options_help(FILE *out);

#endif
