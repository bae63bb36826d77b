/* The first commands on a new connection: authentication, database, name. Threads as the wire. */
#ifndef EVQ_SHARED_REDIS_CONN_HANDSHAKE_H
#define EVQ_SHARED_REDIS_CONN_HANDSHAKE_H

#include <stdbool.h>

#include "shared/redis/conn_wire.h"

struct evq_conn_greeting {
    const char *user;     // "": the default one.
    const char *password; // "": none.
    int32_t db;
    const char *name; // CLIENT SETNAME; "": none.
    bool primary;     // Also asks for the role of the server.
};

/*
 * On EVQ_OK ret_refusal is "", or the error reply that ended the handshake. Setting the name and
 * asking for the role are optional: a user without these permissions goes on. EVQ_E_RETRY: the
 * server is not a primary. Other errors as the wire.
 */
enum evq_status evq_conn_handshake(struct evq_conn_wire *wire,
                                   const struct evq_conn_greeting *greeting, int64_t deadline_ms,
                                   char ret_refusal[EVQ_CONN_REFUSAL_BYTES],
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
