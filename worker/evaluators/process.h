/*
 * A program and all it starts, in a session of its own, ended as a whole. A guard process between
 * us and the program outlives our own SIGKILL just long enough to kill the group, so that no
 * grandchild keeps a GPU. One thread.
 */
#ifndef EVQ_WORKER_PROCESS_H
#define EVQ_WORKER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/error.h"

struct evq_process_config {
    const char *const *argv; // NULL-terminated; argv[0] absolute or found on our PATH.
    char *const *envp;       // The whole environment.
    const char *directory;   // Working directory.
    int stdin_fd;            // -1: /dev/null. All three are borrowed.
    int stdout_fd;
    int stderr_fd;
};

struct evq_process {
    pid_t guard;
    pid_t pid;     // Leader of the session and group; 0 until it runs.
    int status_fd; // To poll for readability beside other descriptors; then evq_process_check().
    bool ended;
    bool lost;       // The guard vanished: how the program ended is not known.
    int exec_errno;  // Why the program could not be started; 0: it was.
    int wait_status; // As waitpid() gives it, once ended.
};

/* EVQ_E_IO when no process can be made. A program that cannot be executed shows as ended with
 * exec_errno. */
enum evq_status evq_process_start(const struct evq_process_config *config,
                                  struct evq_process *ret_process,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes in what the guard says, without waiting. Returns process->ended. */
bool evq_process_check(struct evq_process *process);

/* SIGTERM, at most grace_ms, SIGKILL; then reaps. Safe on an ended or never started (zeroed)
 * process. */
void evq_process_end(struct evq_process *process, int64_t grace_ms);

/* "exit status 3", "signal 11 (Segmentation fault)", "cannot be executed: No such file or
 * directory". */
void evq_process_describe(const struct evq_process *process, char *out, size_t out_bytes);

#endif
