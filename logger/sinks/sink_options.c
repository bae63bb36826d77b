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

const char *evq_sink_option(const struct evq_sink_config *sink, const char *key)
{
    return evq_pair_get(sink->options, sink->option_count, key, NULL);
}

size_t evq_sink_option_list(const struct evq_sink_config *sink, const char *key, const char **out,
                            size_t most)
{
    char item[64];
    size_t count = 0;

    for (; count < most; count++) {
        (void)snprintf(item, sizeof(item), "%s.%zu", key, count);
        out[count] = evq_sink_option(sink, item);
        if (out[count] == NULL) {
            break;
        }
    }
    out[count] = NULL;
    return count;
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
        return evq_error_set(err, EVQ_E_INVALID,
                             "sink '%s': %s is '%s', expected a number of seconds from 0 to %d",
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
    return context->queue != NULL ? evq_queue_quarantine(context->queue, data, bytes, text, err)
                                  : EVQ_OK;
}
