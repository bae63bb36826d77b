/*
 * The first words on a new connection: who we are, which database, under which name. Any thread, as
 * the wire.
 */
#ifndef EVQ_SHARED_CONN_HANDSHAKE_H
#define EVQ_SHARED_CONN_HANDSHAKE_H

#include <stdbool.h>

#include "shared/redis/conn_wire.h"

struct evq_conn_greeting {
    const char *user;     // "": the default one.
    const char *password; // "": none.
    int32_t db;
    const char *name; // CLIENT SETNAME; "": none.
    bool primary;     // Asks for its role, too.
};

/*
 * On EVQ_OK ret_refusal is "", or the error reply that it ends with. A name, and to be told the
 * role, are courtesies: a user without those permissions goes on. EVQ_E_RETRY: it is no primary,
 * else as the wire.
 */
enum evq_status evq_conn_handshake(struct evq_conn_wire *wire,
                                   const struct evq_conn_greeting *greeting, int64_t deadline_ms,
                                   char ret_refusal[EVQ_CONN_REFUSAL_BYTES],
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
