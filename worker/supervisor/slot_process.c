/* The child process of a slot: fork and exec, its death, and its pipes. */
#include "worker/supervisor/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/child_environment.h"
#include "shared/base/clock.h"
#include "worker/child/child.h"

void evq_slot_forked(pid_t parent)
{
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(0);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Runs in the forked copy, so it makes only async-signal-safe calls. */
static void child_exec(const struct evq_slot_spawn *spawn, char *const *envp, int channel_fd,
                       int errors_fd, pid_t parent)
{
    char *const *argv = NULL;

    evq_slot_forked(parent);
    const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    // The descriptors are copied first, because each may already have the number that the other
    // must get. The numbers are as low as possible, because few may be free.
    const int channel_copy = fcntl(channel_fd, F_DUPFD_CLOEXEC, EVQ_CHILD_FD + 1);
    const int errors_copy = fcntl(errors_fd, F_DUPFD_CLOEXEC, EVQ_CHILD_FD + 1);
    // execve() takes char *const[] but does not write to it.
    memcpy(&argv, &spawn->argv, sizeof(argv));
    if (dup2(input, 0) == 0 && dup2(errors_copy, 1) == 1 && dup2(errors_copy, 2) == 2 &&
        dup2(channel_copy, EVQ_CHILD_FD) == EVQ_CHILD_FD) {
        (void)execve("/proc/self/exe", argv, envp);
    }
    _exit(127);
}

enum evq_status evq_slot_start(struct evq_slot *slot, const struct evq_slot_spawn *spawn,
                               struct evq_error *err)
{
    char devices_line[EVQ_DEVICES_TEXT + 32];
    int pair[2] = {-1, -1};

    (void)snprintf(devices_line, sizeof(devices_line), "CUDA_VISIBLE_DEVICES=%s", slot->devices);
    char **envp = evq_child_environment(devices_line);
    if (envp == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "slot %u", slot->number);
    }
    enum evq_status status = evq_program_log_open(NULL, INT64_MAX, &slot->errors, err);
    if (status != EVQ_OK) {
        goto out;
    }
    // This is -1 if our own standard error is closed.
    slot->errors.file_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "socketpair for slot %u: %s", slot->number,
                               strerror(errno));
        goto out;
    }
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        child_exec(spawn, envp, pair[1], slot->errors.write_fd, parent);
    }
    (void)close(pair[1]);
    if (pid < 0) {
        status =
            evq_error_set(err, EVQ_E_IO, "fork for slot %u: %s", slot->number, strerror(errno));
        (void)close(pair[0]);
        goto out;
    }
    evq_program_log_started(&slot->errors);
    evq_channel_open(&slot->channel, pair[0]);
    slot->pid = pid;
    slot->ending = EVQ_CAUSE_NONE;
    slot->kill_ms = slot->limit_ms = 0;
    slot->last_note_ms = evq_clock_mono_ms();
    evq_slot_move(slot, EVQ_SLOT_ON_STARTED);
out:
    if (status != EVQ_OK) {
        evq_program_log_close(&slot->errors);
    }
    free(envp);
    return status;
}

void evq_slot_kill(struct evq_slot *slot)
{
    slot->kill_ms = 0;
    if (slot->pid > 0) {
        (void)kill(slot->pid, SIGKILL);
    }
    evq_slot_move(slot, EVQ_SLOT_ON_LEAVES);
}

bool evq_slot_reap(struct evq_slot *slot, int *ret_wait_status)
{
    if (slot->pid <= 0 || waitpid(slot->pid, ret_wait_status, WNOHANG) != slot->pid) {
        return false;
    }
    slot->pid = 0;
    return true;
}

void evq_slot_close(struct evq_slot *slot)
{
    evq_channel_close(&slot->channel);
    (void)evq_program_log_read(&slot->errors);
    evq_program_log_close(&slot->errors);
    slot->kill_ms = slot->limit_ms = 0;
    slot->ending = EVQ_CAUSE_NONE;
    slot->warm[0] = '\0';
    evq_slot_move(slot, EVQ_SLOT_ON_CHILD_DIED);
}
