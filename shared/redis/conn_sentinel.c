#include "shared/redis/conn_sentinel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/redis/conn_error.h"
#include "shared/redis/conn_handshake.h"
#include "shared/redis/conn_resolve.h"

enum {
    SENTINEL_MS_MIN = 200 // One of several gets at least this long.
};

static const struct {
    const char *text;
    bool tls;
} schemes[] = {{"redis+sentinel://", false}, {"rediss+sentinel://", true}};

static size_t scheme_of(const char *text)
{
    size_t at = 0;
    while (at < 2 && strncmp(text, schemes[at].text, strlen(schemes[at].text)) != 0) {
        at++;
    }
    return at;
}

bool evq_conn_sentinel_is(const char *url)
{
    return url != NULL && scheme_of(url) < 2;
}

/* Parses HOST[:PORT],... and moves *text past it. */
static enum evq_status parse_hosts(const char **text, bool tls,
                                   struct evq_conn_sentinels *sentinels, struct evq_error *err)
{
    for (;;) {
        const size_t bytes = strcspn(*text, ",/");
        if (sentinels->count == EVQ_CONN_SENTINELS_MAX) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "the Redis address names more than %d sentinels",
                                 EVQ_CONN_SENTINELS_MAX);
        }
        struct evq_conn_url *url = &sentinels->at[sentinels->count++];
        url->tls = tls;
        enum evq_status status = evq_conn_url_host(*text, bytes, EVQ_CONN_SENTINEL_PORT, url, err);
        if (status != EVQ_OK) {
            return status;
        }
        *text += bytes;
        if (**text != ',') {
            return EVQ_OK;
        }
        (*text)++;
    }
}

enum evq_status evq_conn_sentinel_parse(const char *text, struct evq_conn_sentinels *ret_sentinels,
                                        struct evq_conn_url *ret_url, struct evq_error *err)
{
    struct evq_conn_sentinels *sentinels = ret_sentinels;
    const size_t scheme = scheme_of(text);
    struct evq_conn_url url;

    memset(sentinels, 0, sizeof *sentinels);
    memset(&url, 0, sizeof url);
    url.tls = schemes[scheme].tls;
    text += strlen(schemes[scheme].text);
    enum evq_status status = evq_conn_url_user(&text, &url, err);
    if (status == EVQ_OK) {
        status = parse_hosts(&text, url.tls, sentinels, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const char *name = *text == '/' ? text + 1 : "";
    const size_t bytes = strcspn(name, "/");
    if (bytes == 0 || bytes >= sizeof sentinels->primary || strcspn(name, " ?#%") < bytes) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the Redis address names sentinels, but not the primary that they "
                             "watch: write redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB");
    }
    memcpy(sentinels->primary, name, bytes);
    if (name[bytes] == '/') {
        status = evq_conn_url_db(name + bytes + 1, &url, err);
    }
    if (status == EVQ_OK) {
        *ret_url = url;
    }
    return status;
}

void evq_conn_sentinel_where(const struct evq_conn_sentinels *sentinels,
                             char out[EVQ_CONN_WHERE_BYTES_MAX])
{
    const size_t room = EVQ_CONN_WHERE_BYTES_MAX;
    size_t used = (size_t)snprintf(out, room, "%s", schemes[sentinels->at[0].tls ? 1 : 0].text);

    for (size_t i = 0; i < sentinels->count && used < room; i++) {
        const bool v6 = strchr(sentinels->at[i].host, ':') != NULL;
        const int put =
            snprintf(out + used, room - used, "%s%s%s%s:%u", i > 0 ? "," : "", v6 ? "[" : "",
                     sentinels->at[i].host, v6 ? "]" : "", (unsigned)sentinels->at[i].port);
        used += put > 0 ? (size_t)put : 0;
    }
    if (used < room) {
        (void)snprintf(out + used, room - used, "/%s", sentinels->primary);
    }
}

/* Returns the value of a name in a list of names and values; "": none. */
static const char *field(const struct evq_reply *reply, const char *name)
{
    for (size_t i = 0; i + 1 < reply->item_count; i += 2) {
        const struct evq_reply *key = reply->items[i];
        const struct evq_reply *value = reply->items[i + 1];
        if (key->text != NULL && value->text != NULL && strcmp(key->text, name) == 0) {
            return value->text;
        }
    }
    return "";
}

/* Reads what one sentinel says about the primary. */
static enum evq_status take_answer(struct evq_conn_sentinels *sentinels,
                                   const struct evq_reply *reply, struct evq_conn_url *url,
                                   struct evq_error *err)
{
    struct evq_conn_url found = *url;
    const char *host = field(reply, "ip");
    char *end = NULL;
    const char *failover = field(reply, "config-epoch");
    const long port = strtol(field(reply, "port"), &end, 10);

    if (reply->type != EVQ_REPLY_ARRAY || *host == '\0' || strlen(host) >= sizeof found.host ||
        port < 1 || port > 65535 || *end != '\0' ||
        strlen(failover) >= sizeof sentinels->failover) {
        return evq_error_set(err, EVQ_E_IO, "answers out of shape: is it a sentinel?");
    }
    if (strstr(field(reply, "flags"), "o_down") != NULL) {
        return evq_error_set(err, EVQ_E_RETRY,
                             "says that primary '%s' at %s:%ld is down: another one is awaited",
                             sentinels->primary, host, port);
    }
    (void)snprintf(url->host, sizeof url->host, "%s", host);
    url->port = (uint16_t)port;
    (void)snprintf(sentinels->failover, sizeof sentinels->failover, "%s", failover);
    return EVQ_OK;
}

static enum evq_status refused(const struct evq_conn_sentinels *sentinels, const char *text,
                               struct evq_error *err)
{
    const struct evq_conn_error refusal = evq_conn_error_parse(text);
    if (refusal.status == EVQ_E_AUTH) {
        return evq_error_set(err, EVQ_E_AUTH,
                             "refuses user '%s' (redis.sentinel.user and password_file): %s",
                             *sentinels->user != '\0' ? sentinels->user : "default", text);
    }
    if (strstr(text, "No such master") != NULL) {
        return evq_error_set(err, EVQ_E_IO, "watches no primary named '%s'", sentinels->primary);
    }
    return evq_error_set(err, EVQ_E_IO, "%s: is it a sentinel?", text);
}

static enum evq_status converse(struct evq_conn_sentinels *sentinels, struct evq_conn_wire *wire,
                                int64_t deadline_ms, struct evq_conn_url *url,
                                struct evq_error *err)
{
    const struct evq_conn_greeting greeting = {
        .user = sentinels->user, .password = sentinels->password, .name = ""};
    const char *const words[] = {"SENTINEL", "MASTER", sentinels->primary};
    char text[EVQ_CONN_REFUSAL_BYTES];
    struct evq_buffer out;
    struct evq_reply *reply = NULL;

    evq_buffer_init(&out, 0);
    enum evq_status status = evq_conn_handshake(wire, &greeting, deadline_ms, text, err);
    if (status != EVQ_OK || *text != '\0') {
        goto out;
    }
    status = evq_conn_reader_format(3, words, NULL, &out, err);
    if (status == EVQ_OK) {
        status = evq_conn_wire_send(wire, out.data, out.bytes, deadline_ms, err);
    }
    if (status == EVQ_OK) {
        status = evq_conn_wire_receive(wire, deadline_ms, &reply, text, err);
    }
out:
    if (status == EVQ_OK && *text != '\0') {
        status = refused(sentinels, text, err);
    } else if (status == EVQ_OK) {
        status = take_answer(sentinels, reply, url, err);
    }
    evq_reply_free(reply);
    evq_buffer_free(&out);
    return status;
}

static enum evq_status ask(struct evq_conn_sentinels *sentinels, size_t at,
                           const struct evq_conn_stream *like, int64_t deadline_ms,
                           struct evq_conn_url *url, struct evq_error *err)
{
    struct evq_conn_wire *wire = calloc(1, sizeof *wire); // Too large for a stack.
    char where[EVQ_CONN_WHERE_BYTES_MAX];

    if (wire == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to ask a sentinel");
    }
    wire->stream.fd = -1;
    wire->stream.interrupt_fd = like->interrupt_fd;
    wire->stream.tls = like->tls;
    enum evq_status status = evq_conn_wire_open(wire, &sentinels->at[at], deadline_ms, err);
    if (status == EVQ_OK) {
        status = converse(sentinels, wire, deadline_ms, url, err);
    }
    if (status != EVQ_OK) {
        evq_conn_url_where(&sentinels->at[at], where);
        // Leaves the database out, because this is not the address of a Redis.
        (void)evq_error_prefix(err, "sentinel %.*s", (int)(strrchr(where, '/') - where), where);
    }
    evq_conn_wire_close(wire);
    evq_conn_resolve_drop(&wire->stream.resolve);
    free(wire);
    return status;
}

enum evq_status evq_conn_sentinel_find(struct evq_conn_sentinels *sentinels,
                                       const struct evq_conn_stream *like, int64_t deadline_ms,
                                       struct evq_conn_url *url, struct evq_error *err)
{
    enum evq_status status = EVQ_E_IO;
    enum evq_status worst = EVQ_E_IO;
    struct evq_error said = {EVQ_OK, ""};
    const size_t first = sentinels->first;

    for (size_t i = 0; i < sentinels->count; i++) {
        const size_t at = (first + i) % sentinels->count;
        const int64_t now_ms = evq_clock_mono_ms();
        const int64_t part_ms = (deadline_ms - now_ms) / (int64_t)(sentinels->count - i);
        int64_t until_ms = now_ms + (part_ms > SENTINEL_MS_MIN ? part_ms : SENTINEL_MS_MIN);
        struct evq_error local = {EVQ_OK, ""};

        until_ms = until_ms < deadline_ms ? until_ms : deadline_ms;
        status = ask(sentinels, at, like, until_ms, url, &local);
        if (status == EVQ_OK) {
            sentinels->first = at;
            return EVQ_OK;
        }
        // The caller hears the most informative error: anything but "nobody answers".
        if (i == 0 || (status != EVQ_E_IO && status != EVQ_E_TIMEOUT) ||
            (worst == EVQ_E_TIMEOUT && status == EVQ_E_IO)) {
            worst = status;
            said = local;
        }
        if (status == EVQ_E_STOPPED || status == EVQ_E_NOMEM) {
            break;
        }
    }
    return evq_error_set(err, worst, "%s", said.message);
}
