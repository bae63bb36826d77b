/*
 * Serves snapshots (files beneath the root shm, complete and never written again) to workers on
 * other hosts: read-only, over TCP, each to whoever knows its token. A thread of its own, started
 * when the first one is to be served. At most EVQ_SNAPSHOT_SERVER_PEERS_MAX connections, each with
 * deadlines; what is no request is closed without a word, and a connection that has asked for
 * nothing gives way to a new one when all places are taken. The line protocol:
 * shared/queue/snapshot.h.
 *
 * The functions are the owner's, one thread at a time.
 */
#ifndef EVQ_PRODUCER_SNAPSHOT_SERVER_H
#define EVQ_PRODUCER_SNAPSHOT_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/queue/snapshot.h"

#define EVQ_SNAPSHOT_SERVER_PEERS_MAX  16
#define EVQ_SNAPSHOT_SERVER_OFFERS_MAX 4096 // Then the oldest goes; /dev/shm is full before.

struct evq_snapshot_server;

struct evq_snapshot_offer {
    char token[EVQ_SNAPSHOT_TOKEN_CHARS + 1];
    char checksum[EVQ_SNAPSHOT_CHECKSUM_CHARS + 1];
    int64_t bytes;
};

/* No thread and no socket yet. EVQ_E_NOMEM. */
enum evq_status evq_snapshot_server_open(struct evq_snapshot_server **ret_server,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
/* Cuts what is being sent, ends the thread. Accepts NULL. */
void evq_snapshot_server_close(struct evq_snapshot_server *server);

/*
 * Reads the regular file once for its checksum and serves it under a new token until it is removed
 * or replaced; a file offered before keeps its token. EVQ_E_NOT_FOUND, EVQ_E_INVALID (no regular
 * file, or empty), EVQ_E_CHANGED, EVQ_E_IO, EVQ_E_LIMIT, EVQ_E_NOMEM.
 */
enum evq_status evq_snapshot_server_offer(struct evq_snapshot_server *server, const char *path,
                                          struct evq_snapshot_offer *ret_offer,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Starts to serve, at its first call: where others find it is "HOST:PORT" with a port of the
 * kernel's choice. host: a name or address of this machine as others see it; an address of it is
 * the only one listened on, else all are. Valid as long as the server. EVQ_E_IO, EVQ_E_NOMEM.
 */
enum evq_status evq_snapshot_server_listen(struct evq_snapshot_server *server, const char *host,
                                           const char **ret_place,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* The address by which this machine reaches the peer of a connected TCP socket; false: it is none.
 */
bool evq_snapshot_server_local(int fd, char out[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1]);

#endif
