/* Reads gateway.lmms: settings of the endpoints of LMMS-Eval's server. */
#include <string.h>

#include "shared/config/config_read.h"

static enum evq_status read_suite(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where,
                                  const char **ret_name)
{
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status == EVQ_OK && !evq_job_name_valid(node->text, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_read_fail(reader, node,
                             "%s is \"%.80s\", expected 1 to %d of the bytes [A-Za-z0-9._-]", where,
                             node->text, EVQ_JOB_NAME_BYTES_MAX);
    }
    *ret_name = node->text;
    return status;
}

static enum evq_status read_plain(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    return read_suite(reader, node, where, &config->gateway.lmms.suite);
}

static enum evq_status read_merged(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    return read_suite(reader, node, where, &config->gateway.lmms.merged_suite);
}

static enum evq_status read_merge(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    return read_suite(reader, node, where, &config->gateway.lmms.merge_suite);
}

static enum evq_status read_cancel(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    return evq_read_bool(reader, node, where, &config->gateway.lmms.cancel_running);
}

static enum evq_status read_both(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    return evq_read_bool(reader, node, where, &config->gateway.lmms.both_variants);
}

static enum evq_status read_gpus(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    return evq_read_bool(reader, node, where, &config->gateway.lmms.gpus_as_needs);
}

static enum evq_status read_pin(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base)
{
    struct evq_config *config = base;
    return evq_read_bool(reader, node, where, &config->gateway.lmms.pin);
}

enum evq_status evq_read_lmms(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, void *base)
{
    static const struct evq_key keys[] = {
        {"suite", EVQ_KEY_CALL, 0, 0, 0, read_plain},
        {"merged_suite", EVQ_KEY_CALL, 0, 0, 0, read_merged},
        {"merge_suite", EVQ_KEY_CALL, 0, 0, 0, read_merge},
        {"results", EVQ_KEY_PATH, offsetof(struct evq_config, gateway.lmms.results), 0, 0, NULL},
        {"catalog", EVQ_KEY_PATH, offsetof(struct evq_config, gateway.lmms.catalog), 0, 0, NULL},
        {"cancel_running", EVQ_KEY_CALL, 0, 0, 0, read_cancel},
        {"both_variants", EVQ_KEY_CALL, 0, 0, 0, read_both},
        {"gpus_as_needs", EVQ_KEY_CALL, 0, 0, 0, read_gpus},
        {"pin", EVQ_KEY_CALL, 0, 0, 0, read_pin},
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}
