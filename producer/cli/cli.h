/*
 * The state that every verb of `evalq` gets: its options, the terminal, and the configuration and
 * the queue, which are opened on demand. One thread. Data goes to standard output, messages to
 * standard error.
 */
#ifndef EVQ_PRODUCER_CLI_CLI_H
#define EVQ_PRODUCER_CLI_CLI_H

#include "producer/cli/terminal.h"
#include "producer/cli/verbs.h"
#include "shared/base/option.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

struct evq_remote;

struct evq_cli {
    const struct evq_verb *verb;
    struct evq_option_set options;
    struct evq_terminal terminal;
    struct evq_config *config; // NULL until evq_cli_config().
    struct evq_conn *conn;     // NULL until evq_cli_open().
    struct evq_queue *queue;
    struct evq_remote *remote; // The helper for remote stores; NULL: it does not run.
    bool pin_told;             // The user was told that remote checkpoints cannot be pinned.
    int exit_code; // Exit code of the process, such as EVQ_EXIT_JOB_FAILED. 0: the verb's status
                   // decides.
};

/* Loads the configuration once. */
enum evq_status evq_cli_config(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
/* Loads the configuration and opens connection and queue, without I/O to Redis. */
enum evq_status evq_cli_connect(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
/* Like evq_cli_connect(), then makes one round trip that checks the function library. If Redis
 * still loads its data after a start, this waits for at most 10 s, or wait_ms. */
enum evq_status evq_cli_open(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_cli_open_within(struct evq_cli *cli, int64_t wait_ms,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cli_close(struct evq_cli *cli);

/* Sends one command with text arguments, such as CONFIG GET, which queue.h does not cover. */
enum evq_status evq_cli_call(struct evq_cli *cli, struct evq_reply **ret_reply,
                             struct evq_error *err, size_t arg_count, ...) EVQ_CHECK_RESULT;

/* Prints a message for people on standard error, unless --quiet was given. Escape text from outside
 * first: this prints it as it is. */
void evq_cli_say(const struct evq_cli *cli, const char *format, ...) EVQ_PRINTF(2, 3);

/* If Redis knows the user but refused the command, adds to the error which role the verb needs. */
void evq_cli_name_role(const struct evq_cli *cli, struct evq_error *err);

/* Asks whether a destructive verb may go on. EVQ_OK: --yes was given, or "y" was typed on a
 * terminal.
 */
enum evq_status evq_cli_confirm(struct evq_cli *cli, const char *question,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Reports wrong use of a verb: EVQ_E_INVALID and exit code EVQ_EXIT_USAGE. */
enum evq_status evq_cli_usage(struct evq_cli *cli, struct evq_error *err, const char *format, ...)
    EVQ_PRINTF(3, 4);

/* Reports that the verb has too many arguments or too few. If it lacks a run, names the newest runs
 * of the queue. */
enum evq_status evq_cli_wrong_arguments(struct evq_cli *cli, struct evq_error *err);

/* Checks that the arguments are valid names of what the verb takes. Reports wrong use if not. */
enum evq_status evq_cli_check_args(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;
/* Checks one name. kind: "run" or "suite". */
enum evq_status evq_cli_check_name(struct evq_cli *cli, const char *kind, const char *name,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_NOT_FOUND if the counts of the run say that the queue does not know it. */
enum evq_status evq_cli_check_run(const struct evq_cli *cli, const char *run,
                                  const struct evq_run_counts *counts,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Asks the queue for the counts of the run, then calls evq_cli_check_run(). */
enum evq_status evq_cli_find_run(struct evq_cli *cli, const char *run,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* The positional argument at `index`. NULL: it was not given. */
const char *evq_cli_arg(const struct evq_cli *cli, int index);

#endif
