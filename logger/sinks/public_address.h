/*
 * Which network addresses are of the public internet. http.c asks it before it connects a webhook,
 * so that a configuration cannot reach services inside the network by mistake. Any thread.
 */
#ifndef EVQ_LOGGER_SINKS_PUBLIC_ADDRESS_H
#define EVQ_LOGGER_SINKS_PUBLIC_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Whether the address is of the public internet. False: loopback, private, link-local, shared,
 * multicast, reserved or documentation addresses, such IPv4 addresses within IPv6 ones, and every
 * family but the two. */
bool evq_public_address_is(const struct sockaddr *address);

#endif
