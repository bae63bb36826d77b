/*
 * Which network addresses are of the public internet. Any thread.
 */
#ifndef EVQ_LOGGER_SINKS_ADDRESS_H
#define EVQ_LOGGER_SINKS_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* false: loopback, private, link-local, shared, multicast, reserved or documentation addresses,
 * such IPv4 addresses within IPv6 ones, and every family but the two. */
bool evq_address_public(const struct sockaddr *address);

#endif
