/*
 * evalq logs: the log of a job's last attempt: the whole file where it is on this host, else the
 * end that its worker kept in Redis.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/job_log.h"

#define FILE_BYTES_MAX 65536

/* Prints text line by line, made harmless. */
static void print_lines(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t line = end != NULL ? (size_t)(end - (text + at)) : bytes - at;
        for (size_t from = 0; from < line || from == 0;) {
            char shown[4100];
            size_t part = line - from < 1000 ? line - from : 1000;
            while (part > 900 && from + part < line &&
                   ((unsigned char)text[at + from + part] & 0xC0) == 0x80) {
                part--; // Not through the middle of a character.
            }
            (void)fputs(evq_error_escape(text + at + from, part, shown, sizeof shown), stdout);
            from += part;
            if (part == 0) {
                break;
            }
        }
        (void)fputc('\n', stdout);
        at += line + 1;
    }
}

static enum evq_status print_log(struct evq_cli *cli, const char *id, const json_t *view,
                                 const char *epoch, struct evq_error *err)
{
    char path[PATH_MAX];
    size_t bytes = 0;
    const json_t *hash = evq_view_hash(view);
    const char *detail = evq_json_text(view, "detail", "");
    int64_t attempt =
        evq_option_integer(&cli->options, "attempt", evq_json_integer(hash, "attempts", 0));
    size_t bytes_max = (size_t)evq_option_integer(&cli->options, "bytes", FILE_BYTES_MAX);
    const char *scratch = cli->config->worker.scratch;
    errno = 0;
    char *text = evq_job_log_path(scratch, epoch, id, attempt, path, sizeof path)
                     ? evq_job_log_tail(path, bytes_max, &bytes)
                     : NULL;
    enum evq_status status = EVQ_OK;

    if (text == NULL && errno == ENOMEM) {
        return evq_error_set(err, EVQ_E_NOMEM, "the log of '%s'", id);
    }
    if (text == NULL && detail[0] == '\0') {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "no log of '%s': it is %s, its worker kept nothing in Redis, and "
                             "'%s' is not on this host (nor anywhere, if it wrote nothing)",
                             id, evq_json_text(hash, "state", "?"), path);
    }
    if (cli->terminal.json) {
        json_t *doc =
            json_pack("{s:s, s:I, s:s, s:s?, s:o?}", "job", id, "attempt", (json_int_t)attempt,
                      "detail", detail, "file", text != NULL ? path : NULL, "log",
                      text != NULL ? json_stringn(text, bytes) : NULL);
        status = evq_json_print(doc, err);
        json_decref(doc);
    } else if (text != NULL) {
        evq_cli_say(cli, "evalq: %s", path);
        print_lines(text, bytes);
    } else {
        evq_cli_say(cli, "evalq: what the worker '%s' kept of attempt %s",
                    evq_json_text(hash, "worker", "?"), evq_json_text(hash, "attempts", "?"));
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
    {"attempt", 'a', EVQ_OPTION_INTEGER, "N", "of this attempt; default the last", 1, 1000000},
    {"bytes", 'n', EVQ_OPTION_INTEGER, "N", "at most so much of the end; default 65536", 1,
     1 << 28},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_logs = {
    .name = "logs",
    .arguments = "JOB [--attempt N]",
    .summary = "Print the log of a job's last attempt",
    .description = "The file in the worker's scratch directory, when that is on this host; else "
                   "the end of it that the "
                   "worker put into Redis when the attempt failed (at most 8 KiB).",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_JOBS,
    .run = logs_run,
};
