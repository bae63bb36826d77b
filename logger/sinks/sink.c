#include "logger/sinks/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/base/log.h"

#define SECONDS_MAX      604800
#define SECRET_BYTES_MAX 4096

static const struct evq_sink_ops *const all[] = {
    &evq_sink_jsonl,  &evq_sink_tensorboard, &evq_sink_best,
    &evq_sink_csv,    &evq_sink_exec,        &evq_sink_wandb,
#ifdef EVQ_HAVE_CURL
    &evq_sink_mlflow, &evq_sink_webhook,
#endif
};
#define COUNT (sizeof(all) / sizeof(all[0]))

const struct evq_sink_ops *evq_sink_find(const char *kind)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(all[i]->kind, kind) == 0) {
            return all[i];
        }
    }
    return NULL;
}

/* An option of a list, "command.0", belongs to "command.". */
static bool option_known(const struct evq_sink_ops *ops, const char *key)
{
    for (size_t i = 0; ops->options[i] != NULL; i++) {
        const size_t bytes = strlen(ops->options[i]);
        if (strcmp(ops->options[i], key) == 0 ||
            (ops->options[i][bytes - 1] == '.' && strncmp(ops->options[i], key, bytes) == 0)) {
            return true;
        }
    }
    return false;
}

static enum evq_status kind_unknown(const struct evq_sink_config *sink, struct evq_error *err)
{
    char kinds[256] = "";
    size_t used = 0;

#ifndef EVQ_HAVE_CURL
    if (strcmp(sink->kind, "mlflow") == 0 || strcmp(sink->kind, "webhook") == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "sink '%s': this build has no '%s', which needs libcurl; install "
                             "libcurl4-openssl-dev and build again",
                             sink->name, sink->kind);
    }
#endif
    for (size_t i = 0; i < COUNT && used < sizeof(kinds); i++) {
        used += (size_t)snprintf(kinds + used, sizeof(kinds) - used, "%s%s",
                                 i == 0           ? ""
                                 : i + 1 == COUNT ? " or "
                                                  : ", ",
                                 all[i]->kind);
    }
    return evq_error_set(err, EVQ_E_INVALID, "sink '%s': kind '%s' is unknown, expected %s",
                         sink->name, sink->kind, kinds);
}

enum evq_status evq_sink_check(const struct evq_sink_config *sink, struct evq_error *err)
{
    const struct evq_sink_ops *ops = evq_sink_find(sink->kind);

    if (ops == NULL) {
        return kind_unknown(sink, err);
    }
    for (size_t i = 0; i < sink->option_count; i++) {
        if (option_known(ops, sink->options[i].key)) {
            continue;
        }
        size_t count = 0;
        while (ops->options[count] != NULL) {
            count++;
        }
        char choice[400];
        return evq_error_set(
            err, EVQ_E_INVALID, "sink '%s': option '%s' is unknown: %s", sink->name,
            sink->options[i].key,
            evq_config_choice(sink->options[i].key, ops->options, count, choice, sizeof choice));
    }
    return EVQ_OK;
}

const char *evq_sink_option(const struct evq_sink_config *sink, const char *key)
{
    return evq_pair_get(sink->options, sink->option_count, key, NULL);
}

enum evq_status evq_sink_option_seconds(const struct evq_sink_config *sink, const char *key,
                                        double fallback, double *ret_value, struct evq_error *err)
{
    const char *text = evq_sink_option(sink, key);
    char *end = NULL;

    if (text == NULL) {
        *ret_value = fallback;
        return EVQ_OK;
    }
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(value >= 0) || value > SECONDS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "sink '%s': %s is '%s', expected seconds, 0 to %d",
                             sink->name, key, text, SECONDS_MAX);
    }
    *ret_value = value;
    return EVQ_OK;
}

enum evq_status evq_sink_option_flag(const struct evq_sink_config *sink, const char *key,
                                     bool *ret_value, struct evq_error *err)
{
    const char *text = evq_sink_option(sink, key);

    if (text != NULL && strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "sink '%s': %s is '%s', expected true or false",
                             sink->name, key, text);
    }
    *ret_value = text != NULL && strcmp(text, "true") == 0;
    return EVQ_OK;
}

enum evq_status evq_sink_secret(const struct evq_sink_config *sink, const char *key,
                                const char *variable, struct evq_buffer *out, struct evq_error *err)
{
    char file_key[64];
    struct stat info;
    struct evq_error why = {0};

    (void)snprintf(file_key, sizeof(file_key), "%s_file", key);
    const char *path = evq_sink_option(sink, file_key);
    const char *text = variable != NULL ? getenv(variable) : NULL;
    if (path == NULL) {
        evq_buffer_text(out, text != NULL ? text : "");
        return out->failed ? evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", sink->name) : EVQ_OK;
    }
    if (stat(path, &info) == 0 && (info.st_mode & S_IROTH) != 0 &&
        strncmp(path, "/run/secrets/", 13) != 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "sink '%s': %s '%s' is readable by every user: run chmod 600 on it",
                             sink->name, file_key, path);
    }
    if (evq_file_read(AT_FDCWD, path, 0, SECRET_BYTES_MAX, out, &why) != EVQ_OK) {
        return evq_error_set(err, EVQ_E_INVALID, "sink '%s': %s: %s", sink->name, file_key,
                             why.message);
    }
    while (out->bytes > 0 && strchr("\r\n", out->data[out->bytes - 1]) != NULL) {
        out->data[--out->bytes] = '\0';
    }
    return EVQ_OK;
}

enum evq_status evq_sink_refuse(const struct evq_sink_context *context, const char *result_id,
                                const void *data, size_t bytes, const char *reason,
                                struct evq_error *err)
{
    char text[512];

    evq_log(EVQ_LOG_ERROR, "result_refused", "sink=%s result=%s reason=%s", context->sink->name,
            result_id, reason);
    (void)snprintf(text, sizeof(text), "sink %s, %s: %.300s", context->sink->name, result_id,
                   reason);
    return context->queue != NULL ? evq_queue_bad(context->queue, data, bytes, text, err) : EVQ_OK;
}
