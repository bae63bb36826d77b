#include "shared/redis/conn_url.h"

#include <stdio.h>
#include <string.h>
#include <sys/un.h>

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

/*
 * Copies text with %XX decoded. False: it does not fit, holds a control byte, or a % is malformed.
 */
static bool decode(const char *text, size_t bytes, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '%') {
            int high = bytes - i > 2 ? hex_value(text[i + 1]) : -1;
            int low = bytes - i > 2 ? hex_value(text[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return false;
            }
            c = (unsigned char)(high * 16 + low);
            i += 2;
        }
        if (c < 0x20 || c == 0x7f || used + 1 >= out_bytes) {
            return false;
        }
        out[used++] = (char)c;
    }
    out[used] = '\0';
    return true;
}

/* Reads decimal digits to the end of the text, at most max; -1 otherwise. */
static int64_t parse_number(const char *text, size_t bytes, int64_t max)
{
    int64_t value = 0;
    if (bytes == 0 || bytes > 10) {
        return -1;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return -1;
        }
        value = value * 10 + (text[i] - '0');
    }
    return value <= max ? value : -1;
}

static enum evq_status refuse_password(struct evq_error *err)
{
    return evq_error_set(
        err, EVQ_E_INVALID,
        "the Redis address holds a password, where every log and process list shows it: put it "
        "in a file and name that in redis.password_file or $EVALQ_REDIS_PASSWORD_FILE (or in "
        "$EVALQ_REDIS_PASSWORD)");
}

/* Other clients accept unix:///PATH?db=0&password=WORD, which no message may quote. */
static bool query_has_password(const char *text)
{
    const char *query = strchr(text, '?');
    return query != NULL && strcasestr(query, "pass") != NULL;
}

/* Reads the user before the @ and moves *text past it. */
static enum evq_status parse_user(const char **text, size_t bytes, struct evq_conn_url *url,
                                  struct evq_error *err)
{
    if (memchr(*text, ':', bytes) != NULL) {
        return refuse_password(err);
    }
    if (!decode(*text, bytes, url->user, sizeof url->user)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the user in the Redis address is malformed or longer than %d bytes",
                             EVQ_CONN_USER_BYTES_MAX - 1);
    }
    *text += bytes + 1;
    return EVQ_OK;
}

static enum evq_status parse_query(const char *query, struct evq_conn_url *url,
                                   struct evq_error *err)
{
    int64_t db = -1;
    if (strncmp(query, "db=", 3) == 0) {
        db = parse_number(query + 3, strlen(query + 3), INT32_MAX);
    }
    if (db < 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'?%s' in the Redis address is not understood: '?db=N' is", query);
    }
    url->db = (int32_t)db;
    return EVQ_OK;
}

static enum evq_status parse_unix(const char *text, struct evq_conn_url *url, struct evq_error *err)
{
    const size_t path_bytes_max = sizeof((struct sockaddr_un *)NULL)->sun_path;
    const char *slash = strchr(text, '/');
    size_t head = slash != NULL ? (size_t)(slash - text) : strlen(text);
    const char *at = memchr(text, '@', head);

    url->is_unix = true;
    if (at != NULL) {
        const char *last = memrchr(text, '@', head);
        enum evq_status status = parse_user(&text, (size_t)(last - text), url, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    if (*text != '/') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the path in the Redis address 'unix://%s' is not absolute: write it "
                             "as unix:///run/redis.sock",
                             text);
    }
    const char *query = strchr(text, '?');
    size_t bytes = query != NULL ? (size_t)(query - text) : strlen(text);
    if (!decode(text, bytes, url->host, sizeof url->host) || strlen(url->host) >= path_bytes_max) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the socket path '%s' is malformed or longer than %zu bytes", text,
                             path_bytes_max - 1);
    }
    return query != NULL ? parse_query(query + 1, url, err) : EVQ_OK;
}

enum evq_status evq_conn_url_host(const char *text, size_t bytes, uint16_t port_default,
                                  struct evq_conn_url *url, struct evq_error *err)
{
    const char *host = text;
    const char *end = text + bytes;
    const char *host_end = NULL;

    if (bytes > 0 && *text == '[') {
        host = text + 1;
        host_end = memchr(host, ']', bytes - 1);
        end = host_end != NULL ? host_end + 1 : NULL;
    } else {
        host_end = memchr(text, ':', bytes);
        if (host_end == NULL) {
            host_end = end;
        }
        end = host_end;
    }
    if (host_end == NULL || host_end == host ||
        !decode(host, (size_t)(host_end - host), url->host, sizeof url->host) ||
        strpbrk(url->host, " []@/?#\\") != NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the host in the Redis address '%.*s' is missing or malformed: write "
                             "redis://HOST:PORT/DB, an IPv6 address in brackets",
                             (int)(bytes > 200 ? 200 : bytes), text);
    }
    url->port = port_default;
    if (end != text + bytes) {
        int64_t port =
            *end == ':' ? parse_number(end + 1, (size_t)(text + bytes - end - 1), 65535) : -1;
        if (port < 1) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "the port in the Redis address '%.*s' is not 1 to 65535",
                                 (int)(bytes > 200 ? 200 : bytes), text);
        }
        url->port = (uint16_t)port;
    }
    return EVQ_OK;
}

enum evq_status evq_conn_url_user(const char **text, struct evq_conn_url *url,
                                  struct evq_error *err)
{
    // Uses the last @ of the whole text, because a password may contain a slash and must be
    // recognised.
    const char *at = strrchr(*text, '@');
    if (query_has_password(*text)) {
        return refuse_password(err);
    }
    return at != NULL ? parse_user(text, (size_t)(at - *text), url, err) : EVQ_OK;
}

enum evq_status evq_conn_url_db(const char *text, struct evq_conn_url *url, struct evq_error *err)
{
    const size_t digits = strcspn(text, "?");
    const int64_t db = digits == 0 ? 0 : parse_number(text, digits, INT32_MAX);
    if (db < 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the database in the Redis address is '%s', not a number", text);
    }
    url->db = (int32_t)db;
    return text[digits] == '?' ? parse_query(text + digits + 1, url, err) : EVQ_OK;
}

static enum evq_status parse_tcp(const char *text, struct evq_conn_url *url, struct evq_error *err)
{
    enum evq_status status = evq_conn_url_user(&text, url, err);
    const size_t bytes = strcspn(text, "/?");

    if (status == EVQ_OK) {
        status = evq_conn_url_host(text, bytes, EVQ_CONN_PORT, url, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    text += bytes;
    if (*text == '/') {
        return evq_conn_url_db(text + 1, url, err);
    }
    return *text == '?' ? parse_query(text + 1, url, err) : EVQ_OK;
}

enum evq_status evq_conn_url_parse(const char *text, struct evq_conn_url *ret_url,
                                   struct evq_error *err)
{
    struct evq_conn_url url;
    enum evq_status status = EVQ_OK;

    memset(&url, 0, sizeof url);
    if (text == NULL || *text == '\0') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "no Redis address is given: name it with --url, $EVALQ_URL or "
                             "redis.url, as redis://HOST:PORT/DB or unix:///PATH");
    }
    if (evq_error_control(text) != 0) { // Shown in a message, it would reach a terminal.
        return evq_error_set(err, EVQ_E_INVALID,
                             "the Redis address holds a control byte, its byte %zu: write it as "
                             "redis://HOST:PORT/DB or unix:///PATH",
                             evq_error_control(text));
    }
    if (query_has_password(text)) {
        return refuse_password(err);
    }
    if (strncmp(text, "redis://", 8) == 0) {
        status = parse_tcp(text + 8, &url, err);
    } else if (strncmp(text, "unix://", 7) == 0) {
        status = parse_unix(text + 7, &url, err);
    } else if (strncmp(text, "rediss://", 9) == 0) {
        url.tls = true;
        status = parse_tcp(text + 9, &url, err);
    } else {
        const char *at = strrchr(text, '@'); // Whatever is before it may be a secret.
        status = evq_error_set(err, EVQ_E_INVALID,
                               "the Redis address '%.200s' does not begin with redis://, "
                               "rediss://, unix://, redis+sentinel:// or rediss+sentinel://",
                               at != NULL ? at + 1 : text);
    }
    if (status == EVQ_OK) {
        *ret_url = url;
    }
    return status;
}

void evq_conn_url_where(const struct evq_conn_url *url, char out[EVQ_CONN_WHERE_BYTES_MAX])
{
    if (url->is_unix && url->db != 0) {
        (void)snprintf(out, EVQ_CONN_WHERE_BYTES_MAX, "unix://%s?db=%d", url->host, url->db);
    } else if (url->is_unix) {
        (void)snprintf(out, EVQ_CONN_WHERE_BYTES_MAX, "unix://%s", url->host);
    } else if (strchr(url->host, ':') != NULL) {
        (void)snprintf(out, EVQ_CONN_WHERE_BYTES_MAX, "redis%s://[%s]:%u/%d", url->tls ? "s" : "",
                       url->host, (unsigned)url->port, url->db);
    } else {
        (void)snprintf(out, EVQ_CONN_WHERE_BYTES_MAX, "redis%s://%s:%u/%d", url->tls ? "s" : "",
                       url->host, (unsigned)url->port, url->db);
    }
}

enum evq_status evq_conn_url_move(struct evq_conn_url *url, const char *target,
                                  struct evq_error *err)
{
    struct evq_conn_url moved = *url;
    const char *colon = strrchr(target, ':');
    int64_t port = colon != NULL ? parse_number(colon + 1, strlen(colon + 1), 65535) : -1;
    size_t bytes = colon != NULL ? (size_t)(colon - target) : 0;

    if (bytes > 2 && target[0] == '[' && target[bytes - 1] == ']') {
        target++;
        bytes -= 2;
    }
    if (port < 1 || bytes >= sizeof moved.host || (bytes == 0 && url->is_unix)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%.80s' is not the HOST:PORT of a cluster node",
                             target);
    }
    if (bytes > 0) {
        memcpy(moved.host, target, bytes);
        moved.host[bytes] = '\0';
    }
    moved.port = (uint16_t)port;
    moved.is_unix = false;
    *url = moved;
    return EVQ_OK;
}
