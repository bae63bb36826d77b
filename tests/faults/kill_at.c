/*
 * Runs a program and kills one process of it with SIGKILL as it enters its K-th system call:
 *
 *     kill_at --at K --report FILE [--child] -- PROGRAM [ARGUMENT...]
 *
 * Calls are counted from the exec of PROGRAM, over all its threads; with --child, from the exec of
 * the first other process that it starts. FILE then holds "calls N killed 0|1": how many were
 * entered, the last of them the deadly one. K 0 kills nothing: that counts. SIGTERM and SIGINT are
 * handed on to PROGRAM; the exit code is its own, 128 and the signal, or 125: it could not be run.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILED 125

static const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                            PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;

struct watch {
    unsigned long long at;
    unsigned long long calls;
    const char *report;
    bool child;
    pid_t first;
    pid_t target; // The process whose calls are counted; 0: not there yet.
    bool killed;
};

static volatile sig_atomic_t first_pid;

static void hand_on(int number)
{
    (void)kill((pid_t)first_pid, number); // It may have ended meanwhile.
}

static void report_write(const struct watch *watch)
{
    FILE *file = fopen(watch->report, "w");

    if (file == NULL || fprintf(file, "calls %llu killed %d\n", watch->calls, watch->killed) < 0 ||
        fclose(file) != 0) {
        (void)fprintf(stderr, "kill_at: '%s': %s\n", watch->report, strerror(errno));
        exit(FAILED);
    }
}

/* The process a thread belongs to; 0: it is gone. */
static pid_t process_of(pid_t thread)
{
    char path[64];
    char line[256];
    int process = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)thread);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Tgid: %d", &process) == 1) {
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file); // Opened for reading.
    }
    return process;
}

static void call_entered(struct watch *watch, pid_t thread)
{
    struct __ptrace_syscall_info info;

    memset(&info, 0, sizeof info);
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof info, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY) {
        return;
    }
    watch->calls++;
    if (watch->calls == watch->at) {
        watch->killed = true;
        (void)kill(watch->target, SIGKILL); // It stands in this call: it cannot have gone.
        report_write(watch);
    }
}

/* One stop of one thread: what is to be done, and on it goes. */
static void stopped(struct watch *watch, pid_t thread, int status)
{
    const int event = status >> 16;
    int number = WSTOPSIG(status);
    const pid_t process = process_of(thread);

    if (number == (SIGTRAP | 0x80)) {
        number = 0;
        if (process == watch->target && !watch->killed) {
            call_entered(watch, thread);
        }
    } else if (event == PTRACE_EVENT_STOP && number != SIGTRAP) {
        (void)ptrace(PTRACE_LISTEN, thread, NULL, NULL); // SIGSTOP: it stands until SIGCONT.
        return;
    } else if (event != 0) {
        number = 0;
        if (event == PTRACE_EVENT_EXEC && watch->target == 0 &&
            watch->child == (process != watch->first)) {
            watch->target = process;
        }
    }
    const bool counted = process == watch->target && process != 0 && !watch->killed;
    // ESRCH: killed meanwhile, which the next wait tells.
    (void)ptrace(counted ? PTRACE_SYSCALL : PTRACE_CONT, thread, NULL, (void *)(long)number);
}

static pid_t start(char **argv)
{
    int go[2];
    char byte = 0;

    if (pipe(go) != 0) {
        return -1;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        (void)close(go[1]);
        const ssize_t got = read(go[0], &byte, 1); // Ends when we are watched.
        (void)close(go[0]);
        if (got == 0) {
            (void)execvp(argv[0], argv);
        }
        _exit(FAILED);
    }
    (void)close(go[0]);
    if (pid > 0 && ptrace(PTRACE_SEIZE, pid, NULL, (void *)options) != 0) {
        (void)kill(pid, SIGKILL); // Still our child: the number is its own.
        (void)close(go[1]);
        return -1;
    }
    (void)close(go[1]);
    return pid;
}

int main(int argc, char **argv)
{
    struct watch watch = {.report = NULL};
    int code = FAILED;
    int i = 1;

    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--child") == 0) {
            watch.child = true;
        } else if (strcmp(argv[i], "--at") == 0 && i + 1 < argc) {
            watch.at = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--report") == 0 && i + 1 < argc) {
            watch.report = argv[++i];
        }
    }
    if (i + 1 >= argc || watch.report == NULL) {
        (void)fprintf(stderr, "kill_at: expected --at K --report FILE [--child] -- PROGRAM\n");
        return FAILED;
    }
    watch.first = start(argv + i + 1);
    if (watch.first < 0) {
        (void)fprintf(stderr, "kill_at: cannot watch '%s': %s\n", argv[i + 1], strerror(errno));
        return FAILED;
    }
    first_pid = watch.first;
    (void)signal(SIGTERM, hand_on);
    (void)signal(SIGINT, hand_on);
    for (;;) {
        int status = 0;
        const pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0 && errno == EINTR) {
            continue;
        }
        if (thread < 0) {
            break; // Nobody is left.
        }
        if (WIFSTOPPED(status)) {
            stopped(&watch, thread, status);
        } else if (thread == watch.first) {
            code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    }
    report_write(&watch);
    return code;
}
