#include "worker/evaluators/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"

enum record_kind { RECORD_PID = 1, RECORD_EXEC_ERRNO, RECORD_EXIT };

struct record { // What goes through the status pipe; smaller than PIPE_BUF, so written whole.
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

/* Everything from here to exec or _exit runs in a forked copy: async-signal-safe calls alone. */

static void program_exec(const struct evq_process_config *config, int status_fd)
{
    static const int reset[] = {SIGPIPE, SIGINT,  SIGTERM, SIGHUP,
                                SIGQUIT, SIGCHLD, SIGUSR1, SIGUSR2};
    sigset_t none;

    (void)setsid(); // Cannot fail: a forked process leads no group.
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    record_write(status_fd, RECORD_PID, (int)getpid());
    for (size_t i = 0; i < sizeof(reset) / sizeof(reset[0]); i++) {
        (void)signal(reset[i], SIG_DFL);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    const int input = config->stdin_fd >= 0 ? config->stdin_fd : open("/dev/null", O_RDONLY);
    // Copied above 2 first, so that no source is overwritten by an earlier dup2().
    const int fds[3] = {fcntl(input, F_DUPFD_CLOEXEC, 3),
                        fcntl(config->stdout_fd, F_DUPFD_CLOEXEC, 3),
                        fcntl(config->stderr_fd, F_DUPFD_CLOEXEC, 3)};
    if (dup2(fds[0], 0) == 0 && dup2(fds[1], 1) == 1 && dup2(fds[2], 2) == 2 &&
        chdir(config->directory) == 0) {
        // execve() takes char *const[]: the strings are not written to.
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

/* Kills whatever the program left that is no longer in its group: as the nearest subreaper, such
 * daemons have become our children. Bounded: one may not die, or fork without end. */
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
        // A number that the end of text cuts off is left for the next round.
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
            return; // None left, or no /proc that tells.
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* True when the program has ended, which leaves it to be reaped. Daemons of it are reaped here. */
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
 * Waits for the program, kills what is left of it, says how it ended. SIGTERM asks it to end the
 * program. When our parent dies, the kernel sends SIGCONT, which a stopped guard receives too.
 */
static void guard_run(const struct evq_process_config *config, int status_fd, pid_t parent)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)signal(SIGCHLD, SIG_DFL); // Ignored, children would be reaped unseen.
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
    // Held open here, the pipes of child and program would never show their end to the other side.
    (void)dup2(status_fd, 0);
    (void)close_range(1, ~0U, 0);
    for (;;) {
        const int got = sigwaitinfo(&all, NULL);
        if (got == SIGTERM || getppid() != parent) {
            group_kill(pid);
        }
        if (program_ended(pid)) {
            break;
        }
    }
    group_kill(pid); // Before it is reaped: its number cannot have been given to another.
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
    *ret_process = (struct evq_process){.guard = guard, .status_fd = fds[0]};
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
                group_kill(process->pid); // The guard was killed: its work falls to us.
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

/* To the whole group; nothing when it has ended. */
static void group_signal(const struct evq_process *process, int signal_number)
{
    if (!process->ended && process->pid > 0) {
        (void)kill(-process->pid, signal_number); // ESRCH: it ended meanwhile.
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
    // A program started a moment ago may not have said its number yet.
    for (int64_t until = evq_clock_mono_ms() + 1000;
         process->pid == 0 && !process->ended && evq_clock_mono_ms() < until;) {
        struct pollfd item = {.fd = process->status_fd, .events = POLLIN};
        (void)poll(&item, 1, 10);
        (void)evq_process_check(process);
    }
    if (grace_ms > 0) {
        group_signal(process, SIGTERM);
        group_signal(process, SIGCONT); // A stopped program must see its SIGTERM.
        process_wait(process, evq_clock_mono_ms() + grace_ms);
    }
    if (!process->ended) {
        (void)kill(process->guard, SIGTERM);
        process_wait(process, evq_clock_mono_ms() + 5000);
    }
    if (!process->ended) { // In uninterruptible sleep, as on a hung GPU: left behind, it must not
                           // hold us.
        process->lost = true;
        process->ended = true;
        (void)close(process->status_fd);
        process->status_fd = -1;
    }
}

void evq_process_describe(const struct evq_process *process, char *out, size_t out_bytes)
{
    if (process->exec_errno != 0) {
        (void)snprintf(out, out_bytes, "cannot be executed: %s", strerror(process->exec_errno));
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
