/*
 * Sends what dead training processes left in their rings and spools, so that it need not wait until
 * the run is opened again. `evalq scan` uses it. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_DEAD_CLIENTS_H
#define EVQ_PRODUCER_CLIENT_DEAD_CLIENTS_H

#include "producer/client/evalq.h"
#include "shared/base/error.h"

struct evq_dead_clients {
    uint64_t runs;    // Runs that had unsent submits.
    uint64_t sent;    // Jobs that were sent.
    uint64_t refused; // Jobs that the queue refused.
    uint64_t kept;    // Submits and jobs that could not be sent in time. They stay.
    uint64_t unseen;  // Runs that were not opened, because the time was up.
};

/*
 * Opens a client for each run of `queue` that has a ring in options->ring_directory, sends what no
 * living process owns, and closes the client. Skips runs that cannot be opened. options: as for
 * evalq_client_open(), but run is ignored. queue: the queue's name by the options. timeout_ms: for
 * all runs together; each gets a share. EVQ_E_IO: Redis is away.
 */
enum evq_status evq_dead_clients_send(const struct evalq_options *options, const char *queue,
                                      int timeout_ms, struct evq_dead_clients *ret_totals,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
