/*
 * Any command as a sink: started once per flush with one JSON line per result on its standard
 * input; exit status 0 means it has them. Otherwise, or past timeout_seconds, the same lines come
 * again: the command must know a result_id it has seen. So it is when the logger is told to end and
 * the command does not within seconds. argv is the sink's option `command`, a
 * list; no shell.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "logger/sinks/group.h"
#include "logger/sinks/sink.h"
#include "shared/base/buffer.h"
#include "shared/base/clock.h"

#define ARGS_MAX        64
#define TIMEOUT_SECONDS 60
#define BATCH_BYTES_MAX (64u << 20)
#define LOOK_MS         100

struct exec {
    const char *name;
    const char *argv[ARGS_MAX + 1]; // Into the configuration.
    int64_t timeout_ms;
    const atomic_bool *stop;
    struct evq_buffer lines;
};

static void exec_close(void *state)
{
    struct exec *sink = state;

    if (sink != NULL) {
        evq_buffer_free(&sink->lines);
        free(sink);
    }
}

static enum evq_status exec_open(const struct evq_sink_context *context, void **ret_state,
                                 struct evq_error *err)
{
    const struct evq_sink_config *config = context->sink;
    char key[32];
    double seconds = 0;
    size_t argc = 0;
    struct exec *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", config->name);
    }
    sink->name = config->name;
    sink->stop = context->stop;
    evq_buffer_init(&sink->lines, BATCH_BYTES_MAX);
    for (; argc < ARGS_MAX; argc++) {
        (void)snprintf(key, sizeof(key), "command.%zu", argc);
        sink->argv[argc] = evq_pair_get(config->options, config->option_count, key, NULL);
        if (sink->argv[argc] == NULL) {
            break;
        }
    }
    enum evq_status status =
        evq_sink_option_seconds(config, "timeout_seconds", TIMEOUT_SECONDS, &seconds, err);
    sink->timeout_ms = (int64_t)(seconds * 1000);
    if (status == EVQ_OK && (argc == 0 || sink->argv[0][0] == '\0')) {
        status = evq_error_set(err, EVQ_E_INVALID,
                               "sink '%s': no command; expected command: [program, argument, ...]",
                               config->name);
    }
    if (status != EVQ_OK) {
        exec_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

static enum evq_status exec_write(void *state, const struct evq_result *result,
                                  struct evq_error *err)
{
    struct exec *sink = state;

    evq_result_json(result, &sink->lines);
    evq_buffer_text(&sink->lines, "\n");
    if (sink->lines.failed) {
        evq_buffer_clear(&sink->lines);
        return evq_error_set(err, EVQ_E_NOMEM, "lines for sink '%s'", sink->name);
    }
    return EVQ_OK;
}

/* Sends all lines; false when the command stopped reading or the deadline passed (its exit status
 * then decides). */
static bool lines_send(const struct exec *sink, int fd, struct evq_group_limit *limit)
{
    size_t done = 0;

    while (done < sink->lines.bytes) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        const int left_ms = evq_group_left_ms(limit);
        if (left_ms == 0) {
            return false;
        }
        if (poll(&ready, 1, left_ms < LOOK_MS ? left_ms : LOOK_MS) == 0) {
            continue; // Perhaps there was a stop.
        }
        ssize_t put = send(fd, sink->lines.data + done, sink->lines.bytes - done,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (put < 0) {
            return false;
        }
        done += (size_t)put;
    }
    return true;
}

static enum evq_status exec_flush(void *state, struct evq_error *err)
{
    struct exec *sink = state;
    struct evq_group_limit limit = {evq_clock_mono_ms() + sink->timeout_ms, sink->stop};
    char who[128];
    pid_t pid = 0;
    int fd = -1;
    bool killed = false;

    if (sink->lines.bytes == 0) {
        return EVQ_OK;
    }
    (void)snprintf(who, sizeof(who), "sink '%s'", sink->name);
    enum evq_status status = evq_group_start(who, sink->argv, false, &pid, &fd, err);
    if (status == EVQ_OK) {
        bool sent = lines_send(sink, fd, &limit);
        (void)close(fd); // End of input for the command.
        int code = evq_group_reap(pid, &limit, &killed);
        if (killed && sink->stop != NULL && atomic_load(sink->stop)) {
            status = evq_error_set(err, EVQ_E_IO, "sink '%s': stopped while '%s' ran", sink->name,
                                   sink->argv[0]);
        } else if (killed) {
            status =
                evq_error_set(err, EVQ_E_TIMEOUT, "sink '%s': '%s' ran over %lld ms and was killed",
                              sink->name, sink->argv[0], (long long)sink->timeout_ms);
        } else if (code < 0) {
            status = evq_error_set(err, EVQ_E_IO, "sink '%s': how '%s' ended is not known",
                                   sink->name, sink->argv[0]);
        } else if (!WIFEXITED(code) || WEXITSTATUS(code) != 0 || !sent) {
            status = evq_error_set(err, EVQ_E_IO, "sink '%s': '%s' ended with %s %d%s", sink->name,
                                   sink->argv[0], WIFSIGNALED(code) ? "signal" : "status",
                                   WIFSIGNALED(code) ? WTERMSIG(code) : WEXITSTATUS(code),
                                   sent ? "" : " before it had read everything");
        }
    }
    evq_buffer_clear(&sink->lines); // After a failure the logger gives the same results again.
    return status;
}

static const char *const options[] = {"command.", "timeout_seconds", NULL};

const struct evq_sink_ops evq_sink_exec = {
    .kind = "exec",
    .options = options,
    .ends = true,
    .open = exec_open,
    .write = exec_write,
    .flush = exec_flush,
    .close = exec_close,
};
