#include "logger/sinks/helper.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "logger/sinks/group.h"
#include "shared/base/clock.h"

#define LINE_BYTES_MAX (1u << 20)
#define LOOK_MS        50
#define STOP_GRACE_MS  3000

enum evq_status evq_helper_start(struct evq_helper *helper, const char *const *argv,
                                 struct evq_error *err)
{
    const enum evq_status status =
        evq_group_start(helper->who, argv, true, &helper->pid, &helper->fd, err);

    if (status == EVQ_OK) {
        evq_buffer_init(&helper->text, LINE_BYTES_MAX);
    }
    return status;
}

/* Waits until the socket is ready for events, in short looks so that a stop is heeded. */
static enum evq_status ready_wait(const struct evq_helper *helper, short events,
                                  int64_t deadline_ms, struct evq_error *err)
{
    const int64_t begun_ms = evq_clock_mono_ms();

    for (;;) {
        struct pollfd ready = {.fd = helper->fd, .events = events};
        const int left_ms = evq_clock_left_ms(deadline_ms);
        if (poll(&ready, 1, left_ms < LOOK_MS ? left_ms : LOOK_MS) > 0) {
            return EVQ_OK;
        }
        if (evq_clock_left_ms(deadline_ms) == 0) {
            return evq_error_set(err, EVQ_E_TIMEOUT, "%s: its helper does not answer in time",
                                 helper->who);
        }
        if (helper->stop != NULL && atomic_load(helper->stop) &&
            evq_clock_mono_ms() - begun_ms > STOP_GRACE_MS) {
            return evq_error_set(err, EVQ_E_IO, "%s: stopped while it waited", helper->who);
        }
    }
}

/* What its end says; it is reaped later. */
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

    // The line handed out last ends with a NUL in the place of its newline.
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

void evq_helper_end(struct evq_helper *helper, int64_t deadline_ms)
{
    struct evq_group_limit limit = {.deadline_ms = deadline_ms};
    bool killed = false;

    if (helper->pid == 0) {
        return;
    }
    (void)close(helper->fd);                            // The end of its input.
    (void)evq_group_reap(helper->pid, &limit, &killed); // How it ends is of no matter.
    helper->pid = 0;
    evq_buffer_free(&helper->text);
}
