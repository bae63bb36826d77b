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
    EVQ_COMMAND_CONVERT,
    EVQ_COMMAND_SCORE,
    EVQ_COMMAND_CHILD // Internal: the supervisor starts it for each slot.
};

struct evq_options {
    enum evq_options_command command;
    struct evq_config_source source;
    const char *path;   // For eval, inspect and convert.
    const char *output; // For convert: the new directory.
    // For inspect and convert: the base of an adapter; NULL: where the adapter says. For convert
    // also the model whose configuration, tokenizer and names of tensors the checkpoint lacks.
    const char *base;
    const char *tokenizer; // For convert: the directory of a tokenizer; NULL: base.
    const char *suite;     // For eval.
    const char *variant;   // For eval and convert: which weights; NULL: regular.
    const char *suites;    // For run: "a,b"; NULL: all.
    const char *devices;   // NULL: as configured.
    int32_t slots;         // -1: as configured.
    int64_t max_jobs;      // 0: no limit.
    int64_t idle_exit_s;   // -1: never.
    int64_t deadline_s;    // Unix seconds; 0: no deadline.
    int32_t threads;       // For child, eval and score: CPU threads; -1: as configured.
    bool warm;             // For run and child: start persistent evaluators before the first job.
    bool json;
    bool digest;
};

/* EVQ_E_INVALID with a message. Pointers point into argv. */
enum evq_status evq_options_read(const struct evq_option_set *set, struct evq_options *ret_options,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* What --help prints and what the manual page contains. */
extern const struct evq_man evq_options_man;

#endif
