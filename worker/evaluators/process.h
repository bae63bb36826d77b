/*
 * Runs a program in a session of its own and ends it with everything it started. A guard process
 * between us and the program survives our own SIGKILL just long enough to kill the group, so that
 * no grandchild keeps a GPU. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROCESS_H
#define EVQ_WORKER_EVALUATORS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/error.h"

struct evq_process_config {
    const char *const *argv; // NULL-terminated. argv[0] is absolute, or is found on our PATH.
    char *const *envp;       // The whole environment.
    const char *directory;   // Working directory.
    int stdin_fd;            // -1: /dev/null. All three descriptors are borrowed.
    int stdout_fd;
    int stderr_fd;
};

struct evq_process {
    const char *program; // argv[0] of its configuration, borrowed.
    pid_t guard;
    pid_t pid;     // Leader of the session and of the group; 0 until it runs.
    int status_fd; // Poll it for reading beside other descriptors, then call evq_process_check().
    bool ended;
    bool lost;       // The guard vanished, so it is not known how the program ended.
    int exec_errno;  // Why the program could not be started; 0: it was started.
    int wait_status; // As waitpid() gives it, once ended.
};

/* EVQ_E_IO: no process can be made. A program that cannot be executed appears as ended, with
 * exec_errno. */
enum evq_status evq_process_start(const struct evq_process_config *config,
                                  struct evq_process *ret_process,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads what the guard reports, without waiting. Returns process->ended. */
bool evq_process_check(struct evq_process *process);

/* Sends SIGTERM, waits at most grace_ms, sends SIGKILL, and reaps. Does nothing for a process that
 * has ended or was never started (zeroed). */
void evq_process_end(struct evq_process *process, int64_t grace_ms);

/* Writes a text such as "exit status 3", "signal 11 (Segmentation fault)" or "cannot be executed:
 * No such file or directory". */
void evq_process_describe(const struct evq_process *process, char *out, size_t out_bytes);

#endif
