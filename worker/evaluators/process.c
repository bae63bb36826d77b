#include "worker/evaluators/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"

enum record_kind { RECORD_PID = 1, RECORD_EXEC_ERRNO, RECORD_EXIT };

// What is sent through the status pipe. It is smaller than PIPE_BUF, so it is written at once.
struct record {
    int32_t kind;
    int32_t value;
};

static void record_write(int fd, enum record_kind kind, int value)
{
    const struct record record = {.kind = (int32_t)kind, .value = value};

    ssize_t written;
    do {
        written = write(fd, &record, sizeof(record));
    } while (written < 0 && errno == EINTR);
}

/* Everything from here to exec or _exit runs in a forked copy, so it makes only async-signal-safe
 * calls. */

static void program_exec(const struct evq_process_config *config, int status_fd)
{
    static const int reset[] = {SIGPIPE, SIGINT,  SIGTERM, SIGHUP,
                                SIGQUIT, SIGCHLD, SIGUSR1, SIGUSR2};
    sigset_t none;

    (void)setsid(); // This cannot fail, because a forked process leads no group.
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    record_write(status_fd, RECORD_PID, (int)getpid());
    for (size_t i = 0; i < sizeof(reset) / sizeof(reset[0]); i++) {
        (void)signal(reset[i], SIG_DFL);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    const int input = config->stdin_fd >= 0 ? config->stdin_fd : open("/dev/null", O_RDONLY);
    // The descriptors are first copied to numbers above 2, so that no dup2() overwrites a source.
    const int fds[3] = {fcntl(input, F_DUPFD_CLOEXEC, 3),
                        fcntl(config->stdout_fd, F_DUPFD_CLOEXEC, 3),
                        fcntl(config->stderr_fd, F_DUPFD_CLOEXEC, 3)};
    if (dup2(fds[0], 0) == 0 && dup2(fds[1], 1) == 1 && dup2(fds[2], 2) == 2 &&
        chdir(config->directory) == 0) {
        // execve() takes char *const[] but does not write to the strings.
        char *const *argv = NULL;
        memcpy(&argv, &config->argv, sizeof(argv));
        (void)execvpe(argv[0], argv, config->envp);
    }
    record_write(status_fd, RECORD_EXEC_ERRNO, errno);
    _exit(127);
}

static void group_kill(pid_t pid)
{
    (void)kill(-pid, SIGKILL);
    (void)kill(pid, SIGKILL); // It may not have called setsid() yet.
}

/* Kills processes of the program that left its group. We are the nearest subreaper, so such daemons
 * have become our children. The loop is bounded, because one may not die, or may fork without end.
 */
static void orphans_kill(void)
{
    enum { ROUNDS_MAX = 1000 };
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    char text[4096];

    for (int round = 0; round < ROUNDS_MAX; round++) {
        int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
        const ssize_t bytes = fd >= 0 ? read(fd, text, sizeof(text)) : -1;
        evq_file_close(&fd);
        pid_t pid = 0;
        // A number that is cut off at the end of the text is read again in the next round.
        for (ssize_t i = 0; i < bytes; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
            } else if (pid > 0) {
                (void)kill(pid, SIGKILL);
                pid = 0;
            }
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (bytes <= 0) {
            return; // There are none, or /proc does not tell.
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* True when the program has ended; it is not reaped yet. Daemons of the program are reaped here. */
static bool program_ended(pid_t pid)
{
    siginfo_t info = {0};

    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
        if (info.si_pid == pid) {
            return true;
        }
        (void)waitpid(info.si_pid, NULL, WNOHANG);
        info.si_pid = 0;
    }
    return false;
}

/*
 * Runs the guard: waits for the program, kills what is left of it, and reports how it ended.
 * SIGTERM asks the guard to end the program. If our parent dies, the kernel sends SIGCONT, which
 * even a stopped guard receives.
 */
static void guard_run(const struct evq_process_config *config, int status_fd, pid_t parent)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)signal(SIGCHLD, SIG_DFL); // If SIGCHLD were ignored, children would be reaped unseen.
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (getppid() != parent) {
        _exit(0);
    }
    const pid_t pid = fork();
    if (pid == 0) {
        program_exec(config, status_fd);
    }
    if (pid < 0) {
        record_write(status_fd, RECORD_EXEC_ERRNO, errno);
        _exit(0);
    }
    // If the guard kept these descriptors open, child and program would never see the end of their
    // pipes.
    (void)dup2(status_fd, 0);
    (void)syscall(__NR_close_range, 1U, ~0U, 0U); // The C library has it since 2.34 only.
    for (;;) {
        const int got = sigwaitinfo(&all, NULL);
        if (got == SIGTERM || getppid() != parent) {
            group_kill(pid);
        }
        if (program_ended(pid)) {
            break;
        }
    }
    // This comes before the reap, so that the number cannot belong to another process.
    group_kill(pid);
    int wait_status = 0;
    (void)waitpid(pid, &wait_status, 0);
    orphans_kill();
    record_write(0, RECORD_EXIT, wait_status);
    _exit(0);
}

enum evq_status evq_process_start(const struct evq_process_config *config,
                                  struct evq_process *ret_process, struct evq_error *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0) {
        return evq_error_set(err, EVQ_E_IO, "pipe for '%s': %s", config->argv[0], strerror(errno));
    }
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    const pid_t parent = getpid();
    const pid_t guard = fork();
    if (guard == 0) {
        guard_run(config, fds[1], parent);
        _exit(0);
    }
    const int fork_errno = errno;
    (void)close(fds[1]);
    if (guard < 0) {
        (void)close(fds[0]);
        return evq_error_set(err, EVQ_E_IO, "fork for '%s': %s", config->argv[0],
                             strerror(fork_errno));
    }
    *ret_process =
        (struct evq_process){.program = config->argv[0], .guard = guard, .status_fd = fds[0]};
    return EVQ_OK;
}

static void process_reap(struct evq_process *process)
{
    process->ended = true;
    (void)close(process->status_fd);
    process->status_fd = -1;
    while (waitpid(process->guard, NULL, 0) < 0 && errno == EINTR) {
    }
}

bool evq_process_check(struct evq_process *process)
{
    struct record record;

    while (!process->ended && process->guard > 0) {
        const ssize_t got = read(process->status_fd, &record, sizeof(record));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            break;
        }
        if (got != (ssize_t)sizeof(record)) {
            process->lost = true;
            if (process->pid > 0) {
                group_kill(process->pid); // The guard was killed, so we kill the group ourselves.
            }
            process_reap(process);
        } else if (record.kind == RECORD_PID) {
            process->pid = record.value;
        } else if (record.kind == RECORD_EXEC_ERRNO) {
            process->exec_errno = record.value;
            if (process->pid == 0) {
                process_reap(process);
            }
        } else {
            process->wait_status = record.value;
            process_reap(process);
        }
    }
    return process->ended;
}

/* Signals the whole group. Does nothing if the program has ended. */
static void group_signal(const struct evq_process *process, int signal_number)
{
    if (!process->ended && process->pid > 0) {
        (void)kill(-process->pid, signal_number); // ESRCH means that it ended in the meantime.
    }
}

static void process_wait(struct evq_process *process, int64_t deadline_ms)
{
    while (!evq_process_check(process) && evq_clock_mono_ms() < deadline_ms) {
        struct pollfd item = {.fd = process->status_fd, .events = POLLIN};
        (void)poll(&item, 1, evq_clock_left_ms(deadline_ms));
    }
}

void evq_process_end(struct evq_process *process, int64_t grace_ms)
{
    if (process->guard <= 0 || evq_process_check(process)) {
        return;
    }
    // A program that was started a moment ago may not have reported its number yet.
    for (int64_t until = evq_clock_mono_ms() + 1000;
         process->pid == 0 && !process->ended && evq_clock_mono_ms() < until;) {
        struct pollfd item = {.fd = process->status_fd, .events = POLLIN};
        (void)poll(&item, 1, 10);
        (void)evq_process_check(process);
    }
    if (grace_ms > 0) {
        group_signal(process, SIGTERM);
        group_signal(process, SIGCONT); // A stopped program must receive its SIGTERM.
        process_wait(process, evq_clock_mono_ms() + grace_ms);
    }
    if (!process->ended) {
        (void)kill(process->guard, SIGTERM);
        process_wait(process, evq_clock_mono_ms() + 5000);
    }
    // A process in uninterruptible sleep, as on a hung GPU, is left behind and must not hold us up.
    if (!process->ended) {
        process->lost = true;
        process->ended = true;
        (void)close(process->status_fd);
        process->status_fd = -1;
    }
}

void evq_process_describe(const struct evq_process *process, char *out, size_t out_bytes)
{
    if (process->exec_errno != 0) {
        (void)evq_file_program_fault(process->program, process->exec_errno, out, out_bytes);
    } else if (process->lost) {
        (void)snprintf(out, out_bytes, "its guard process vanished");
    } else if (!process->ended) {
        (void)snprintf(out, out_bytes, "running");
    } else if (WIFSIGNALED(process->wait_status)) {
        const int number = WTERMSIG(process->wait_status);
        (void)snprintf(out, out_bytes, "signal %d (%s)", number, strsignal(number));
    } else {
        (void)snprintf(out, out_bytes, "exit status %d", WEXITSTATUS(process->wait_status));
    }
}
