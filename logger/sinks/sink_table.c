/* The kinds of sinks, and the check of a sink's configuration against its kind. */
#include <stdio.h>
#include <string.h>

#include "logger/sinks/sink.h"
#include "shared/base/nearest.h"

static const struct evq_sink_ops *const all[] = {
    &evq_sink_jsonl,  &evq_sink_tensorboard, &evq_sink_best,    &evq_sink_csv,   &evq_sink_exec,
    &evq_sink_wandb,  &evq_sink_trackio,     &evq_sink_swanlab, &evq_sink_comet,
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

static bool is_configured(const struct evq_config *config, const char *kind)
{
    for (size_t i = 0; i < config->logger.sink_count; i++) {
        if (strcmp(config->logger.sinks[i].kind, kind) == 0) {
            return true;
        }
    }
    return false;
}

size_t evq_sink_collect(const struct evq_config *config, const struct evq_sink_config **sinks)
{
    static const struct evq_sink_config defaults[] = {
        {.name = "jsonl", .kind = "jsonl"},
        {.name = "best", .kind = "best"},
        {.name = "tensorboard", .kind = "tensorboard"},
    };
    const size_t default_count = config->logger.sink_count > 0 ? 2 : 3;
    size_t count = 0;

    for (size_t i = 0; i < config->logger.sink_count; i++) {
        if (!config->logger.sinks[i].disabled) {
            sinks[count++] = &config->logger.sinks[i];
        }
    }
    for (size_t i = 0; i < default_count; i++) {
        if (!is_configured(config, defaults[i].kind)) {
            sinks[count++] = &defaults[i];
        }
    }
    return count;
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
            evq_nearest_choice(sink->options[i].key, ops->options, count, choice, sizeof choice));
    }
    return EVQ_OK;
}
