/* Reads the sections roots, worker, logger, gateway and samples, and the file as a whole. */
#include <ctype.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/config/config_read.h"
#include "shared/remote/address.h"

#define HOST_BYTES_MAX 253 // Limit of a DNS name.
#define ROOTS_MAX      64

#define LMMS_SUITE(key, member)                                                                    \
    EVQ_KEY_RANGE(key, EVQ_KEY_NAME, struct evq_config, gateway.lmms.member, 1,                    \
                  EVQ_JOB_NAME_BYTES_MAX)

/* Reads a root that is an address of a remote store. */
static enum evq_status read_address(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where,
                                    const char **ret_address)
{
    char address[PATH_MAX];
    struct evq_error fault;

    if (strcmp(node->key, EVQ_CONFIG_ROOT_SHM) == 0) {
        return evq_read_fail(reader, node, "%s.%s is an address, expected a directory", where,
                             node->key);
    }
    if (evq_address_normalize(node->text, address, sizeof address, &fault) != EVQ_OK) {
        return evq_read_fail(reader, node, "%s.%s: %s", where, node->key, fault.message);
    }
    *ret_address = evq_arena_strdup(reader->arena, address);
    return *ret_address != NULL ? EVQ_OK : evq_read_nomem(reader);
}

static enum evq_status read_roots(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    void *items = NULL;
    enum evq_status status = evq_read_entries(reader, node, where, EVQ_NODE_MAP, ROOTS_MAX,
                                              sizeof(struct evq_root), &items);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_root *roots = items;
    size_t count = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        status = evq_read_name(reader, entry, "root");
        if (status != EVQ_OK) {
            return status;
        }
        if (entry->kind != EVQ_NODE_SCALAR || entry->text[0] == '\0') {
            return evq_read_fail(
                reader, entry, "%s.%s is %s, expected a directory", where, entry->key,
                entry->kind == EVQ_NODE_SCALAR ? "empty" : evq_node_kind_name(entry->kind));
        }
        const char *path = NULL;
        roots[count].is_remote = evq_address_is(entry->text);
        status = roots[count].is_remote ? read_address(reader, entry, where, &path) : EVQ_OK;
        if (status != EVQ_OK) {
            return status;
        }
        path = path != NULL ? path : evq_read_path(reader, entry->text);
        if (path == NULL) {
            return evq_read_nomem(reader);
        }
        if (strcmp(entry->key, EVQ_CONFIG_ROOT_SHM) == 0) {
            // Another place than the default: another user's, or a container's.
            config->shm.path = path;
            continue;
        }
        roots[count].name = entry->key;
        roots[count].path = path;
        count++;
    }
    config->roots = roots;
    config->root_count = count;
    return EVQ_OK;
}

static enum evq_status read_devices(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status != EVQ_OK) {
        return status;
    }
    const char *text = node->text;
    bool list = text[0] >= '0' && text[0] <= '9' && strspn(text, "0123456789,") == strlen(text) &&
                strstr(text, ",,") == NULL && text[strlen(text) - 1] != ',';
    if (!list && strcmp(text, "auto") != 0 && strcmp(text, "cpu") != 0) {
        return evq_read_fail(reader, node,
                             "%s is \"%.60s\", expected auto, cpu, or numbers such as \"0,1\"",
                             where, text);
    }
    config->worker.devices = text;
    return EVQ_OK;
}

/* GPUs are named by UUID, as nvidia-smi -L shows them. */
static enum evq_status read_gpus(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    enum { UUID_BYTES_MAX = 63, GPUS_MAX = 64 };
    struct evq_config *config = base;
    const enum evq_status status = evq_read_texts(reader, node, where, UUID_BYTES_MAX,
                                                  &config->worker.gpus, &config->worker.gpu_count);

    if (status == EVQ_OK && config->worker.gpu_count > GPUS_MAX) {
        return evq_read_fail(reader, node, "%s names %zu GPUs, allowed %d", where,
                             config->worker.gpu_count, GPUS_MAX);
    }
    for (size_t i = 0; i < config->worker.gpu_count && status == EVQ_OK; i++) {
        const char *uuid = config->worker.gpus[i];
        bool good = strncmp(uuid, "GPU-", 4) == 0 || strncmp(uuid, "MIG-", 4) == 0;
        for (const char *at = uuid; *at != '\0'; at++) {
            good = good && (isalnum((unsigned char)*at) || *at == '-');
        }
        for (size_t other = 0; other < i; other++) {
            good = good && strcmp(config->worker.gpus[other], uuid) != 0;
        }
        if (!good) {
            return evq_read_fail(reader, node,
                                 "%s: \"%s\" is not a UUID such as GPU-1f2e... named once", where,
                                 uuid);
        }
    }
    return status;
}

static enum evq_status read_cache(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("directory", EVQ_KEY_PATH, struct evq_config, worker.cache),
        EVQ_KEY_RANGE("bytes", EVQ_KEY_BYTES, struct evq_config, worker.cache_bytes, 1,
                      INT64_C(1) << 50),
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

/* Reads a program: a name without a slash is found on the PATH. */
static enum evq_status read_python(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    const enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);

    if (status != EVQ_OK) {
        return status;
    }
    config->worker.python =
        strchr(node->text, '/') != NULL ? evq_read_path(reader, node->text) : node->text;
    return config->worker.python != NULL ? EVQ_OK : evq_read_nomem(reader);
}

static enum evq_status read_worker(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_RANGE("slots", EVQ_KEY_INT32, struct evq_config, worker.slots, 0, 1024),
        EVQ_KEY_BY("devices", read_devices),
        EVQ_KEY_BY("gpus", read_gpus),
        EVQ_KEY_RANGE("gpus_per_slot", EVQ_KEY_INT32, struct evq_config, worker.gpus_per_slot, 1,
                      64),
        EVQ_KEY_LIST("labels", struct evq_config, worker.labels, worker.label_count,
                     EVQ_JOB_NAME_BYTES_MAX),
        EVQ_KEY_PLAIN("scratch", EVQ_KEY_PATH, struct evq_config, worker.scratch),
        EVQ_KEY_RANGE("lease_ms", EVQ_KEY_INT64, struct evq_config, worker.lease_ms, 300, 3600000),
        EVQ_KEY_RANGE("heartbeat_ms", EVQ_KEY_INT64, struct evq_config, worker.heartbeat_ms, 50,
                      1200000),
        EVQ_KEY_RANGE("drain_seconds", EVQ_KEY_INT64, struct evq_config, worker.drain_seconds, 0,
                      604800),
        EVQ_KEY_RANGE("threads", EVQ_KEY_INT32, struct evq_config, worker.threads, 0, 4096),
        EVQ_KEY_RANGE("log_bytes_max", EVQ_KEY_BYTES, struct evq_config, worker.log_bytes_max, 4096,
                      INT64_C(1) << 40),
        EVQ_KEY_RANGE("fetch_bytes_max", EVQ_KEY_BYTES, struct evq_config, worker.fetch_bytes_max,
                      0, EVQ_SNAPSHOT_BYTES_MAX),
        EVQ_KEY_BY("python", read_python),
        EVQ_KEY_BY("cache", read_cache),
    };
    struct evq_config *config = base;
    const int64_t heartbeat_default_ms = config->worker.heartbeat_ms;

    config->worker.heartbeat_ms = 0; // Shows afterwards whether the file sets it.
    enum evq_status status =
        evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
    if (config->worker.heartbeat_ms == 0) { // Five heartbeats per lease, as in the defaults.
        int64_t fifth = config->worker.lease_ms / 5;
        config->worker.heartbeat_ms = fifth < heartbeat_default_ms ? fifth : heartbeat_default_ms;
    }
    if (status == EVQ_OK && config->worker.lease_ms < 3 * config->worker.heartbeat_ms) {
        return evq_read_fail(
            reader, node,
            "%s: lease_ms is %jd, expected at least 3 times heartbeat_ms, which is %jd", where,
            (intmax_t)config->worker.lease_ms, (intmax_t)config->worker.heartbeat_ms);
    }
    return status;
}

/* Reads the name or kind of a sink; "" if it is absent. */
static enum evq_status read_sink_word(const struct evq_config_reader *reader,
                                      const struct evq_node *node, const char *where,
                                      const char *key, const char **ret_word)
{
    *ret_word = "";
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, key) != 0 || entry->kind == EVQ_NODE_NULL) {
            continue;
        }
        if (entry->kind != EVQ_NODE_SCALAR ||
            !evq_job_name_valid(entry->text, EVQ_JOB_NAME_BYTES_MAX)) {
            return evq_read_fail(reader, entry, "%s.%s is not 1 to %d of the bytes [A-Za-z0-9._-]",
                                 where, key, EVQ_JOB_NAME_BYTES_MAX);
        }
        *ret_word = entry->text;
    }
    return EVQ_OK;
}

/* Reads `enabled` of a sink; true if it is absent. */
static enum evq_status read_sink_enabled(const struct evq_config_reader *reader,
                                         const struct evq_node *node, const char *where,
                                         bool *ret_enabled)
{
    *ret_enabled = true;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, "enabled") == 0 && entry->kind != EVQ_NODE_NULL) {
            char inner[96];
            (void)snprintf(inner, sizeof inner, "%.64s.enabled", where);
            return evq_read_bool(reader, entry, inner, ret_enabled);
        }
    }
    return EVQ_OK;
}

/* Reads a bare name: a sink of that kind without options. */
static enum evq_status read_sink_name(const struct evq_config_reader *reader,
                                      const struct evq_node *node, const char *where,
                                      struct evq_sink_config *sink)
{
    if (!evq_job_name_valid(node->text, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_read_fail(reader, node, "%s is not 1 to %d of the bytes [A-Za-z0-9._-]", where,
                             EVQ_JOB_NAME_BYTES_MAX);
    }
    sink->kind = sink->name = node->text;
    return EVQ_OK;
}

static enum evq_status read_sink(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where,
                                 struct evq_sink_config *sink)
{
    static const char *const known[] = {"name", "kind", "enabled", NULL};
    struct evq_pair *options = NULL;
    bool enabled = true;
    if (node->kind == EVQ_NODE_SCALAR) {
        return read_sink_name(reader, node, where, sink);
    }
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_MAP);
    if (status == EVQ_OK) {
        status = read_sink_word(reader, node, where, "kind", &sink->kind);
    }
    if (status == EVQ_OK && sink->kind[0] == '\0') {
        return evq_read_fail(reader, node, "%s has no \"kind\" (jsonl, tensorboard, ...)", where);
    }
    if (status == EVQ_OK) {
        status = read_sink_word(reader, node, where, "name", &sink->name);
    }
    if (status == EVQ_OK) {
        status = read_sink_enabled(reader, node, where, &enabled);
    }
    if (status == EVQ_OK && !enabled && strcmp(sink->kind, "jsonl") == 0) {
        return evq_read_fail(reader, node,
                             "%s turns jsonl off, which is the complete record of all results and "
                             "always runs",
                             where);
    }
    if (status == EVQ_OK) {
        sink->disabled = !enabled;
        sink->name = sink->name[0] != '\0' ? sink->name : sink->kind;
        status = evq_read_pairs(reader, node, where, known, &options, &sink->option_count);
        sink->options = options;
    }
    for (size_t i = 0; status == EVQ_OK && i < sink->option_count; i++) {
        const char *tail = strrchr(options[i].key, '_');
        const bool path = strcmp(options[i].key, "directory") == 0 ||
                          (tail != NULL && strcmp(tail, "_file") == 0);
        if (path && options[i].value[0] != '\0') {
            options[i].value = evq_read_path(reader, options[i].value);
            status = options[i].value != NULL ? EVQ_OK : evq_read_nomem(reader);
        }
    }
    return status;
}

static enum evq_status read_sinks(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    void *items = NULL;
    enum evq_status status =
        evq_read_entries(reader, node, where, EVQ_NODE_LIST, EVQ_CONFIG_SINKS_MAX,
                         sizeof(struct evq_sink_config), &items);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_sink_config *sinks = items;
    size_t count = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next, count++) {
        char inner[64];
        (void)snprintf(inner, sizeof inner, "%.40s[%zu]", where, count);
        status = read_sink(reader, entry, inner, &sinks[count]);
        if (status != EVQ_OK) {
            return status;
        }
        for (size_t i = 0; i < count; i++) {
            if (strcmp(sinks[i].name, sinks[count].name) == 0) {
                return evq_read_fail(reader, entry, "%s: sink name \"%s\" comes twice", where,
                                     sinks[count].name);
            }
        }
    }
    config->logger.sinks = sinks;
    config->logger.sink_count = count;
    return EVQ_OK;
}

static enum evq_status read_logger(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("directory", EVQ_KEY_PATH, struct evq_config, logger.directory),
        EVQ_KEY_BY("sinks", read_sinks),
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

static enum evq_status read_samples(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("directory", EVQ_KEY_PATH, struct evq_config, samples.directory),
        EVQ_KEY_PLAIN("send", EVQ_KEY_BOOL, struct evq_config, samples.send),
        EVQ_KEY_RANGE("stream_bytes", EVQ_KEY_BYTES, struct evq_config, samples.stream_bytes, 1,
                      INT64_C(1) << 40),
        EVQ_KEY_RANGE("wait_seconds", EVQ_KEY_INT64, struct evq_config, samples.wait_seconds, 0,
                      86400),
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

/* Settings of the endpoints of LMMS-Eval's server. */
static enum evq_status read_lmms(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        LMMS_SUITE("suite", suite),
        LMMS_SUITE("merged_suite", merged_suite),
        LMMS_SUITE("merge_suite", merge_suite),
        EVQ_KEY_PLAIN("results", EVQ_KEY_PATH, struct evq_config, gateway.lmms.results),
        EVQ_KEY_PLAIN("catalog", EVQ_KEY_PATH, struct evq_config, gateway.lmms.catalog),
        EVQ_KEY_PLAIN("cancel_running", EVQ_KEY_BOOL, struct evq_config,
                      gateway.lmms.cancel_running),
        EVQ_KEY_PLAIN("both_variants", EVQ_KEY_BOOL, struct evq_config, gateway.lmms.both_variants),
        EVQ_KEY_PLAIN("gpus_as_needs", EVQ_KEY_BOOL, struct evq_config, gateway.lmms.gpus_as_needs),
        EVQ_KEY_PLAIN("pin", EVQ_KEY_BOOL, struct evq_config, gateway.lmms.pin),
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

static enum evq_status read_gateway(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("listen", EVQ_KEY_TEXT, struct evq_config, gateway.listen),
        EVQ_KEY_PLAIN("tokens", EVQ_KEY_PATH, struct evq_config, gateway.tokens),
        EVQ_KEY_PLAIN("lmms_open", EVQ_KEY_BOOL, struct evq_config, gateway.lmms_open),
        EVQ_KEY_LIST("hosts", struct evq_config, gateway.hosts, gateway.host_count, HOST_BYTES_MAX),
        EVQ_KEY_BY("lmms", read_lmms),
    };
    ((struct evq_config *)base)->gateway.given = true;
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

enum evq_status evq_read_file(const struct evq_config_reader *reader, const struct evq_node *root)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_BY("redis", evq_read_redis),
        EVQ_KEY_BY("roots", read_roots),
        EVQ_KEY_BY("evaluators", evq_read_evaluators),
        // Suites are read after the evaluators, because they name them.
        {.name = "suites", .type = EVQ_KEY_ANY},
        EVQ_KEY_BY("worker", read_worker),
        EVQ_KEY_BY("logger", read_logger),
        EVQ_KEY_BY("gateway", read_gateway),
        EVQ_KEY_BY("samples", read_samples),
    };
    struct evq_config *config = reader->config;

    // The default is also relative to the file, so that workers and readers find the same place.
    config->samples.directory = evq_read_path(reader, config->samples.directory);
    if (config->samples.directory == NULL) {
        return evq_read_nomem(reader);
    }
    if (root->kind == EVQ_NODE_NULL) {
        return EVQ_OK;
    }
    enum evq_status status =
        evq_read_map(reader, root, "", keys, sizeof keys / sizeof keys[0], reader->config);
    for (const struct evq_node *entry = root->first; entry != NULL && status == EVQ_OK;
         entry = entry->next) {
        if (strcmp(entry->key, "suites") == 0 && entry->kind != EVQ_NODE_NULL) {
            status = evq_read_suites(reader, entry, "suites", reader->config);
        }
    }
    return status;
}
