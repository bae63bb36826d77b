/*
 * The struct behind evalq.h. Private to client.c, client_error.c, results.c, results_connection.c,
 * job_calls.c and dead_clients.c. Any thread, as in evalq.h.
 */
#ifndef EVQ_PRODUCER_CLIENT_CLIENT_H
#define EVQ_PRODUCER_CLIENT_CLIENT_H

#include "producer/client/evalq.h"
#include "producer/client/sender.h"

struct evalq_client {
    uint32_t fork_depth; // evq_fork_depth() at open. If it differs now, the parent owns the client.
    struct evq_sender *sender;
    int64_t session_ms;
    int64_t close_ms; // How long close() waits for complete checkpoints to be sent.
    atomic_uint_fast64_t submitted;
    atomic_uint_fast64_t dropped;
    atomic_int_fast64_t submit_ns_total;
    atomic_int_fast64_t submit_ns_max;

    // The connection of poll, wait, best, withdraw and idle.
    pthread_mutex_t results_lock; // Error-checking: a call from inside on_metric is refused.
    struct evq_conn *conn;
    struct evq_queue *redis;
    int call_ms;    // The connection's timeout.
    int64_t cursor; // Position in the run's results, valid for info's epoch.
    struct evq_queue_info info;
    uint64_t known;   // Number of the connection on which info was read.
    int64_t asked_ms; // When info was read, monotonic.
};

/* Keeps the message for evalq_client_error() of this thread. Returns the public code of the error's
 * status. */
int evq_client_fail(const struct evq_error *error);
void evq_client_error_clear(void);
/* Returns EVALQ_OK, or why this process cannot use the client. */
int evq_client_usable(const struct evalq_client *client);

/* ---- results_connection.c: the connection of poll, wait, best, withdraw and idle ---- */

int64_t evq_results_deadline(int timeout_ms); // Monotonic. A negative timeout: INT64_MAX.
/* Takes the lock and opens the connection. After EVQ_OK the caller calls evq_results_end().
 * EVQ_E_INVALID: this thread is in on_metric. EVQ_E_TIMEOUT: another thread has the lock. */
enum evq_status evq_results_begin(struct evalq_client *client, int64_t deadline_ms,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
void evq_results_end(struct evalq_client *client);
void evq_results_close(struct evalq_client *client);

/* ---- results.c ---- */

/* Copies a text as a whole or not at all, because a truncated name may be that of something else.
 * out NULL or out_bytes 0: the caller does not want it. EVQ_E_INVALID: out is too small. */
enum evq_status evq_results_copy_text(const char *field, const char *text, char *out,
                                      size_t out_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
