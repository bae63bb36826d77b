/*
 * A child process that `evalq up` keeps running: its own process group, its output in a log file, a
 * back-off between restarts, dead when its parent dies. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_UP_SERVICE_H
#define EVQ_PRODUCER_CLI_UP_SERVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/error.h"

#define EVQ_SERVICE_ARGS_MAX 32

struct evq_service {
    char name[32];                          // For example "redis", "worker-1" or "logger".
    const char *argv[EVQ_SERVICE_ARGS_MAX]; // NULL-terminated; argv[0] is a path or found in $PATH.
                                            // Borrowed.
    char *const *command; // In the place of argv, of any length; NULL: argv. Borrowed.
    const char *log_path; // Standard output and error are appended to it; NULL: output_fd, or
                          // inherited when that is -1.
    int output_fd;
    int keep_fd;     // Stays open in the child (a lock it shares); -1: none.
    pid_t pid;       // 0: not running.
    int wait_status; // The status of its last end, from waitpid().
    bool ended;      // Has run and ended.
    uint32_t restarts;
    int64_t started_ms;    // Monotonic.
    int64_t restart_at_ms; // Monotonic; 0: no restart is due.
};

/* Starts it. EVQ_E_NOT_FOUND: no such program; EVQ_E_IO. */
enum evq_status evq_service_start(struct evq_service *service,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Handles the end of the process pid, which waitpid() returned. true: it was this service's
 * process. Sets when to restart it. */
bool evq_service_reaped(struct evq_service *service, pid_t pid, int wait_status);

/* Sends the signal to the whole process group. Does nothing if the service does not run. */
void evq_service_signal(const struct evq_service *service, int signal_number);

/* "exited with status 3", "was killed by signal 9 (Killed)". */
void evq_service_end_text(int wait_status, char *out, size_t out_bytes);

/* Whether it ended for a reason that a restart cannot fix: usage, configuration, version. */
bool evq_service_ended_for_good(const struct evq_service *service);
/* Reads the last line of its log. "": the log is empty. */
void evq_service_last_line(const struct evq_service *service, char *out, size_t out_bytes);

/* Whether the user's command can be started: a file that may be run, or a name in $PATH.
 * EVQ_E_NOT_FOUND: it cannot. */
enum evq_status evq_service_command_check(const char *command,
                                          struct evq_error *err) EVQ_CHECK_RESULT;
/* Absolute path of a program of evalq: beside the running one, else as found in $PATH.
 * EVQ_E_NOT_FOUND. */
enum evq_status evq_service_program(const char *name, char *out, size_t out_bytes,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Kills and reaps every child process that is left, also adopted ones. */
void evq_service_reap_all(void);

#endif
