/*
 * One connection of the snapshot server: reads one request, sends one answer and the bytes asked
 * for. The server's thread.
 */
#ifndef EVQ_PRODUCER_SNAPSHOT_PEER_H
#define EVQ_PRODUCER_SNAPSHOT_PEER_H

#include <stdbool.h>

#include "shared/queue/snapshot.h"

#define EVQ_SNAPSHOT_PEER_REQUEST_MS 5000  // To say what it wants.
#define EVQ_SNAPSHOT_PEER_BLOCK_MS   20000 // To take each further block.
#define EVQ_SNAPSHOT_PEER_BLOCK      (1 << 20)

struct evq_snapshot_peer {
    int fd;   // -1: free.
    int file; // -1: the request is still being read.
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    size_t line_bytes; // Of the request so far, then of the answer.
    size_t line_sent;
    int64_t at; // In the file.
    int64_t end;
    int64_t mark; // What was sent when the deadline was last moved.
    int64_t deadline_ms;
    bool answered; // The answer is all that is left to send.
};

/* Opens what the request asks for; -1 when there is nothing of that token. */
typedef int (*evq_snapshot_find_fn)(void *context, const struct evq_snapshot_request *request,
                                    int64_t *ret_bytes);

/* Takes the accepted, non-blocking socket over. */
void evq_snapshot_peer_begin(struct evq_snapshot_peer *peer, int fd);
/* It holds a place and has not said yet what it wants. */
bool evq_snapshot_peer_silent(const struct evq_snapshot_peer *peer);
/* What to poll for. */
short evq_snapshot_peer_events(const struct evq_snapshot_peer *peer);
/* Goes on as far as it can without waiting. false: it is through, well or not, and to be ended. */
bool evq_snapshot_peer_step(struct evq_snapshot_peer *peer, evq_snapshot_find_fn find,
                            void *context) EVQ_CHECK_RESULT;
void evq_snapshot_peer_end(struct evq_snapshot_peer *peer);

#endif
