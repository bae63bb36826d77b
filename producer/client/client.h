/*
 * The client that evalq.h names, for the files that implement it.
 */
#ifndef EVQ_PRODUCER_CLIENT_H
#define EVQ_PRODUCER_CLIENT_H

#include "producer/client/evalq.h"
#include "producer/client/sender.h"

struct evalq_client {
    uint32_t fork_depth; // Of evq_fork_depth(): another one, and this is the parent's.
    struct evq_sender *sender;
    int64_t session_ms;
    int64_t close_ms; // How long close() waits for what is ready.
    atomic_uint_fast64_t submitted;
    atomic_uint_fast64_t dropped;
    atomic_int_fast64_t submit_ns_total;
    atomic_int_fast64_t submit_ns_max;

    // For poll, wait and best, which have a connection of their own.
    pthread_mutex_t results_lock; // Error-checking: a call from inside on_metric is refused.
    struct evq_conn *conn;
    struct evq_queue *redis;
    int call_ms;    // The connection's timeout.
    int64_t cursor; // Into the results of the run, in the life of the data that is info's.
    struct evq_queue_info info;
    uint64_t known;   // The connection that info was asked on.
    int64_t asked_ms; // And when, monotonic.
};

/* Keeps the sentence for evalq_client_error() of this thread; returns the public code of its
 * status. */
int evq_client_fail(const struct evq_error *error);
void evq_client_error_clear(void);
/* EVALQ_OK, or why client cannot be used by this process. */
int evq_client_usable(const struct evalq_client *client);
void evq_client_results_close(struct evalq_client *client);

#endif
