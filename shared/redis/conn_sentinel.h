/*
 * Asks sentinels for the primary: redis+sentinel://[USER@]HOST[:PORT],.../NAME[/DB], or
 * rediss+sentinel:// for TLS to all; the default port is 26379. They are asked before each
 * connection, so that reconnecting follows a failover. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_REDIS_CONN_SENTINEL_H
#define EVQ_SHARED_REDIS_CONN_SENTINEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"
#include "shared/redis/conn_password.h"
#include "shared/redis/conn_url.h"

#define EVQ_CONN_SENTINELS_MAX      8
#define EVQ_CONN_SENTINEL_PORT      26379
#define EVQ_CONN_PRIMARY_BYTES_MAX  64
#define EVQ_CONN_FAILOVER_BYTES_MAX 24

struct evq_conn_stream;

struct evq_conn_sentinels {
    size_t count;
    struct evq_conn_url at[EVQ_CONN_SENTINELS_MAX];
    char primary[EVQ_CONN_PRIMARY_BYTES_MAX]; // Its name, as the sentinels watch it.
    char user[EVQ_CONN_USER_BYTES_MAX];       // User for the sentinels; "": the default one.
    char password[EVQ_CONN_PASSWORD_BYTES_MAX];
    size_t first; // Index of the sentinel that answered last; it is asked first.
    // Another value after each failover, the same from every sentinel; "": not known yet.
    char failover[EVQ_CONN_FAILOVER_BYTES_MAX];
};

bool evq_conn_sentinel_is(const char *url);

/* ret_url gets user, database and TLS, but no host. EVQ_E_INVALID never quotes a password. */
enum evq_status evq_conn_sentinel_parse(const char *text, struct evq_conn_sentinels *ret_sentinels,
                                        struct evq_conn_url *ret_url,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Asks one sentinel after the other, each for its part of the time, and sets host and port of url.
 * interrupt_fd and tls are those of like. EVQ_E_RETRY: the primary is down, and no other one is
 * elected yet. EVQ_E_IO, EVQ_E_TIMEOUT: no sentinel answers, or none knows the primary. EVQ_E_AUTH,
 * EVQ_E_STOPPED, EVQ_E_NOMEM.
 */
enum evq_status evq_conn_sentinel_find(struct evq_conn_sentinels *sentinels,
                                       const struct evq_conn_stream *like, int64_t deadline_ms,
                                       struct evq_conn_url *url,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* "redis+sentinel://host:port,host:port/name", cut where it is long. */
void evq_conn_sentinel_where(const struct evq_conn_sentinels *sentinels,
                             char out[EVQ_CONN_WHERE_BYTES_MAX]);

#endif
