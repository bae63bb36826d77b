#include "producer/cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/json.h"
#include "producer/cli/poll_delay.h"
#include "shared/base/clock.h"
#include "shared/config/config.h"
#include "shared/remote/remote.h"

#define CALL_ARGS_MAX 32
#define LOADING_MS    10000
#define RUNS_SHOWN    3

enum evq_status evq_cli_config(struct evq_cli *cli, struct evq_error *err)
{
    if (cli->config != NULL) {
        return EVQ_OK;
    }
    const struct evq_config_source source = evq_config_source_of(&cli->options);
    enum evq_status status = evq_config_load(&source, &cli->config, err);
    if (status != EVQ_OK && status != EVQ_E_NOMEM) {
        cli->exit_code = EVQ_EXIT_CONFIG;
    }
    return status;
}

enum evq_status evq_cli_connect(struct evq_cli *cli, struct evq_error *err)
{
    if (cli->queue != NULL) {
        return EVQ_OK;
    }
    enum evq_status status = evq_cli_config(cli, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (cli->conn == NULL) {
        const struct evq_conn_config config = evq_config_conn(cli->config, "evalq-cli");
        status = evq_conn_open(&config, &cli->conn, err);
        if (status != EVQ_OK) {
            if (status == EVQ_E_INVALID || status == EVQ_E_IO) {
                cli->exit_code = EVQ_EXIT_CONFIG; // The address or its password file is wrong.
                                                  // Redis was not asked yet.
            }
            return status;
        }
    }
    status = evq_queue_open(cli->conn, cli->config->redis.queue, &cli->queue, err);
    if (status == EVQ_E_INVALID) {
        cli->exit_code = EVQ_EXIT_CONFIG;
    }
    return status;
}

/* Most often such a server was not started, or another one was meant: says where the address came
 * from. */
static void add_advice(const struct evq_cli *cli, struct evq_error *err)
{
    static const char *const advice[] = {
        [EVQ_CONFIG_URL_DEFAULT] = ("the default address, because no `evalq up` runs in this "
                                    "directory: start one, change to its directory, or give --url"),
        [EVQ_CONFIG_URL_OPTION] = "from --url",
        [EVQ_CONFIG_URL_ENVIRONMENT] = "from $EVALQ_URL",
        [EVQ_CONFIG_URL_UP] = "from ./.evalq/url; `evalq up` may have been killed: start it again",
        [EVQ_CONFIG_URL_FILE] = "from redis.url of the configuration",
    };
    struct evq_error cause = *err;
    (void)evq_error_set(err, cause.status, "cannot reach Redis: %.380s (%s)", cause.message,
                        advice[cli->config->redis.url_from]);
}

/* Waits while Redis answers that it is loading its data or busy.
 */
static enum evq_status await_loading(struct evq_cli *cli, int64_t wait_ms, struct evq_error *err)
{
    struct evq_queue_info info;
    const int64_t deadline = evq_clock_mono_ms() + wait_ms;
    uint32_t looks = 0;
    enum evq_status status = evq_queue_info(cli->queue, &info, err);
    while (status == EVQ_E_RETRY && evq_clock_mono_ms() < deadline) {
        if (looks == 0) {
            evq_cli_say(cli, "evalq: Redis asks to wait; trying for at most %d s",
                        (int)(wait_ms / 1000));
        }
        evq_poll_delay(&looks, deadline);
        status = evq_queue_info(cli->queue, &info, err);
    }
    return status;
}

enum evq_status evq_cli_open(struct evq_cli *cli, struct evq_error *err)
{
    return evq_cli_open_within(cli, LOADING_MS, err);
}

enum evq_status evq_cli_open_within(struct evq_cli *cli, int64_t wait_ms, struct evq_error *err)
{
    enum evq_status status = evq_cli_connect(cli, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = await_loading(cli, wait_ms, err);
    if (status == EVQ_E_TIMEOUT) {
        cli->exit_code =
            EVQ_EXIT_UNREACHABLE; // Exit code 124 is for waits that the user asked for.
    }
    if (status == EVQ_E_IO || status == EVQ_E_TIMEOUT) {
        add_advice(cli, err);
    }
    return status;
}

void evq_cli_close(struct evq_cli *cli)
{
    evq_remote_close(cli->remote);
    evq_queue_close(cli->queue);
    evq_conn_close(cli->conn);
    evq_config_free(cli->config);
    cli->queue = NULL;
    cli->conn = NULL;
    cli->config = NULL;
}

enum evq_status evq_cli_call(struct evq_cli *cli, struct evq_reply **ret_reply,
                             struct evq_error *err, size_t arg_count, ...)
{
    const char *args[CALL_ARGS_MAX];
    if (arg_count > CALL_ARGS_MAX) {
        return evq_error_set(err, EVQ_E_BUG, "%zu arguments in one command", arg_count);
    }
    va_list list;
    va_start(list, arg_count);
    for (size_t i = 0; i < arg_count; i++) {
        args[i] = va_arg(list, const char *);
    }
    va_end(list);
    return evq_conn_call(cli->conn, arg_count, args, NULL, 0, ret_reply, err);
}

void evq_cli_say(const struct evq_cli *cli, const char *format, ...)
{
    if (cli->terminal.quiet) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
}

enum evq_status evq_cli_usage(struct evq_cli *cli, struct evq_error *err, const char *format, ...)
{
    char text[sizeof err->message];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli->exit_code = EVQ_EXIT_USAGE;
    return evq_error_set(err, EVQ_E_INVALID, "%s", text);
}

void evq_cli_name_role(const struct evq_cli *cli, struct evq_error *err)
{
    const struct evq_error cause = *err;

    if (strstr(cause.message, "WRONGPASS") != NULL || strstr(cause.message, "NOAUTH") != NULL) {
        return; // Redis does not know the user yet, so the role is not the cause.
    }
    (void)evq_error_set(err, cause.status, "%.420s; `evalq %s` needs the role %s", cause.message,
                        cli->verb->name, cli->verb->role != NULL ? cli->verb->role : "viewer");
}

enum evq_status evq_cli_confirm(struct evq_cli *cli, const char *question, struct evq_error *err)
{
    if (evq_option_flag(&cli->options, "yes")) {
        return EVQ_OK;
    }
    if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
        return evq_cli_usage(
            cli, err, "%s asks for confirmation, which needs a terminal: repeat it with --yes",
            cli->verb->name);
    }
    char answer[16];
    (void)fprintf(stderr, "%s [y/N] ", question);
    if (fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y')) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_STOPPED, "%s was not confirmed, so nothing was done",
                         cli->verb->name);
}

enum evq_status evq_cli_check_name(struct evq_cli *cli, const char *kind, const char *name,
                                   struct evq_error *err)
{
    char mapped[EVQ_JOB_RUN_BYTES_MAX + 1];
    char shown[200];
    const bool is_run = strcmp(kind, "run") == 0;
    const size_t bytes_max = is_run ? EVQ_JOB_RUN_BYTES_MAX : EVQ_JOB_NAME_BYTES_MAX;

    if (evq_job_name_valid(name, bytes_max)) {
        return EVQ_OK;
    }
    evq_job_map_name(name, EVQ_JOB_RUN_BYTES_MAX, mapped);
    return evq_cli_usage(cli, err, "%s '%s' is not 1 to %zu of the bytes [A-Za-z0-9._-]%s%s", kind,
                         evq_error_escape(name, strlen(name), shown, sizeof shown), bytes_max,
                         is_run ? "; runs submitted under this name are called " : "",
                         is_run ? mapped : "");
}

/* Writes the names of the newest runs: "; the newest runs are a, b, c and 2 more". If Redis does
 * not answer, writes "". */
static void name_runs(struct evq_cli *cli, char *out, size_t out_bytes)
{
    char *text = NULL;
    json_t *page = NULL;
    size_t index = 0;
    size_t used = 0;
    const json_t *row = NULL;
    struct evq_error unsaid; // It is dropped: the caller reports the wrong arguments.

    out[0] = '\0';
    if (evq_cli_open_within(cli, 0, &unsaid) != EVQ_OK ||
        evq_queue_runs(cli->queue, "", &text, &unsaid) != EVQ_OK ||
        evq_json_take(text, &page, &unsaid) != EVQ_OK) {
        return;
    }
    const json_t *runs = json_object_get(page, "runs");
    used = (size_t)snprintf(out, out_bytes, "%s",
                            json_array_size(runs) > 0 ? "; the newest runs are "
                                                      : "; the queue has no runs yet");
    json_array_foreach(runs, index, row)
    {
        if (index < RUNS_SHOWN && used < out_bytes) {
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", index > 0 ? ", " : "",
                                     evq_json_text(row, "run", "?"));
        }
    }
    if (json_array_size(runs) > RUNS_SHOWN && used < out_bytes) {
        (void)snprintf(out + used, out_bytes - used, " and %zu more",
                       json_array_size(runs) - RUNS_SHOWN);
    }
    json_decref(page);
}

enum evq_status evq_cli_wrong_arguments(struct evq_cli *cli, struct evq_error *err)
{
    const struct evq_verb *verb = cli->verb;
    const bool lacks_run = cli->options.arg_count == 0 &&
                           (verb->takes == EVQ_TAKES_RUN || verb->takes == EVQ_TAKES_RUNS ||
                            verb->takes == EVQ_TAKES_RUN_OR_JOBS);
    char runs[RUNS_SHOWN * (EVQ_JOB_RUN_BYTES_MAX + 2) + 64] = "";

    if (lacks_run) {
        name_runs(cli, runs, sizeof runs);
    }
    return evq_cli_usage(cli, err, "usage: evalq %s %s%s", verb->name, verb->arguments, runs);
}

static enum evq_status check_job(struct evq_cli *cli, const char *id, struct evq_error *err)
{
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job_name name;
    struct evq_error why;

    return evq_job_id_parse(id, scratch, &name, &why) == EVQ_OK
               ? EVQ_OK
               : evq_cli_usage(cli, err, "%s", why.message);
}

enum evq_status evq_cli_check_args(struct evq_cli *cli, struct evq_error *err)
{
    const enum evq_verb_takes takes = cli->verb->takes;
    enum evq_status status = EVQ_OK;

    for (int i = 0; i < cli->options.arg_count && status == EVQ_OK; i++) {
        const char *word = cli->options.args[i];
        if (takes == EVQ_TAKES_JOBS || (takes == EVQ_TAKES_RUN_OR_JOBS && strchr(word, '/'))) {
            status = check_job(cli, word, err);
        } else if (takes == EVQ_TAKES_RUNS || takes == EVQ_TAKES_RUN_OR_JOBS ||
                   (takes == EVQ_TAKES_RUN && i == 0)) {
            status = evq_cli_check_name(cli, "run", word, err);
        }
    }
    return status;
}

enum evq_status evq_cli_check_run(const struct evq_cli *cli, const char *run,
                                  const struct evq_run_counts *counts, struct evq_error *err)
{
    return evq_run_counts_total(counts) > 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_NOT_FOUND, "the queue '%s' has no run '%s'",
                               evq_queue_name(cli->queue), run);
}

enum evq_status evq_cli_find_run(struct evq_cli *cli, const char *run, struct evq_error *err)
{
    struct evq_run_counts counts;
    const enum evq_status status = evq_queue_run_counts(cli->queue, run, &counts, err);

    return status == EVQ_OK ? evq_cli_check_run(cli, run, &counts, err) : status;
}

const char *evq_cli_arg(const struct evq_cli *cli, int index)
{
    return index < cli->options.arg_count ? cli->options.args[index] : NULL;
}
