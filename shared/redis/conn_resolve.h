/*
 * Host names to addresses, with a deadline. getaddrinfo() itself knows none, so a name that is not
 * an address is looked up by a thread of its own, which is left behind when the deadline passes: it
 * ends when the resolver gives up, and a later call for the same name takes up its answer. Not for
 * sharing between threads.
 */
#ifndef EVQ_SHARED_CONN_RESOLVE_H
#define EVQ_SHARED_CONN_RESOLVE_H

#include <netdb.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_conn_resolve; // A lookup under way.

/*
 * *ret_list is freed by freeaddrinfo(). *pending (NULL at first) keeps a lookup over the calls.
 * interrupt_fd: its readability ends the wait with EVQ_E_STOPPED. EVQ_E_TIMEOUT, EVQ_E_IO,
 * EVQ_E_NOMEM.
 */
enum evq_status evq_conn_resolve(struct evq_conn_resolve **pending, const char *host, uint16_t port,
                                 int interrupt_fd, int64_t deadline_ms, struct addrinfo **ret_list,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Lets a pending lookup go; *pending becomes NULL. In a forked child too, where its thread is not.
 */
void evq_conn_resolve_drop(struct evq_conn_resolve **pending);

#endif
