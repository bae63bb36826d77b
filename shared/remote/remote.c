#include "shared/remote/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/child_environment.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define LINE_BYTES_MAX     65536
#define END_MS             1000 // Time for the helper to end by itself.
#define MANIFEST_BYTES_MAX ((size_t)64 << 20)
#define SAID_BYTES         256

struct evq_remote {
    int fd; // The helper's standard input, output and errors.
    pid_t pid;
    struct evq_buffer received;
    size_t used;                // Bytes of the line that the caller reads.
    struct evq_buffer manifest; // The files of the last listing.
    char said[SAID_BYTES];      // The last line that is not an answer, such as an error of Python.
    char python[SAID_BYTES];
};

/* Starts the helper. Unlike fork(), posix_spawn() does not copy the page tables of a training. */
static int helper_spawn(struct evq_remote *remote, int theirs)
{
    char *argv[] = {remote->python, (char[]){"-m"}, (char[]){"evalq.fetch"}, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;
    // Python then imports no module from the working directory.
    static char safe_path[] = "PYTHONSAFEPATH=1";
    char **envp = evq_child_environment(safe_path);

    if (envp == NULL || posix_spawn_file_actions_init(&actions) != 0) {
        free(envp);
        return ENOMEM;
    }
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        free(envp);
        return ENOMEM;
    }
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    int failed = posix_spawnattr_setsigmask(&attributes, &none);
    failed = failed != 0 ? failed : posix_spawnattr_setsigdefault(&attributes, &all);
    failed = failed != 0 ? failed : posix_spawnattr_setpgroup(&attributes, 0);
    // The helper gets its own process group, so Ctrl-C reaches only us, and we end the helper.
    failed = failed != 0 ? failed
                         : posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK |
                                                                     POSIX_SPAWN_SETSIGDEF |
                                                                     POSIX_SPAWN_SETPGROUP);
    for (int fd = 0; fd < 3 && failed == 0; fd++) {
        failed = posix_spawn_file_actions_adddup2(&actions, theirs, fd);
    }
    failed = failed != 0 ? failed
                         : posix_spawnp(&remote->pid, argv[0], &actions, &attributes, argv, envp);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    free(envp);
    return failed;
}

enum evq_status evq_remote_open(const char *python, struct evq_remote **ret_remote,
                                struct evq_error *err)
{
    const char *given = python[0] != '\0' ? python : getenv("EVALQ_PYTHON");
    struct evq_remote *remote = calloc(1, sizeof(*remote));
    int fds[2];

    if (remote == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the helper for remote stores");
    }
    (void)snprintf(remote->python, sizeof(remote->python), "%s",
                   given != NULL && given[0] != '\0' ? given : "python3");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        free(remote);
        return evq_error_set(err, EVQ_E_IO, "a socket for the helper: %s", strerror(errno));
    }
    evq_buffer_init(&remote->received, (size_t)2 * LINE_BYTES_MAX);
    evq_buffer_init(&remote->manifest, MANIFEST_BYTES_MAX);
    remote->fd = fds[0];
    // dup2() of a descriptor to itself would leave it closed in the new program.
    int theirs = fcntl(fds[1], F_DUPFD_CLOEXEC, 3);
    (void)close(fds[1]);
    const int failed = theirs < 0 ? errno : helper_spawn(remote, theirs);
    evq_file_close(&theirs);
    if (failed != 0) {
        const enum evq_status status = evq_error_set(
            err, failed == ENOMEM ? EVQ_E_NOMEM : EVQ_E_INCOMPLETE,
            "remote stores need Python: '%s' cannot be started (%s); name the interpreter that has "
            "evalq[remote] as worker.python",
            remote->python, strerror(failed));
        evq_remote_close(remote);
        return status;
    }
    *ret_remote = remote;
    return EVQ_OK;
}

/* Ends and reaps the helper. If a training has reaped all its children, waitpid() fails, and the
 * pid may belong to another process, so nothing is killed. */
static void helper_end(pid_t pid)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + END_MS;
    pid_t got = 0;

    while ((got = waitpid(pid, NULL, WNOHANG)) == 0 && evq_clock_left_ms(deadline_ms) > 0) {
        (void)poll(NULL, 0, 2);
    }
    if (got == 0) {
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
}

void evq_remote_close(struct evq_remote *remote)
{
    if (remote == NULL) {
        return;
    }
    // A forked copy of this process may hold the socket open, so a close alone may not be seen.
    (void)shutdown(remote->fd, SHUT_RDWR);
    evq_file_close(&remote->fd);
    if (remote->pid > 0) {
        helper_end(remote->pid);
    }
    evq_buffer_free(&remote->received);
    evq_buffer_free(&remote->manifest);
    free(remote);
}

static enum evq_status helper_ended(const struct evq_remote *remote, struct evq_error *err)
{
    // The interpreter or the package is missing, or the helper was killed.
    const bool missing = strstr(remote->said, "No module named") != NULL;

    return evq_error_set(
        err, missing ? EVQ_E_INCOMPLETE : EVQ_E_RETRY, "the helper '%s -m evalq.fetch' ended%s%s%s",
        remote->python, remote->said[0] != '\0' ? ": " : "", remote->said,
        missing ? "; name the interpreter that has evalq[remote] as worker.python" : "");
}

/* Receives more bytes. EVQ_E_TIMEOUT, EVQ_E_NOMEM; EVQ_E_RETRY: the helper has ended. */
static enum evq_status more_receive(struct evq_remote *remote, int64_t deadline_ms,
                                    struct evq_error *err)
{
    char chunk[16384];

    for (;;) {
        const ssize_t got = recv(remote->fd, chunk, sizeof(chunk), MSG_DONTWAIT);
        if (got > 0) {
            evq_buffer_append(&remote->received, chunk, (size_t)got);
            return evq_buffer_string(&remote->received) != NULL
                       ? EVQ_OK
                       : evq_error_set(err, EVQ_E_NOMEM, "an answer of the helper");
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            return helper_ended(remote, err);
        }
        struct pollfd item = {.fd = remote->fd, .events = POLLIN};
        if (evq_clock_left_ms(deadline_ms) == 0 ||
            poll(&item, 1, evq_clock_left_ms(deadline_ms)) == 0) {
            return evq_error_set(err, EVQ_E_TIMEOUT, "the helper has not answered yet");
        }
    }
}

static enum evq_status error_read(const struct evq_remote_line *line, struct evq_error *err)
{
    static const struct {
        const char *word;
        enum evq_status status;
    } kinds[] = {{"gone", EVQ_E_GONE},       {"changed", EVQ_E_CHANGED},
                 {"full", EVQ_E_FULL},       {"setup", EVQ_E_INCOMPLETE},
                 {"invalid", EVQ_E_INVALID}, {"corrupt", EVQ_E_CORRUPT}};
    enum evq_status status = EVQ_E_RETRY;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        status = strcmp(line->fields[1], kinds[i].word) == 0 ? kinds[i].status : status;
    }
    return evq_error_set(err, status, "%s", line->fields[2]);
}

/* Splits a line of the helper in place. False: the line is not part of an answer. */
static bool line_split(char *text, struct evq_remote_line *ret_line)
{
    size_t count = 0;

    if (text[0] != '@') {
        return false;
    }
    for (char *at = text + 1; at != NULL && count < EVQ_REMOTE_FIELDS_MAX; count++) {
        ret_line->fields[count] = at;
        at = strchr(at, '\t');
        if (at != NULL) {
            *at++ = '\0';
        }
    }
    for (; count < EVQ_REMOTE_FIELDS_MAX; count++) {
        ret_line->fields[count] = "";
    }
    return true;
}

enum evq_status evq_remote_next(struct evq_remote *remote, int64_t deadline_ms,
                                struct evq_remote_line *ret_line, struct evq_error *err)
{
    for (;;) {
        evq_buffer_consume(&remote->received, remote->used);
        remote->used = 0;
        char *end = remote->received.bytes > 0
                        ? memchr(remote->received.data, '\n', remote->received.bytes)
                        : NULL;
        if (end == NULL && remote->received.bytes > LINE_BYTES_MAX) {
            return evq_error_set(err, EVQ_E_RETRY, "the helper wrote a line of more than %d bytes",
                                 LINE_BYTES_MAX);
        }
        if (end == NULL) {
            const enum evq_status status = more_receive(remote, deadline_ms, err);
            if (status != EVQ_OK) {
                return status;
            }
            continue;
        }
        char *text = (char *)remote->received.data;
        *end = '\0';
        remote->used = (size_t)(end - text) + 1;
        if (line_split(text, ret_line)) {
            return strcmp(ret_line->fields[0], "error") == 0 ? error_read(ret_line, err) : EVQ_OK;
        }
        if (text[0] != '\0') {
            (void)snprintf(remote->said, sizeof(remote->said), "%s", text);
        }
    }
}

enum evq_status evq_remote_send(struct evq_remote *remote, const char *const *words, size_t count,
                                struct evq_error *err)
{
    struct evq_buffer line;
    struct evq_remote_line answer;
    size_t sent = 0;

    evq_buffer_init(&line, LINE_BYTES_MAX);
    for (size_t i = 0; i < count; i++) {
        if (strpbrk(words[i], "\t\n\r") != NULL) {
            evq_buffer_free(&line);
            return evq_error_set(err, EVQ_E_INVALID, "'%.200s' has a control byte", words[i]);
        }
        evq_buffer_printf(&line, "%s%s", i > 0 ? "\t" : "", words[i]);
    }
    evq_buffer_text(&line, "\n");
    if (evq_buffer_string(&line) == NULL) {
        evq_buffer_free(&line);
        return evq_error_set(err, EVQ_E_NOMEM, "a request for the helper");
    }
    // A request is small and the helper always reads, so send() does not block.
    while (sent < line.bytes) {
        const ssize_t wrote = send(remote->fd, line.data + sent, line.bytes - sent, MSG_NOSIGNAL);
        if (wrote < 0 && errno != EINTR) {
            break;
        }
        sent += wrote > 0 ? (size_t)wrote : 0;
    }
    const bool whole = sent == line.bytes;
    evq_buffer_free(&line);
    if (whole) {
        return EVQ_OK;
    }
    // The helper may have written why it ended.
    const enum evq_status status =
        evq_remote_next(remote, evq_clock_mono_ms() + END_MS, &answer, err);
    return status == EVQ_OK || status == EVQ_E_TIMEOUT ? helper_ended(remote, err) : status;
}

enum evq_status evq_remote_list_begin(struct evq_remote *remote, const char *address,
                                      const char *key, struct evq_error *err)
{
    const char *const words[] = {"list", address, key};

    evq_buffer_clear(&remote->manifest);
    return evq_remote_send(remote, words, sizeof(words) / sizeof(words[0]), err);
}

enum evq_status evq_remote_list_next(struct evq_remote *remote, int64_t deadline_ms,
                                     struct evq_remote_listing *ret_listing, struct evq_error *err)
{
    struct evq_remote_line line;

    for (;;) {
        const enum evq_status status = evq_remote_next(remote, deadline_ms, &line, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (strcmp(line.fields[0], "file") == 0) {
            evq_buffer_printf(&remote->manifest, "%s\t%s\n", line.fields[1], line.fields[2]);
        } else if (strcmp(line.fields[0], "listing") == 0) {
            if (strlen(line.fields[1]) != EVQ_REMOTE_FINGERPRINT_CHARS) {
                return evq_error_set(err, EVQ_E_RETRY, "the helper sent a wrong fingerprint");
            }
            memcpy(ret_listing->fingerprint, line.fields[1], EVQ_REMOTE_FINGERPRINT_CHARS + 1);
            ret_listing->bytes = strtoll(line.fields[2], NULL, 10);
            ret_listing->manifest = evq_buffer_string(&remote->manifest);
            if (ret_listing->manifest == NULL) {
                return evq_error_set(err, EVQ_E_NOMEM, "a list of files");
            }
            ret_listing->is_file = line.fields[3][0] == 'f';
            return EVQ_OK;
        }
    }
}

enum evq_status evq_remote_list(struct evq_remote *remote, const char *address, const char *key,
                                struct evq_remote_listing *ret_listing, struct evq_error *err)
{
    enum evq_status status = evq_remote_list_begin(remote, address, key, err);

    if (status != EVQ_OK) {
        return status;
    }
    status =
        evq_remote_list_next(remote, evq_clock_mono_ms() + EVQ_REMOTE_LIST_MS, ret_listing, err);
    return status != EVQ_E_TIMEOUT
               ? status
               : evq_error_set(err, EVQ_E_RETRY, "'%.300s' was not listed within %d s", address,
                               EVQ_REMOTE_LIST_MS / 1000);
}
