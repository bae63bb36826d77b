/*
 * The sink `exec`: starts a command for each flush, with one JSON line for each result on its
 * standard input. Exit status 0 means that the command has them. Otherwise, or after
 * timeout_seconds, or if the logger stops and the command does not end within seconds, the same
 * lines come again, so the command must recognise a result_id. The option `command` is a list; no
 * shell runs it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "logger/sinks/helper_program.h"
#include "logger/sinks/sink.h"
#include "shared/base/buffer.h"
#include "shared/base/clock.h"

#define ARGS_MAX        64
#define TIMEOUT_SECONDS 60
#define BATCH_BYTES_MAX (64u << 20)

struct exec {
    char who[64];                   // "sink 'NAME'": messages begin with it.
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
    double seconds = 0;
    struct exec *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", config->name);
    }
    (void)snprintf(sink->who, sizeof(sink->who), "sink '%s'", config->name);
    sink->stop = context->stop;
    evq_buffer_init(&sink->lines, BATCH_BYTES_MAX);
    const size_t argc = evq_sink_option_list(config, "command", sink->argv, ARGS_MAX);
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
        return evq_error_set(err, EVQ_E_NOMEM, "lines for %s", sink->who);
    }
    return EVQ_OK;
}

/* Whether the command took all results, by how it ended. */
static enum evq_status command_verdict(const struct exec *sink, int code, bool killed, bool sent,
                                       struct evq_error *err)
{
    const char *program = sink->argv[0];

    if (killed && sink->stop != NULL && atomic_load(sink->stop)) {
        return evq_error_set(err, EVQ_E_IO, "%s: stopped while '%s' ran", sink->who, program);
    }
    if (killed) {
        return evq_error_set(err, EVQ_E_TIMEOUT, "%s: '%s' ran longer than %lld ms and was killed",
                             sink->who, program, (long long)sink->timeout_ms);
    }
    if (code < 0) {
        return evq_error_set(err, EVQ_E_IO, "%s: how '%s' ended is not known", sink->who, program);
    }
    if (!WIFEXITED(code) || WEXITSTATUS(code) != 0 || !sent) {
        return evq_error_set(err, EVQ_E_IO, "%s: '%s' ended with %s %d%s", sink->who, program,
                             WIFSIGNALED(code) ? "signal" : "status",
                             WIFSIGNALED(code) ? WTERMSIG(code) : WEXITSTATUS(code),
                             sent ? "" : " before it had read everything");
    }
    return EVQ_OK;
}

static enum evq_status exec_flush(void *state, struct evq_error *err)
{
    struct exec *sink = state;
    struct evq_helper helper = {.who = sink->who, .stop = sink->stop};
    const int64_t deadline_ms = evq_clock_mono_ms() + sink->timeout_ms;
    struct evq_error ignored;
    bool killed = false;

    if (sink->lines.bytes == 0) {
        return EVQ_OK;
    }
    enum evq_status status = evq_helper_start(&helper, sink->argv, false, err);
    if (status == EVQ_OK) {
        const bool sent = evq_helper_send(&helper, sink->lines.data, sink->lines.bytes, deadline_ms,
                                          &ignored) == EVQ_OK;
        const int code = evq_helper_end(&helper, deadline_ms, &killed);
        status = command_verdict(sink, code, killed, sent, err);
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
