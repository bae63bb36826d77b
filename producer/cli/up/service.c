#include "producer/cli/up/service.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/program.h"

#define BACKOFF_FIRST_MS 200
#define BACKOFF_MAX_MS   10000
#define STEADY_MS        30000 // After running so long, the back-off begins again.

static char *const *words_of(const struct evq_service *service)
{
    // execvp() does not write to it.
    return service->command != NULL ? service->command : (char *const *)(uintptr_t)service->argv;
}

/* In the child, between fork and exec: only async-signal-safe calls. Returns errno; never on
 * success. */
static int become(const struct evq_service *service, int output, int null_input, pid_t parent)
{
    sigset_t none;
    (void)setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) {
        return errno;
    }
    if (getppid() != parent) {
        _exit(0); // It died before the line above.
    }
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(null_input, STDIN_FILENO) < 0) {
        return errno;
    }
    if (output >= 0 && (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)) {
        return errno;
    }
    if (service->keep_fd >= 0) {
        int flags = fcntl(service->keep_fd, F_GETFD);
        (void)fcntl(service->keep_fd, F_SETFD, flags & ~FD_CLOEXEC);
    }
    execvp(words_of(service)[0], words_of(service));
    return errno;
}

/* Waits until exec() succeeded, or reads from report_fd why it failed. */
static enum evq_status exec_wait(const struct evq_service *service, pid_t pid, int report_fd,
                                 struct evq_error *err)
{
    int code = 0;
    ssize_t got = 0;

    do {
        got = read(report_fd, &code, sizeof code);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof code) {
        return EVQ_OK;
    }
    (void)waitpid(pid, NULL, 0);
    return evq_error_set(err, code == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO, "start %s: '%s': %s",
                         service->name, words_of(service)[0], strerror(code));
}

enum evq_status evq_service_start(struct evq_service *service, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    int report[2] = {-1, -1}; // If exec fails, it carries errno. If exec succeeds, it closes.
    int log_fd = -1;
    int output = service->output_fd;
    pid_t parent = getpid();

    int null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_input < 0 || pipe2(report, O_CLOEXEC) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "start %s: %s", service->name, strerror(errno));
        goto out;
    }
    if (service->log_path != NULL) {
        log_fd = open(service->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log_fd < 0) {
            status =
                evq_error_set(err, EVQ_E_IO, "open '%s': %s", service->log_path, strerror(errno));
            goto out;
        }
        output = log_fd;
    }
    pid_t pid = fork();
    if (pid < 0) {
        status = evq_error_set(err, EVQ_E_IO, "start %s: fork: %s", service->name, strerror(errno));
        goto out;
    }
    if (pid == 0) {
        int code = become(service, output, null_input, parent);
        (void)!write(report[1], &code, sizeof code); // If it fails, nothing else can report it.
        _exit(127);
    }
    (void)setpgid(pid, pid); // Also here, so that the group exists before it is signalled.
    (void)close(report[1]);
    report[1] = -1;
    status = exec_wait(service, pid, report[0], err);
    if (status != EVQ_OK) {
        goto out;
    }
    service->pid = pid;
    service->started_ms = evq_clock_mono_ms();
    service->restart_at_ms = 0;
    service->ended = false;
out:
    for (size_t i = 0; i < 2; i++) {
        evq_file_close(&report[i]);
    }
    evq_file_close(&null_input);
    evq_file_close(&log_fd); // The child has its own.
    return status;
}

bool evq_service_reaped(struct evq_service *service, pid_t pid, int wait_status)
{
    if (service->pid == 0 || service->pid != pid) {
        return false;
    }
    int64_t now = evq_clock_mono_ms();
    uint64_t seed = evq_clock_random();
    if (now - service->started_ms > STEADY_MS) {
        service->restarts = 0;
    }
    service->restart_at_ms =
        now + evq_clock_backoff_ms(&seed, service->restarts, BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
    service->restarts++;
    service->wait_status = wait_status;
    service->ended = true;
    service->pid = 0;
    return true;
}

void evq_service_signal(const struct evq_service *service, int signal_number)
{
    if (service->pid > 0) {
        (void)kill(-service->pid,
                   signal_number); // ESRCH: it has just ended, and waitpid() will see it.
    }
}

void evq_service_end_text(int wait_status, char *out, size_t out_bytes)
{
    if (WIFSIGNALED(wait_status)) {
        (void)snprintf(out, out_bytes, "was killed by signal %d (%s)", WTERMSIG(wait_status),
                       strsignal(WTERMSIG(wait_status)));
    } else {
        (void)snprintf(out, out_bytes, "exited with status %d", WEXITSTATUS(wait_status));
    }
}

bool evq_service_ended_for_good(const struct evq_service *service)
{
    const int code = service->ended && WIFEXITED(service->wait_status)
                         ? WEXITSTATUS(service->wait_status)
                         : EVQ_EXIT_OK;

    return code == EVQ_EXIT_USAGE || code == EVQ_EXIT_CONFIG || code == EVQ_EXIT_VERSION;
}

void evq_service_last_line(const struct evq_service *service, char *out, size_t out_bytes)
{
    char line[1024];
    out[0] = '\0';
    FILE *file = service->log_path != NULL ? fopen(service->log_path, "re") : NULL;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        size_t bytes = strcspn(line, "\n");
        if (bytes > 0) {
            bytes = bytes < out_bytes ? bytes : out_bytes - 1;
            memcpy(out, line, bytes);
            out[bytes] = '\0';
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

enum evq_status evq_service_program(const char *name, char *out, size_t out_bytes,
                                    struct evq_error *err)
{
    char self[4096];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (bytes > 0) {
        self[bytes] = '\0';
        char *slash = strrchr(self, '/');
        if (slash != NULL) {
            slash[1] = '\0';
            int used = snprintf(out, out_bytes, "%s%s", self, name);
            if (used > 0 && (size_t)used < out_bytes && access(out, X_OK) == 0) {
                return EVQ_OK;
            }
        }
    }
    if (evq_file_program_find(name, out, out_bytes)) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_NOT_FOUND,
                         "the program '%s' is neither beside evalq nor in $PATH", name);
}

enum evq_status evq_service_command_check(const char *command, struct evq_error *err)
{
    char path[4096];
    if (strchr(command, '/') != NULL) {
        return access(command, X_OK) == 0
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_NOT_FOUND, "the command '%s' %s", command,
                                   evq_file_program_fault(command, errno, path, sizeof path));
    }
    return evq_file_program_find(command, path, sizeof path)
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_NOT_FOUND,
                               "the command '%s' is not in $PATH: nothing was started", command);
}

void evq_service_reap_all(void)
{
    char path[64];
    int64_t deadline = evq_clock_mono_ms() + 5000;
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    for (;;) {
        int pid = 0;
        FILE *list = fopen(path, "re");
        while (list != NULL && fscanf(list, "%d", &pid) == 1) {
            (void)kill(pid, SIGKILL);
        }
        if (list != NULL) {
            (void)fclose(list);
        }
        pid_t reaped = waitpid(-1, NULL, WNOHANG);
        if (reaped < 0 || evq_clock_mono_ms() > deadline) {
            return; // ECHILD: no child is left.
        }
        if (reaped == 0) {
            (void)usleep(2000);
        }
    }
}
