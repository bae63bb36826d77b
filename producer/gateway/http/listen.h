/*
 * The address that the gateway listens on. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_LISTEN_H
#define EVQ_PRODUCER_GATEWAY_HTTP_LISTEN_H

#include <stdbool.h>
#include <sys/socket.h>

#include "shared/base/error.h"

struct evq_listen {
    struct sockaddr_storage address;
    socklen_t address_bytes;
    bool loopback; // Other machines cannot reach it.
};

/* "127.0.0.1:8000", "[::1]:8000", "0.0.0.0:80", "localhost:8000"; names are not looked up. */
enum evq_status evq_listen_parse(const char *text, struct evq_listen *ret_listen,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Opens a listening socket, non-blocking and close-on-exec, which the caller closes. text: its
 * address, with the port that was chosen for port 0. */
enum evq_status evq_listen_open(const struct evq_listen *listen, int *ret_fd, char text[80],
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* "127.0.0.1", "::1"; "?" for another family. */
void evq_listen_peer(const struct sockaddr *address, char *out, size_t out_bytes);

#endif
