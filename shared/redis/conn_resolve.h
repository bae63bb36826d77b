/*
 * Resolves host names with a deadline. getaddrinfo() has none, so a name is resolved in another
 * thread. If the deadline passes, the thread goes on alone, and a later call for the same name
 * takes its answer. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_REDIS_CONN_RESOLVE_H
#define EVQ_SHARED_REDIS_CONN_RESOLVE_H

#include <netdb.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_conn_resolve; // A running lookup.

/*
 * *ret_list is freed by freeaddrinfo(). *pending (NULL at first) keeps a running lookup between
 * calls. The wait ends with EVQ_E_STOPPED when interrupt_fd is readable. EVQ_E_TIMEOUT, EVQ_E_IO,
 * EVQ_E_NOMEM.
 */
enum evq_status evq_conn_resolve(struct evq_conn_resolve **pending, const char *host, uint16_t port,
                                 int interrupt_fd, int64_t deadline_ms, struct addrinfo **ret_list,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Abandons a running lookup and sets *pending to NULL. Also for a forked child, which does not have
 * the thread. */
void evq_conn_resolve_drop(struct evq_conn_resolve **pending);

#endif
