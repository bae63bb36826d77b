/*
 * One connection of the snapshot server: reads one request, then sends the reply and the requested
 * bytes. The server's thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_SNAPSHOTS_SNAPSHOT_PEER_H
#define EVQ_PRODUCER_CLIENT_SNAPSHOTS_SNAPSHOT_PEER_H

#include <stdbool.h>

#include "shared/queue/snapshot.h"

#define EVQ_SNAPSHOT_PEER_REQUEST_MS 5000  // Time for its request.
#define EVQ_SNAPSHOT_PEER_BLOCK_MS   20000 // Time to take each further block.
#define EVQ_SNAPSHOT_PEER_BLOCK      (1 << 20)

struct evq_snapshot_peer {
    int fd;   // -1: free.
    int file; // -1: the request is still being read.
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    size_t line_bytes; // Bytes of the request so far, then of the reply.
    size_t line_sent;
    int64_t at; // Offset in the file.
    int64_t end;
    int64_t mark; // Offset at which the deadline was last moved.
    int64_t deadline_ms;
    bool answered; // Only the reply is left to send.
};

/* Opens the file of the request. -1: no file has that token. */
typedef int (*evq_snapshot_find_fn)(void *context, const struct evq_snapshot_request *request,
                                    int64_t *ret_bytes);

/* Takes the accepted, non-blocking socket over. */
void evq_snapshot_peer_begin(struct evq_snapshot_peer *peer, int fd);
/* Whether it is connected and has not sent a whole request yet. */
bool evq_snapshot_peer_silent(const struct evq_snapshot_peer *peer);
/* The events to poll for. */
short evq_snapshot_peer_events(const struct evq_snapshot_peer *peer);
/* Continues as far as it can without waiting. Returns false if it has finished or failed; then end
 * it. */
bool evq_snapshot_peer_step(struct evq_snapshot_peer *peer, evq_snapshot_find_fn find,
                            void *context) EVQ_CHECK_RESULT;
void evq_snapshot_peer_end(struct evq_snapshot_peer *peer);

#endif
