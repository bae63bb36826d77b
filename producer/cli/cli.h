/*
 * What every verb of `evalq` shares: what was given, where to print, and, opened on demand,
 * configuration and queue. One thread. Data goes to standard output, messages to standard error.
 */
#ifndef EVQ_CLI_CLI_H
#define EVQ_CLI_CLI_H

#include "producer/cli/terminal.h"
#include "producer/cli/verbs.h"
#include "shared/base/option.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

struct evq_cli {
    const struct evq_verb *verb;
    struct evq_option_set options;
    struct evq_terminal terminal;
    struct evq_config *config; // NULL until evq_cli_config().
    struct evq_conn *conn;     // NULL until evq_cli_open().
    struct evq_queue *queue;
    int exit_code; // 0: the status says it. Else what the process ends with: EVQ_EXIT_JOB_FAILED,
                   // EVQ_EXIT_USAGE, ...
};

/* Loads the configuration once. */
enum evq_status evq_cli_config(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
/* Configuration, connection and queue, without I/O to Redis. */
enum evq_status evq_cli_connect(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
/* The same, then one round trip that checks the function library. A Redis that asks to wait, as
 * while it reads its data after a start, is waited for: 10 s, or wait_ms. */
enum evq_status evq_cli_open(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_cli_open_within(struct evq_cli *cli, int64_t wait_ms,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cli_close(struct evq_cli *cli);

/* One command with text arguments, for what queue.h has no verb for (CONFIG GET, INFO). */
enum evq_status evq_cli_call(struct evq_cli *cli, struct evq_reply **ret_reply,
                             struct evq_error *err, size_t arg_count, ...) EVQ_CHECK_RESULT;

/* A message for people on standard error, unless --quiet. The text is printed as it is: escape what
 * is from outside. */
void evq_cli_say(const struct evq_cli *cli, const char *format, ...) EVQ_PRINTF(2, 3);

/* Whether a destructive verb may go on: --yes, or "y" typed on a terminal. EVQ_E_INVALID otherwise.
 */
enum evq_status evq_cli_confirm(struct evq_cli *cli, const char *question,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Wrong use of a verb: EVQ_E_INVALID and exit code EVQ_EXIT_USAGE. */
enum evq_status evq_cli_usage(struct evq_cli *cli, struct evq_error *err, const char *format, ...)
    EVQ_PRINTF(3, 4);

/* Whether the arguments are names of what the verb takes; wrong ones are its wrong use. */
enum evq_status evq_cli_check_args(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for one that its own words say is a "run" or a "suite" (kind). */
enum evq_status evq_cli_check_name(struct evq_cli *cli, const char *kind, const char *name,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_NOT_FOUND: by its counts, the queue knows no such run. */
enum evq_status evq_cli_check_run(const struct evq_cli *cli, const char *run,
                                  const struct evq_run_counts *counts,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* The same where nobody has counted yet. */
enum evq_status evq_cli_find_run(struct evq_cli *cli, const char *run,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* The index-th positional argument; NULL when not given. */
const char *evq_cli_arg(const struct evq_cli *cli, int index);

#endif
