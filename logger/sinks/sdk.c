/*
 * The sinks `wandb`, `trackio`, `swanlab` and `comet`. Each writes to a tracker with the tracker's
 * own SDK, in a helper program. The option `command` is a list, by default evalq-KIND of the Python
 * package. The helper gets the options, then one JSON object a line for each result, then {"flush":
 * N}. It answers {"flushed": N} once the SDK has stored the results, and before this line
 * {"refused": RESULT_ID, "reason": ...} for a result that it can never take, or {"error": ...}. It
 * recognises a repeated result. The table at the end of this file has a row for each tracker.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "logger/sinks/helper_program.h"
#include "logger/sinks/sink.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"

#define ARGS_MAX        64
#define TIMEOUT_SECONDS 120
#define CLOSE_SECONDS   30
#define BATCH_BYTES_MAX (64u << 20)
#define TURNS_MAX       8 // Changes of run in one flush. The SDK takes seconds to begin a run.

// The options of each tracker that are not for its SDK.
#define COMMON "command.", "directory", "timeout_seconds", "close_seconds"

struct sdk {
    const struct evq_sink_context *context;
    struct evq_helper helper;
    const char *argv[ARGS_MAX + 1]; // Into the configuration.
    int64_t timeout_ms;
    int64_t close_ms;
    int64_t number; // Number of the flush.
    struct evq_buffer lines;
    char run[EVQ_JOB_RUN_BYTES_MAX + 1]; // Run of the last line.
    size_t turns;                        // How often the lines changed to another run.
    char who[64];
    char program[32];
};

static void sdk_close(void *state)
{
    struct sdk *sink = state;

    if (sink != NULL) {
        bool killed = false;
        // The helper uploads what it has. The SDK's own program uploads the rest from its files.
        sink->helper.stop = NULL;
        (void)evq_helper_end(&sink->helper, evq_clock_mono_ms() + sink->close_ms, &killed);
        evq_buffer_free(&sink->lines);
        free(sink);
    }
}

static enum evq_status options_read(struct sdk *sink, struct evq_error *err)
{
    const struct evq_sink_config *config = sink->context->sink;
    const char *mode = evq_sink_option(config, "mode");
    double seconds = 0;
    double close_seconds = 0;
    bool shared = false;

    if (evq_sink_option_list(config, "command", sink->argv, ARGS_MAX) == 0) {
        (void)snprintf(sink->program, sizeof(sink->program), "evalq-%s", config->kind);
        sink->argv[0] = sink->program;
    }
    if (mode != NULL && strcmp(mode, "online") != 0 && strcmp(mode, "offline") != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "%s: mode is '%s', expected online or offline",
                             sink->who, mode);
    }
    enum evq_status status =
        evq_sink_option_seconds(config, "timeout_seconds", TIMEOUT_SECONDS, &seconds, err);
    if (status == EVQ_OK) {
        status =
            evq_sink_option_seconds(config, "close_seconds", CLOSE_SECONDS, &close_seconds, err);
    }
    if (status == EVQ_OK) {
        status = evq_sink_option_flag(config, "shared", &shared, err);
    }
    sink->timeout_ms = (int64_t)(seconds * 1000);
    sink->close_ms = (int64_t)(close_seconds * 1000);
    return status;
}

static enum evq_status sdk_open(const struct evq_sink_context *context, void **ret_state,
                                struct evq_error *err)
{
    struct sdk *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
    }
    sink->context = context;
    (void)snprintf(sink->who, sizeof(sink->who), "sink '%s'", context->sink->name);
    sink->helper = (struct evq_helper){.who = sink->who, .stop = context->stop};
    evq_buffer_init(&sink->lines, BATCH_BYTES_MAX);
    enum evq_status status = options_read(sink, err);
    if (status != EVQ_OK) {
        sdk_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

static bool is_common(const char *key)
{
    static const char *const common[] = {COMMON};

    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
        if (strncmp(common[i], key, strlen(common[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* The first line that the helper gets: the options of the tracker itself. */
static void settings_put(const struct sdk *sink, struct evq_buffer *out)
{
    const struct evq_sink_config *config = sink->context->sink;
    const char *directory = evq_sink_option(config, "directory");

    evq_buffer_text(out, "{\"open\":{\"queue\":");
    evq_buffer_json_text(out, sink->context->config->redis.queue);
    for (size_t i = 0; i < config->option_count; i++) {
        if (!is_common(config->options[i].key)) { // The key is one that evq_sink_check() knows.
            evq_buffer_printf(out, ",\"%s\":", config->options[i].key);
            evq_buffer_json_text(out, config->options[i].value);
        }
    }
    evq_buffer_text(out, ",\"directory\":");
    if (directory != NULL) {
        evq_buffer_json_text(out, directory);
    } else {
        struct evq_buffer path;
        evq_buffer_init(&path, 0);
        evq_buffer_printf(&path, "%s/%s", sink->context->directory, sink->context->sink->name);
        const char *text = evq_buffer_string(&path);
        evq_buffer_json_text(out, text != NULL ? text : "");
        evq_buffer_free(&path);
    }
    evq_buffer_text(out, "}}\n");
}

static enum evq_status helper_ready(struct sdk *sink, int64_t deadline_ms, struct evq_error *err)
{
    struct evq_buffer line;

    if (sink->helper.pid != 0) {
        return EVQ_OK;
    }
    enum evq_status status = evq_helper_start(&sink->helper, sink->argv, true, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_buffer_init(&line, 0);
    settings_put(sink, &line);
    status = line.failed ? evq_error_set(err, EVQ_E_NOMEM, "%s", sink->who)
                         : evq_helper_send(&sink->helper, line.data, line.bytes, deadline_ms, err);
    evq_buffer_free(&line);
    return status;
}

/* Handles one answer. *ret_done: it was the answer to this flush. */
static enum evq_status answer_take(struct sdk *sink, const char *line, bool *ret_done,
                                   struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    evq_json_memory_clear();
    json_t *answer = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    const char *error = json_string_value(json_object_get(answer, "error"));
    const char *refused = json_string_value(json_object_get(answer, "refused"));
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    const json_t *flushed = json_object_get(answer, "flushed");

    if (evq_json_memory_failed()) {
        status =
            evq_error_set(err, EVQ_E_RETRY, "%s: no memory for its helper's answer", sink->who);
    } else if (error != NULL) {
        status = evq_error_set(err, EVQ_E_RETRY, "%s: %.300s", sink->who, error);
    } else if (refused != NULL && strlen(refused) < EVQ_RESULT_ID_BYTES_MAX) {
        status = evq_sink_refuse(sink->context, refused, "", 0,
                                 reason != NULL ? reason : "no reason given", err);
    } else if (json_is_integer(flushed)) {
        *ret_done = json_integer_value(flushed) == sink->number;
    } else {
        char shown[128];
        evq_error_escape(line, strlen(line) < 60 ? strlen(line) : 60, shown, sizeof(shown));
        status = evq_error_set(err, EVQ_E_CORRUPT, "%s: its helper says '%s', expected an answer",
                               sink->who, shown);
    }
    json_decref(answer);
    return status;
}

static enum evq_status sdk_flush(void *state, struct evq_error *err)
{
    struct sdk *sink = state;
    const int64_t deadline_ms = evq_clock_mono_ms() + sink->timeout_ms;
    bool done = false;
    bool killed = false;

    if (sink->lines.bytes == 0) {
        return EVQ_OK;
    }
    enum evq_status status = helper_ready(sink, deadline_ms, err);
    sink->number++;
    evq_buffer_printf(&sink->lines, "{\"flush\":%" PRId64 "}\n", sink->number);
    if (status == EVQ_OK && sink->lines.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "lines for %s", sink->who);
    }
    if (status == EVQ_OK) {
        status =
            evq_helper_send(&sink->helper, sink->lines.data, sink->lines.bytes, deadline_ms, err);
    }
    while (status == EVQ_OK && !done) {
        const char *line = NULL;
        status = evq_helper_line(&sink->helper, deadline_ms, &line, err);
        if (status == EVQ_OK) {
            status = answer_take(sink, line, &done, err);
        }
    }
    sink->turns = 0;
    sink->run[0] = '\0';
    evq_buffer_clear(&sink->lines); // After a failure the logger gives the same results again,
    if (status != EVQ_OK) {
        (void)evq_helper_end(&sink->helper, evq_clock_mono_ms(), &killed); // to another helper.
    }
    return status == EVQ_E_CORRUPT || status == EVQ_E_LIMIT ? EVQ_E_IO : status;
}

static enum evq_status sdk_write(void *state, const struct evq_result *result,
                                 struct evq_error *err)
{
    struct sdk *sink = state;

    if (result->metric_count == 0) {
        return EVQ_OK; // The end of a job: nothing to draw.
    }
    const bool turned = strcmp(sink->run, result->run) != 0;
    if (turned && sink->turns == TURNS_MAX) {
        const enum evq_status status = sdk_flush(sink, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    sink->turns += turned ? 1 : 0;
    (void)snprintf(sink->run, sizeof(sink->run), "%s", result->run);
    char key[512];
    for (size_t i = 0; i < result->metric_count; i++) {
        evq_result_metric_key(result, &result->metrics[i], key, sizeof(key));
        evq_buffer_text(&sink->lines, i == 0 ? "{\"keys\":{" : ",");
        evq_buffer_json_text(&sink->lines, result->metrics[i].name);
        evq_buffer_text(&sink->lines, ":");
        evq_buffer_json_text(&sink->lines, key);
    }
    evq_buffer_text(&sink->lines, "},\"result\":");
    evq_result_json(result, &sink->lines);
    evq_buffer_text(&sink->lines, "}\n");
    if (sink->lines.failed) {
        evq_buffer_clear(&sink->lines);
        return evq_error_set(err, EVQ_E_NOMEM, "lines for %s", sink->who);
    }
    return EVQ_OK;
}

#define SDK_SINK(kind_)                                                                            \
    {                                                                                              \
        .kind = #kind_, .options = kind_##_options, .open = sdk_open, .write = sdk_write,          \
        .flush = sdk_flush, .close = sdk_close,                                                    \
    }

static const char *const wandb_options[] = {COMMON, "project", "entity", "mode", "shared", NULL};
static const char *const trackio_options[] = {COMMON, "project", "server_url", "space_id", NULL};
static const char *const swanlab_options[] = {COMMON, "project", "workspace", "mode", NULL};
static const char *const comet_options[] = {COMMON, "project", "workspace", "mode", NULL};

const struct evq_sink_ops evq_sink_wandb = SDK_SINK(wandb);
const struct evq_sink_ops evq_sink_trackio = SDK_SINK(trackio);
const struct evq_sink_ops evq_sink_swanlab = SDK_SINK(swanlab);
const struct evq_sink_ops evq_sink_comet = SDK_SINK(comet);
