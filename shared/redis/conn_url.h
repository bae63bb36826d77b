/*
 * Where a Redis is, as one line of text: redis://[USER@]HOST[:PORT][/DB], the same with rediss://
 * for TLS, redis://[USER@][::1]:6379/0, unix://[USER@]/ABSOLUTE/PATH[?db=N]. %XX is decoded in user
 * and path. Any thread. Sentinels: conn_sentinel.h.
 */
#ifndef EVQ_SHARED_REDIS_CONN_URL_H
#define EVQ_SHARED_REDIS_CONN_URL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_CONN_PORT            6379
#define EVQ_CONN_HOST_BYTES_MAX  254
#define EVQ_CONN_USER_BYTES_MAX  128
#define EVQ_CONN_WHERE_BYTES_MAX 320

struct evq_conn_url {
    bool is_unix;
    bool tls;
    char host[EVQ_CONN_HOST_BYTES_MAX]; // Name or address, IPv6 without brackets. Or, of a unix
                                        // socket, its path (107 bytes at most).
    uint16_t port;                      // 0: a unix socket.
    int32_t db;
    char user[EVQ_CONN_USER_BYTES_MAX]; // "": none given.
};

/* EVQ_E_INVALID says what is wrong, but never quotes what is before the @. A password there is
 * refused and must not reach a log. */
enum evq_status evq_conn_url_parse(const char *text, struct evq_conn_url *ret_url,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Parts of an address: HOST[:PORT] or [V6][:PORT] of that many bytes; a leading USER@, which *text
 * then passes; DB[?db=N] to the end. */
enum evq_status evq_conn_url_host(const char *text, size_t bytes, uint16_t port_default,
                                  struct evq_conn_url *url, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_conn_url_user(const char **text, struct evq_conn_url *url,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_conn_url_db(const char *text, struct evq_conn_url *url,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* "redis://host:port/db", "rediss://..." or "unix://path" (with "?db=N" unless 0), without the
 * user. */
void evq_conn_url_where(const struct evq_conn_url *url, char out[EVQ_CONN_WHERE_BYTES_MAX]);

/* "HOST:PORT" as MOVED gives it; an empty host keeps url's. EVQ_E_CORRUPT leaves url untouched. */
enum evq_status evq_conn_url_move(struct evq_conn_url *url, const char *target,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
