#include "logger/sinks/helper_program.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"

#define LINE_BYTES_MAX (1u << 20)
#define POLL_MS        50 // A stop is noticed this soon.
#define REAP_POLL_MS   10
#define STOP_GRACE_MS  3000

extern char **environ;

enum evq_status evq_helper_start(struct evq_helper *helper, const char *const *argv, bool answers,
                                 struct evq_error *err)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t usual;

    // A socket, not a pipe: MSG_NOSIGNAL avoids SIGPIPE if the program reads nothing.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return evq_error_set(err, EVQ_E_IO, "%s: socketpair: %s", helper->who, strerror(errno));
    }
    (void)sigemptyset(&none); // Cannot fail, nor can the setters below with these values.
    (void)sigemptyset(&usual);
    (void)sigaddset(&usual, SIGPIPE); // The logger ignores it, and a shell could not undo that.
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
        return evq_error_set(err, EVQ_E_IO, "%s: start '%s': %s", helper->who, argv[0],
                             strerror(code));
    }
    helper->pid = pid;
    helper->fd = ends[0];
    helper->grace_ms = 0;
    evq_buffer_init(&helper->text, LINE_BYTES_MAX);
    return EVQ_OK;
}

static bool is_stopped(const struct evq_helper *helper)
{
    return helper->stop != NULL && atomic_load(helper->stop);
}

/* Milliseconds until the deadline, or until 3 s after a stop was noticed. */
static int left_ms(struct evq_helper *helper, int64_t deadline_ms)
{
    if (is_stopped(helper)) {
        helper->grace_ms =
            helper->grace_ms != 0 ? helper->grace_ms : evq_clock_mono_ms() + STOP_GRACE_MS;
        deadline_ms = helper->grace_ms < deadline_ms ? helper->grace_ms : deadline_ms;
    }
    return evq_clock_left_ms(deadline_ms);
}

/* Waits until the socket is ready for events. */
static enum evq_status ready_wait(struct evq_helper *helper, short events, int64_t deadline_ms,
                                  struct evq_error *err)
{
    for (;;) {
        struct pollfd ready = {.fd = helper->fd, .events = events};
        const int left = left_ms(helper, deadline_ms);
        if (poll(&ready, 1, left < POLL_MS ? left : POLL_MS) > 0) {
            return EVQ_OK;
        }
        if (left == 0) {
            return is_stopped(helper)
                       ? evq_error_set(err, EVQ_E_IO, "%s: stopped while it waited", helper->who)
                       : evq_error_set(err, EVQ_E_TIMEOUT, "%s: its helper does not answer in time",
                                       helper->who);
        }
    }
}

static enum evq_status ended(const struct evq_helper *helper, struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_IO, "%s: its helper ended (its messages are in the log)",
                         helper->who);
}

enum evq_status evq_helper_send(struct evq_helper *helper, const void *data, size_t bytes,
                                int64_t deadline_ms, struct evq_error *err)
{
    const char *at = data;

    while (bytes > 0) {
        const enum evq_status status = ready_wait(helper, POLLOUT, deadline_ms, err);
        if (status != EVQ_OK) {
            return status;
        }
        const ssize_t put = send(helper->fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno != EINTR && errno != EAGAIN) {
            return ended(helper, err);
        }
        at += put > 0 ? put : 0;
        bytes -= put > 0 ? (size_t)put : 0;
    }
    return EVQ_OK;
}

enum evq_status evq_helper_line(struct evq_helper *helper, int64_t deadline_ms,
                                const char **ret_line, struct evq_error *err)
{
    char block[4096];
    char *newline = NULL;

    // The line that was returned last ends with a NUL instead of its newline.
    if (helper->text.bytes > 0) {
        const char *last = memchr(helper->text.data, '\0', helper->text.bytes);
        if (last != NULL) {
            evq_buffer_consume(&helper->text, (size_t)(last - (char *)helper->text.data) + 1);
        }
    }
    while (helper->text.bytes == 0 ||
           (newline = memchr(helper->text.data, '\n', helper->text.bytes)) == NULL) {
        const enum evq_status status = ready_wait(helper, POLLIN, deadline_ms, err);
        if (status != EVQ_OK) {
            return status;
        }
        const ssize_t got = recv(helper->fd, block, sizeof(block), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
            return ended(helper, err);
        }
        if (got > 0 && memchr(block, '\0', (size_t)got) != NULL) {
            return evq_error_set(err, EVQ_E_CORRUPT, "%s: its helper writes no text", helper->who);
        }
        evq_buffer_append(&helper->text, block, got > 0 ? (size_t)got : 0);
        if (helper->text.failed) {
            return evq_error_set(err, EVQ_E_LIMIT, "%s: its helper writes a line over %u bytes",
                                 helper->who, LINE_BYTES_MAX);
        }
    }
    *newline = '\0';
    *ret_line = (const char *)helper->text.data;
    return EVQ_OK;
}

int evq_helper_end(struct evq_helper *helper, int64_t deadline_ms, bool *ret_killed)
{
    int wait_status = -1;

    *ret_killed = false;
    if (helper->pid == 0) {
        return -1;
    }
    (void)close(helper->fd); // The end of its input.
    for (;;) {
        const pid_t got = waitpid(helper->pid, &wait_status, *ret_killed ? 0 : WNOHANG);
        if (got == helper->pid || (got < 0 && errno != EINTR)) {
            break;
        }
        if (got == 0 && left_ms(helper, deadline_ms) == 0) {
            (void)kill(-helper->pid, SIGKILL); // The group exists: its leader is not yet reaped.
            *ret_killed = true;
        } else if (got == 0) {
            (void)poll(NULL, 0, REAP_POLL_MS);
        }
    }
    helper->pid = 0;
    evq_buffer_free(&helper->text);
    return wait_status;
}
