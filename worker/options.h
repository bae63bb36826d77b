/*
 * The command line of evalq-worker.
 */
#ifndef EVQ_WORKER_OPTIONS_H
#define EVQ_WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/man.h"
#include "shared/config/config.h"

enum evq_options_command {
    EVQ_COMMAND_RUN,
    EVQ_COMMAND_EVAL,
    EVQ_COMMAND_INSPECT,
    EVQ_COMMAND_CHILD, // Not for people: what the supervisor starts for each slot.
    EVQ_COMMAND_AHEAD  // Neither: what reads the checkpoint that may come next.
};

struct evq_options {
    enum evq_options_command command;
    bool help;
    bool version;
    struct evq_config_source source;
    const char *path;    // eval, inspect.
    const char *base;    // inspect: of an adapter; NULL: where the adapter says.
    const char *suite;   // eval.
    const char *variant; // eval: which weights; NULL: regular.
    const char *suites;  // run: "a,b", NULL: all.
    const char *devices; // NULL: the configuration's.
    int32_t slots;       // -1: the configuration's.
    int64_t max_jobs;    // 0: no limit.
    int64_t idle_exit_s; // -1: never.
    int64_t deadline_s;  // Unix seconds; 0: none.
    int32_t threads;     // child, eval: CPU threads; -1: the configuration's.
    bool warm;           // run, child: start persistent evaluators before the first job.
    bool json;
    bool digest;
};

/* Opens the log as the options say. EVQ_E_INVALID with a sentence. Pointers are into argv. */
enum evq_status evq_options_parse(int argc, char **argv, struct evq_options *ret_options,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* What --help prints and the manual page holds. */
extern const struct evq_man evq_options_man;

#endif
