/*
 * Serves snapshots (complete files beneath the root shm that are never written again) to workers on
 * other hosts, over TCP and read-only. Each snapshot has a token, and only a peer that sends the
 * token gets it. shared/queue/snapshot.h describes the line protocol.
 *
 * The server has its own thread, which starts with evq_snapshot_server_listen(). It has at most
 * EVQ_SNAPSHOT_SERVER_PEERS_MAX connections, each with deadlines. It closes a connection that sends
 * anything but a request. If all connections are in use, a new one replaces one that has not sent a
 * request yet.
 *
 * The owner calls the functions from one thread at a time.
 */
#ifndef EVQ_PRODUCER_CLIENT_SNAPSHOTS_SNAPSHOT_SERVER_H
#define EVQ_PRODUCER_CLIENT_SNAPSHOTS_SNAPSHOT_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/queue/snapshot.h"

#define EVQ_SNAPSHOT_SERVER_PEERS_MAX  16
#define EVQ_SNAPSHOT_SERVER_OFFERS_MAX 4096 // A further offer replaces the oldest one.

struct evq_snapshot_server;

struct evq_snapshot_offer {
    char token[EVQ_SNAPSHOT_TOKEN_CHARS + 1];
    char checksum[EVQ_SNAPSHOT_CHECKSUM_CHARS + 1];
    int64_t bytes;
};

/* Starts no thread and opens no socket yet. EVQ_E_NOMEM. */
enum evq_status evq_snapshot_server_open(struct evq_snapshot_server **ret_server,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
/* Breaks off running transfers and ends the thread. Accepts NULL. */
void evq_snapshot_server_close(struct evq_snapshot_server *server);

/*
 * Offers a regular file until it is removed or replaced. Reads it once for its checksum and gives
 * it a new token; a file that was offered before keeps its token. EVQ_E_NOT_FOUND, EVQ_E_INVALID
 * (not a regular file, or empty), EVQ_E_CHANGED, EVQ_E_IO, EVQ_E_LIMIT, EVQ_E_NOMEM.
 */
enum evq_status evq_snapshot_server_offer(struct evq_snapshot_server *server, const char *path,
                                          struct evq_snapshot_offer *ret_offer,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Starts the thread at its first call. *ret_place is "HOST:PORT", where others reach the server;
 * the kernel chooses the port. It is valid as long as the server. host: a name or address of this
 * machine as others see it. If it is an address of this machine, the server listens only there,
 * otherwise on all addresses. EVQ_E_IO, EVQ_E_NOMEM.
 */
enum evq_status evq_snapshot_server_listen(struct evq_snapshot_server *server, const char *host,
                                           const char **ret_place,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* Writes the address from which this machine reaches the peer of a connected TCP socket. Returns
 * false if fd is not such a socket. */
bool evq_snapshot_server_local(int fd, char out[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1]);

#endif
