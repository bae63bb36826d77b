/* Reads the section redis, and makes the connection's settings from it. */
#include <string.h>

#include "shared/config/config_read.h"
#include "shared/queue/keys.h"

static enum evq_status read_url(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base)
{
    struct evq_config *config = base;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status == EVQ_OK && strstr(node->text, "://") == NULL) {
        return evq_read_fail(
            reader, node, "%s is not an address such as redis://HOST:PORT or unix:///PATH", where);
    }
    config->redis.url = node->text;
    return status;
}

static enum evq_status read_tls(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("ca", EVQ_KEY_PATH, struct evq_config, redis.tls.ca),
        EVQ_KEY_PLAIN("cert", EVQ_KEY_PATH, struct evq_config, redis.tls.cert),
        EVQ_KEY_PLAIN("key", EVQ_KEY_PATH, struct evq_config, redis.tls.key),
        EVQ_KEY_PLAIN("server_name", EVQ_KEY_TEXT, struct evq_config, redis.tls.server_name),
    };
    ((struct evq_config *)base)->redis.tls_given = true;
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

static enum evq_status read_sentinel(const struct evq_config_reader *reader,
                                     const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("user", EVQ_KEY_TEXT, struct evq_config, redis.sentinel.user),
        EVQ_KEY_PLAIN("password_file", EVQ_KEY_PATH, struct evq_config,
                      redis.sentinel.password_file),
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

enum evq_status evq_read_redis(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_BY("url", read_url),
        EVQ_KEY_PLAIN("user", EVQ_KEY_TEXT, struct evq_config, redis.user),
        EVQ_KEY_PLAIN("password_file", EVQ_KEY_PATH, struct evq_config, redis.password_file),
        EVQ_KEY_RANGE("queue", EVQ_KEY_NAME, struct evq_config, redis.queue, 1,
                      EVQ_KEYS_QUEUE_BYTES_MAX),
        EVQ_KEY_BY("tls", read_tls),
        EVQ_KEY_BY("sentinel", read_sentinel),
    };
    const struct evq_config *config = base;
    enum evq_status status =
        evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
    // A user who writes this believes that the connection is encrypted.
    if (status == EVQ_OK && config->redis.tls_given && config->redis.url[0] != '\0' &&
        strncmp(config->redis.url, "rediss", 6) != 0) {
        return evq_read_fail(reader, node,
                             "%s.tls is given, but %s.url speaks no TLS: write it as "
                             "rediss://HOST:PORT",
                             where, where);
    }
    return status;
}

struct evq_conn_config evq_config_conn(const struct evq_config *config, const char *name)
{
    return (struct evq_conn_config){.url = config->redis.url,
                                    .user = config->redis.user,
                                    .password_file = config->redis.password_file,
                                    .tls = config->redis.tls,
                                    .sentinel = config->redis.sentinel,
                                    .name = name};
}
