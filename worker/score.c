#include "worker/score.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "worker/devices/devices.h"
#include "worker/evaluators/native/native_scores.h"

#define LINE_BYTES_MAX   ((size_t)64 << 20)
#define ANSWER_BYTES_MAX ((size_t)4 << 30)
#define TEXTS_MAX        65536 // Of one request.
#define PAIRS_MAX        64    // Of one map.
#define TELL_MS          200   // The shortest time between two lines of progress.

struct session {
    struct evq_native_scorer *scorer;
    json_t *loaded; // The request that loaded the checkpoint; the scorer borrows its texts.
    struct evq_pair model[PAIRS_MAX], data[PAIRS_MAX], options[PAIRS_MAX];
    struct evq_error refusal; // Why a waiting request was refused; EVQ_OK: none was.
    struct evq_buffer out;
    int64_t told_ms;
};

static enum evq_status send_line(struct session *session, struct evq_error *err)
{
    struct evq_buffer *out = &session->out;

    evq_buffer_text(out, "\n");
    enum evq_status status = EVQ_OK;
    if (out->failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "an answer");
    } else if (fwrite(out->data, 1, out->bytes, stdout) != out->bytes || fflush(stdout) != 0) {
        status =
            evq_error_set(err, EVQ_E_IO, "standard output cannot be written: %s", strerror(errno));
    }
    evq_buffer_clear(out);
    return status;
}

static enum evq_status send_error(struct session *session, const char *message,
                                  struct evq_error *err)
{
    evq_buffer_text(&session->out, "{\"error\": ");
    evq_buffer_json_text(&session->out, message);
    evq_buffer_text(&session->out, "}");
    return send_line(session, err);
}

static enum evq_status on_progress(void *context, int64_t done, int64_t total, const char *text)
{
    struct session *session = context;
    const int64_t now_ms = evq_clock_mono_ms();
    struct evq_error err;

    if (now_ms - session->told_ms < TELL_MS) {
        return EVQ_OK;
    }
    session->told_ms = now_ms;
    evq_buffer_printf(&session->out,
                      "{\"done\": %lld, \"total\": %lld, \"doing\": ", (long long)done,
                      (long long)total);
    evq_buffer_json_text(&session->out, text);
    evq_buffer_text(&session->out, "}");
    return send_line(session, &err) == EVQ_OK ? EVQ_OK : EVQ_E_STOPPED;
}

static enum evq_status bad_line(struct evq_error *err, const char *what)
{
    return evq_error_set(err, EVQ_E_CORRUPT, "standard input is not a request: %s", what);
}

/* Reads the pairs of one map of a load request. */
static enum evq_status read_map(const json_t *request, const char *name,
                                struct evq_pair pairs[PAIRS_MAX], size_t *ret_count,
                                struct evq_error *err)
{
    json_t *map = json_object_get(request, name);
    const char *key = NULL;
    json_t *value = NULL;

    if ((map != NULL && !json_is_object(map)) || json_object_size(map) > PAIRS_MAX) {
        return bad_line(err, "model, data and options are maps with at most 64 keys");
    }
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value)) {
            return bad_line(err, "the values of model, data and options are strings");
        }
        pairs[(*ret_count)++] = (struct evq_pair){.key = key, .value = json_string_value(value)};
    }
    return EVQ_OK;
}

static enum evq_status load(struct session *session, json_t *request, struct evq_error *err)
{
    const char *path = json_string_value(json_object_get(request, "load"));
    const json_t *variant = json_object_get(request, "variant");
    struct evq_task_config how = {
        .name = "", .model = session->model, .data = session->data, .options = session->options};
    struct evq_native_scorer_model model;
    struct evq_error fault;

    if (path == NULL) {
        return bad_line(err, "load is not a path");
    }
    if (variant != NULL && !json_is_string(variant)) {
        return bad_line(err, "variant is not a name");
    }
    enum evq_status status = read_map(request, "model", session->model, &how.model_count, err);
    if (status == EVQ_OK) {
        status = read_map(request, "data", session->data, &how.data_count, err);
    }
    if (status == EVQ_OK) {
        status = read_map(request, "options", session->options, &how.option_count, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    session->refusal.status = EVQ_OK;
    status = evq_native_scorer_load(session->scorer, path, json_string_value(variant), &how, &model,
                                    &fault);
    json_decref(session->loaded);
    session->loaded = json_incref(request);
    if (status != EVQ_OK) {
        return send_error(session, fault.message, err);
    }
    struct evq_buffer *out = &session->out;
    evq_buffer_text(out, "{\"loaded\": ");
    evq_buffer_json_text(out, path);
    evq_buffer_printf(out, ", \"family\": \"%s\", \"vocabulary\": %d, \"context\": %d",
                      model.family, (int)model.vocabulary, (int)model.context);
    evq_buffer_printf(out, ", \"compute\": \"%s\", \"device\": ", model.compute);
    evq_buffer_json_text(out, model.device);
    evq_buffer_text(out, ", \"no_tokenizer\": ");
    evq_buffer_json_text(out, model.no_tokenizer);
    evq_buffer_text(out, "}");
    return send_line(session, err);
}

/* Reads a text or a list of token ids, which the caller frees. */
static enum evq_status read_text(const json_t *json, struct evq_native_scorer_text *text,
                                 struct evq_error *err)
{
    text->text = json_string_value(json);
    if (text->text != NULL) {
        text->count = json_string_length(json);
        return EVQ_OK;
    }
    if (!json_is_array(json)) {
        return bad_line(err, "expected a text or a list of token ids");
    }
    text->count = json_array_size(json);
    text->ids = calloc(text->count + 1, sizeof(*text->ids));
    if (text->ids == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu tokens", text->count);
    }
    for (size_t i = 0; i < text->count; i++) {
        const json_t *id = json_array_get(json, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX) {
            return bad_line(err, "a token id is not a whole number from 0 to 2147483647");
        }
        text->ids[i] = (int32_t)json_integer_value(id);
    }
    return EVQ_OK;
}

/* Adds texts. If the scorer refuses them, the answer to the next `score` says why. */
static enum evq_status add(struct session *session, const json_t *request, struct evq_error *err)
{
    const json_t *list = json_object_get(request, "texts");
    const json_t *context = json_object_get(request, "context");
    const size_t count = json_array_size(list); // 0 if it is no list.
    struct evq_error fault;

    if (count == 0 || count > TEXTS_MAX) {
        return bad_line(err, "texts is not a list of 1 to 65536 texts");
    }
    struct evq_native_scorer_text *texts = calloc(count + 1, sizeof(*texts)); // The last: context.
    if (texts == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu texts", count);
    }
    enum evq_status status = context != NULL ? read_text(context, &texts[count], err) : EVQ_OK;
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = read_text(json_array_get(list, i), &texts[i], err);
    }
    if (status == EVQ_OK && session->refusal.status == EVQ_OK &&
        evq_native_scorer_add(session->scorer, context != NULL ? &texts[count] : NULL, texts,
                              (int32_t)count, &fault) != EVQ_OK) {
        session->refusal = fault;
    }
    for (size_t i = 0; i <= count; i++) {
        free(texts[i].ids);
    }
    free(texts);
    return status;
}

static enum evq_status score(struct session *session, struct evq_error *err)
{
    const struct evq_native_score *scores = NULL;
    struct evq_error fault = session->refusal;
    struct evq_buffer *out = &session->out;
    size_t count = 0;

    session->refusal.status = EVQ_OK;
    enum evq_status status = fault.status;
    if (status == EVQ_OK) {
        status = evq_native_scorer_run(session->scorer, &scores, &count, &fault);
    }
    if (status != EVQ_OK) {
        return send_error(session, fault.message, err);
    }
    evq_buffer_text(out, "{\"scores\": [");
    for (size_t i = 0; i < count; i++) {
        evq_buffer_text(out, i > 0 ? ", [" : "[");
        evq_buffer_json_double(out, scores[i].logprob);
        evq_buffer_text(out, scores[i].greedy ? ", true]" : ", false]");
    }
    evq_buffer_text(out, "]}");
    return send_line(session, err);
}

static enum evq_status answer(struct session *session, const char *line, size_t bytes,
                              struct evq_error *err)
{
    json_error_t fault;
    enum evq_status status = EVQ_OK;

    evq_json_memory_clear();
    json_t *request = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &fault);
    if (evq_json_memory_failed()) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a request of %zu bytes", bytes);
    } else if (bytes == 0) {
        status = bad_line(err, "the line is empty");
    } else if (request == NULL) {
        status = bad_line(err, fault.text);
    } else if (json_object_get(request, "load") != NULL) {
        status = load(session, request, err);
    } else if (json_object_get(request, "texts") != NULL) {
        status = add(session, request, err);
    } else if (json_is_true(json_object_get(request, "score"))) {
        status = score(session, err);
    } else {
        status = bad_line(err, "expected an object with load, texts or score");
    }
    json_decref(request);
    return status;
}

/* Reads the next line, without its end. Sets *ret_end at the end of standard input. */
static enum evq_status read_line(struct evq_buffer *line, bool *ret_end, struct evq_error *err)
{
    int byte = EOF;

    evq_buffer_clear(line);
    while (!line->failed && (byte = getc_unlocked(stdin)) != EOF && byte != '\n') {
        const char letter = (char)byte;
        evq_buffer_append(line, &letter, 1);
    }
    if (line->full) {
        return evq_error_set(err, EVQ_E_LIMIT, "a request is too long, expected at most %zu bytes",
                             LINE_BYTES_MAX);
    }
    if (line->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a request");
    }
    if (ferror(stdin) != 0) {
        return evq_error_set(err, EVQ_E_IO, "read standard input: %s", strerror(errno));
    }
    *ret_end = byte == EOF && line->bytes == 0;
    return EVQ_OK;
}

/* Answers until standard input ends. */
static enum evq_status serve(struct session *session, struct evq_error *err)
{
    struct evq_buffer line;
    bool ended = false;

    evq_buffer_init(&line, LINE_BYTES_MAX);
    enum evq_status status = read_line(&line, &ended, err);
    while (status == EVQ_OK && !ended) {
        status = answer(session, (const char *)line.data, line.bytes, err);
        if (status == EVQ_OK) {
            status = read_line(&line, &ended, err);
        }
    }
    evq_buffer_free(&line);
    return status;
}

static enum evq_status open_native(const struct evq_options *options,
                                   struct evq_native **ret_native, struct evq_error *err)
{
    struct evq_devices devices;
    char visible[EVQ_DEVICES_TEXT];
    char note[256];
    int32_t gpus = 0;
    int64_t memory = 0;

    // The devices of the configuration are those of a whole worker. In one of its slots, this
    // program has the GPUs that the slot's environment names.
    enum evq_status status =
        evq_devices_find(options->devices != NULL ? options->devices : "auto", &devices, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_devices_deal(&devices, 0, 1, visible, &gpus, &memory);
    (void)setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    status = evq_native_open(gpus, options->threads > 0 ? options->threads : 0, ret_native, note,
                             sizeof(note), err);
    if (status == EVQ_OK && note[0] != '\0' && gpus > 0) {
        (void)fprintf(stderr, "evalq-worker: %s\n", note);
    }
    return status;
}

enum evq_exit evq_score_main(const struct evq_options *options)
{
    struct session session = {.refusal = {.status = EVQ_OK}};
    const struct evq_eval_report report = {.context = &session, .progress = on_progress};
    struct evq_config *config = NULL;
    struct evq_native *native = NULL;
    struct evq_error err;

    evq_buffer_init(&session.out, ANSWER_BYTES_MAX);
    enum evq_status status = evq_config_load(&options->source, &config, &err);
    if (status == EVQ_OK) {
        status = open_native(options, &native, &err);
    }
    if (status == EVQ_OK) {
        status = evq_native_scorer_new(native, config, &report, &session.scorer, &err);
    }
    if (status == EVQ_OK) {
        status = serve(&session, &err);
    }
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "evalq-worker: %s\n", err.message);
    }
    const bool serving = session.scorer != NULL; // Otherwise it did not start.
    evq_native_scorer_free(session.scorer);
    evq_native_close(native);
    json_decref(session.loaded);
    evq_buffer_free(&session.out);
    evq_config_free(config);
    if (status == EVQ_OK || !serving) {
        return evq_status_exit_code(status);
    }
    return status == EVQ_E_CORRUPT || status == EVQ_E_LIMIT ? EVQ_EXIT_BAD_INPUT : EVQ_EXIT_ERROR;
}
