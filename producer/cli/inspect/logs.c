/*
 * evalq logs: the log of a job's last attempt. Prints the whole file if it is on this host,
 * otherwise the end of it, which the worker stored in Redis.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/buffer.h"
#include "shared/queue/attempt_log.h"

#define FILE_BYTES_MAX 65536

/* Prints text line by line, made harmless; of a line that was overwritten, its last state. */
static void print_lines(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t line = end != NULL ? (size_t)(end - (text + at)) : bytes - at;
        size_t left = line;
        const char *state = evq_terminal_last_state(text + at, &left);
        while (left > 0) {
            char shown[4100];
            size_t part = left < 1000 ? left : 1000;
            while (part > 900 && part < left && ((unsigned char)state[part] & 0xC0) == 0x80) {
                part--; // Not through the middle of a character.
            }
            (void)fputs(evq_error_escape(state, part, shown, sizeof shown), stdout);
            state += part;
            left -= part;
        }
        (void)fputc('\n', stdout);
        at += line + 1;
    }
}

/* A log may hold any bytes, and its end begin within a character. */
static enum evq_status print_json(const char *id, int64_t attempt, const char *detail,
                                  const char *file, const char *text, size_t bytes,
                                  struct evq_error *err)
{
    struct evq_buffer out;

    evq_buffer_init(&out, 6 * bytes + 65536); // Each byte is \\u0000 at most.
    evq_buffer_text(&out, "{\n  \"job\": ");
    evq_buffer_json_text(&out, id);
    evq_buffer_printf(&out, ",\n  \"attempt\": %" PRId64 ",\n  \"detail\": ", attempt);
    evq_buffer_json_text(&out, detail);
    evq_buffer_text(&out, ",\n  \"file\": ");
    if (file != NULL) {
        evq_buffer_json_text(&out, file);
    } else {
        evq_buffer_text(&out, "null");
    }
    evq_buffer_text(&out, ",\n  \"log\": ");
    if (text != NULL) {
        evq_buffer_json(&out, text, bytes);
    } else {
        evq_buffer_text(&out, "null");
    }
    evq_buffer_text(&out, "\n}\n");
    const char *whole = evq_buffer_string(&out);
    const enum evq_status status =
        whole != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "the log of '%s'", id);
    (void)fputs(whole != NULL ? whole : "", stdout);
    evq_buffer_free(&out);
    return status;
}

/* Whether a worker of this name, "HOST-0123456789abcdef", runs on this host. */
static bool is_of_this_host(const char *worker)
{
    char host[64] = "";
    const char *dash = strrchr(worker, '-');

    return gethostname(host, sizeof host - 1) == 0 && dash != NULL &&
           strlen(host) == (size_t)(dash - worker) && memcmp(worker, host, strlen(host)) == 0;
}

/* Says why there is no log, and what to do. path: where the log would be on this host. */
static enum evq_status no_log(const json_t *hash, const char *id, int64_t attempt, const char *path,
                              struct evq_error *err)
{
    const int64_t last = evq_json_integer(hash, "attempts", 0);
    const char *state = evq_json_text(hash, "state", "?");
    const char *worker = evq_json_text(hash, "worker", "");

    if (last == 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "'%s' has no log, because no worker has started it (it is %s); `evalq "
                             "show %s` says more",
                             id, state, id);
    }
    if (attempt > last) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "'%s' has no attempt %" PRId64 "; its last attempt is %" PRId64, id,
                             attempt, last);
    }
    if (attempt == last && is_of_this_host(worker)) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "the log of attempt %" PRId64 " of '%s' is empty, because its "
                             "evaluator printed nothing; the job is %s, and `evalq show %s` says "
                             "more (there is no file '%s')",
                             attempt, id, state, id, path);
    }
    return evq_error_set(
        err, EVQ_E_NOT_FOUND,
        "the log of attempt %" PRId64 " of '%s' is not on this host; if its "
        "evaluator printed anything, the log is '%s' on the host of its worker%s%s",
        attempt, id, path, worker[0] != '\0' ? " " : "", worker);
}

static enum evq_status print_log(struct evq_cli *cli, const char *id, const json_t *view,
                                 const char *epoch, struct evq_error *err)
{
    char path[PATH_MAX];
    size_t bytes = 0;
    const json_t *hash = evq_view_fields(view);
    const int64_t last = evq_json_integer(hash, "attempts", 0);
    const int64_t attempt = evq_option_integer(&cli->options, "attempt", last);
    const char *detail = attempt == last ? evq_json_text(view, "detail", "") : ""; // The last's.
    size_t bytes_max = (size_t)evq_option_integer(&cli->options, "bytes", FILE_BYTES_MAX);
    const char *scratch = cli->config->worker.scratch;
    errno = 0;
    char *text = evq_attempt_log_path(scratch, epoch, id, attempt, path, sizeof path)
                     ? evq_attempt_log_tail(path, bytes_max, &bytes)
                     : NULL;
    enum evq_status status = EVQ_OK;

    if (text == NULL && errno == ENOMEM) {
        return evq_error_set(err, EVQ_E_NOMEM, "the log of '%s'", id);
    }
    if (text == NULL && detail[0] == '\0') {
        return no_log(hash, id, attempt, path, err);
    }
    if (cli->terminal.json) {
        status = print_json(id, attempt, detail, text != NULL ? path : NULL, text, bytes, err);
    } else if (text != NULL && bytes == 0) {
        evq_cli_say(cli,
                    "evalq: the log of attempt %" PRId64 " of '%s' is empty, because its evaluator "
                    "printed nothing; `evalq show %s` says how the job ended",
                    attempt, id, id);
    } else if (text != NULL) {
        evq_cli_say(cli, "evalq: %s", path);
        print_lines(text, bytes);
    } else {
        evq_cli_say(cli,
                    "evalq: the log of attempt %" PRId64 " is not on this host; its worker '%s' "
                    "kept this end of it:",
                    attempt, evq_json_text(hash, "worker", "?"));
        print_lines(detail, strlen(detail));
    }
    free(text);
    return status;
}

static enum evq_status logs_run(struct evq_cli *cli, struct evq_error *err)
{
    json_t *view = NULL;
    struct evq_queue_info info;
    const char *id = evq_cli_arg(cli, 0);
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status = evq_queue_info(cli->queue, &info, err);
    }
    if (status == EVQ_OK) {
        status = evq_view_job(cli, id, &view, err);
    }
    if (status == EVQ_OK) {
        status = print_log(cli, id, view, info.epoch, err);
    }
    json_decref(view);
    return status;
}

static const struct evq_option options[] = {
    {"attempt", 'a', EVQ_OPTION_INTEGER, "N", "number of the attempt; default: the last one", 1,
     1000000},
    {"bytes", 'n', EVQ_OPTION_INTEGER, "N", "print at most the last N bytes; default 65536", 1,
     1 << 28},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_logs = {
    .name = "logs",
    .arguments = "JOB [--attempt N]",
    .summary = "Print the log of a job's last attempt",
    .description =
        "Prints what the evaluator wrote to its standard output and standard error. The log "
        "file is in the worker's scratch directory. If that is on another host, logs prints "
        "the last 8 KiB, which the worker stored in Redis when the attempt "
        "failed.\n\nExample: `evalq logs my-run/500/regular/heldout`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_JOBS,
    .run = logs_run,
};
