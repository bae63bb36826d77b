/*
 * What training processes that died left in their rings and spools: sends it without waiting for
 * the run to be opened again. For `evalq scan`. Any thread.
 */
#ifndef EVQ_PRODUCER_DEAD_CLIENTS_H
#define EVQ_PRODUCER_DEAD_CLIENTS_H

#include "producer/client/evalq.h"
#include "shared/base/error.h"

struct evq_dead_clients {
    uint64_t runs; // That had something left.
    uint64_t sent; // Jobs.
    uint64_t refused;
    uint64_t kept;   // Not sent in time: they stay for the next one.
    uint64_t unseen; // Runs that were not looked at: the time was over.
};

/*
 * For each run of `queue` that has a ring in options->ring_directory: opens a client of it, sends
 * what no living process owns and closes it. options as for evalq_client_open(); run is ignored.
 * queue: the name that options give. timeout_ms: for all of them, of which each has a
 * share. EVQ_E_IO: Redis is away. A run that cannot be opened is passed over.
 */
enum evq_status evq_dead_clients_send(const struct evalq_options *options, const char *queue,
                                      int timeout_ms, struct evq_dead_clients *ret_totals,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
