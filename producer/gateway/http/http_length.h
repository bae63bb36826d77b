/* Reads the length of a request's body from its head. Any thread. */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_HTTP_LENGTH_H
#define EVQ_PRODUCER_GATEWAY_HTTP_HTTP_LENGTH_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

/* Whether a body follows the head. */
bool evq_http_length_announced(struct MHD_Connection *connection);

/* Whether Content-Length says that the body is longer than bytes_max. */
bool evq_http_length_over(struct MHD_Connection *connection, size_t bytes_max);

/*
 * Whether the head gives the length of the body more than once. A proxy in front may then see
 * another end of this request, and take a part of its body for the next request (RFC 9112, 6.3).
 */
bool evq_http_length_is_ambiguous(struct MHD_Connection *connection);

#endif
