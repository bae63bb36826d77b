#include "logger/sinks/group.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"

#define REAP_POLL_MS  10
#define STOP_GRACE_MS 3000

extern char **environ;

enum evq_status evq_group_start(const char *who, const char *const *argv, bool answers,
                                pid_t *ret_pid, int *ret_fd, struct evq_error *err)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t usual;

    // A socket, not a pipe: MSG_NOSIGNAL keeps a program that reads nothing from raising SIGPIPE
    // here.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return evq_error_set(err, EVQ_E_IO, "%s: socketpair: %s", who, strerror(errno));
    }
    (void)sigemptyset(&none); // Cannot fail, nor can the setters below with these values.
    (void)sigemptyset(&usual);
    (void)sigaddset(&usual, SIGPIPE); // Ignored here; a shell could not take that back.
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    if (answers) {
        (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    }
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setsigdefault(&attributes, &usual);
    (void)posix_spawnattr_setpgroup(&attributes, 0);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETSIGDEF);
    pid_t pid = 0;
    const int code =
        posix_spawnp(&pid, argv[0], &actions, &attributes, (char *const *)(uintptr_t)argv, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    if (code != 0) {
        (void)close(ends[0]);
        return evq_error_set(err, EVQ_E_IO, "%s: start '%s': %s", who, argv[0], strerror(code));
    }
    *ret_pid = pid;
    *ret_fd = ends[0];
    return EVQ_OK;
}

int evq_group_left_ms(struct evq_group_limit *limit)
{
    if (limit->stop != NULL && atomic_load(limit->stop)) {
        const int64_t grace_ms = evq_clock_mono_ms() + STOP_GRACE_MS;
        limit->deadline_ms = grace_ms < limit->deadline_ms ? grace_ms : limit->deadline_ms;
        limit->stop = NULL; // Heeded.
    }
    return evq_clock_left_ms(limit->deadline_ms);
}

int evq_group_reap(pid_t pid, struct evq_group_limit *limit, bool *ret_killed)
{
    int wait_status = -1;

    *ret_killed = false;
    for (;;) {
        pid_t got = waitpid(pid, &wait_status, *ret_killed ? 0 : WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR)) {
            return wait_status;
        }
        if (got == 0 && evq_group_left_ms(limit) == 0) {
            (void)kill(-pid, SIGKILL); // The group exists: its leader is not yet reaped.
            *ret_killed = true;
        } else if (got == 0) {
            (void)poll(NULL, 0, REAP_POLL_MS);
        }
    }
}
