/*
 * The processes of `evalq up`: redis-server, workers, logger, gateway and perhaps a command. One
 * loop watches them and takes the signals of the terminal. One thread. One manager per process,
 * because it owns the process's children.
 */
#ifndef EVQ_PRODUCER_CLI_UP_PROCESS_MANAGER_H
#define EVQ_PRODUCER_CLI_UP_PROCESS_MANAGER_H

#include "producer/cli/cli.h"
#include "producer/cli/json.h"
#include "producer/cli/up/server.h"

#define EVQ_PROCESS_MANAGER_WORKERS_MAX 64

struct evq_process_manager {
    struct evq_cli *cli;
    char directory[EVQ_SERVER_PATH_MAX];
    int lock_fd;    // Held by this process and by redis-server. A second `up` waits until both are
                    // gone.
    int signal_fd;  // SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGWINCH.
    int stop_count; // How often a stop was asked for.
    int stop_signal;
    struct evq_server server;
    struct evq_service services[EVQ_PROCESS_MANAGER_WORKERS_MAX + 1]; // Workers, then the logger.
    size_t service_count;
    char worker_program[EVQ_SERVER_PATH_MAX];
    char logger_program[EVQ_SERVER_PATH_MAX];
    char logs[EVQ_PROCESS_MANAGER_WORKERS_MAX + 1][EVQ_SERVER_PATH_MAX];
    const char *devices; // The --devices of the workers. NULL: they use the CPU.
    char slots[16];
    char threads[16];
    char results[EVQ_SERVER_PATH_MAX]; // Where the logger writes.
    struct evq_service command; // The user's command. While it runs, no failure of a service ends
                                // `up`. pid 0: there is none.
    struct evq_service gateway; // Serves the page. argv[0] NULL: it is off.
    char gateway_program[EVQ_SERVER_PATH_MAX];
    char gateway_log[EVQ_SERVER_PATH_MAX];
    char gateway_tokens[EVQ_SERVER_PATH_MAX];
    char gateway_listen[96];  // "127.0.0.1:8000"
    char gateway_address[96]; // "http://127.0.0.1:8000"; "": not known yet.
    char page_key[49];        // "": the tokens are the user's own.
    char page[160];           // The address of the page with its key; "": there is none.
};

/* Takes the lock of directory and blocks the signals. EVQ_E_CONFLICT: another `evalq up` works
 * there. */
enum evq_status evq_process_manager_open(struct evq_process_manager *manager, struct evq_cli *cli,
                                         const char *directory,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
/* Starts redis-server and installs the functions; cli then talks to it. */
enum evq_status evq_process_manager_start_server(struct evq_process_manager *manager,
                                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Starts workers, each with slots (0: as configured), and the logger. */
enum evq_status evq_process_manager_start_workers(struct evq_process_manager *manager, int workers,
                                                  int slots,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* Waits until the workers' persistent evaluators are ready, and says so. A failed start is reported
 * but is no error, because the first job tries again. */
enum evq_status evq_process_manager_await_evaluators(struct evq_process_manager *manager,
                                                     struct evq_error *err) EVQ_CHECK_RESULT;
/* Waits until each worker has registered with the queue, for 30 s at most or until a stop. If a
 * worker cannot run, for example because its GPU is missing, evq_process_manager_step() reports it.
 */
enum evq_status evq_process_manager_await_workers(struct evq_process_manager *manager,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_INVALID: no worker of this `up` can run, and no other worker serves the queue. The message
 * is the worker's last line. Sets the exit code. */
enum evq_status evq_process_manager_workers_left(struct evq_process_manager *manager,
                                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether no open job of the queue can run here: each waits for a suite or a label that no worker
 * has, and no worker is still starting. stats: from evq_view_stats(). *ret_why: a reason, borrowed
 * from stats. With --workers 0 always false, because the user then starts the workers. */
bool evq_process_manager_is_stuck(const struct evq_process_manager *manager, const json_t *stats,
                                  const char **ret_why);
/* Starts the gateway. If the program is missing and the configuration has no section for it, says
 * so and goes on. */
enum evq_status evq_process_manager_start_gateway(struct evq_process_manager *manager,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* Waits until the gateway listens, for 30 s at most or until a stop, and writes DIRECTORY/page. */
enum evq_status evq_process_manager_await_gateway(struct evq_process_manager *manager,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Waits up to timeout_ms for signals or for extra_fd to be readable (-1: none), reaps and restarts.
 * After EVQ_OK, read stop_count and command.ended to learn what happened. EVQ_E_INVALID,
 * EVQ_E_VERSION, ...: a service cannot run; the message is its own last line.
 */
enum evq_status evq_process_manager_step(struct evq_process_manager *manager, int extra_fd,
                                         int timeout_ms, bool *ret_readable,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
/* Call it after the command has ended. Drains workers and logger, ends redis-server, and removes
 * url and socket. Kills the services that do not end. */
void evq_process_manager_stop(struct evq_process_manager *manager);

#endif
