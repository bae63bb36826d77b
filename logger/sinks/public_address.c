#include "logger/sinks/public_address.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Ranges that are not public, by IANA's registry of special addresses. */
static const struct {
    uint32_t prefix;
    unsigned bits;
} special[] = {
    {0x00000000, 8},  // This network.
    {0x0a000000, 8},  // Private.
    {0x64400000, 10}, // Shared by carriers.
    {0x7f000000, 8},  // Loopback.
    {0xa9fe0000, 16}, // Link-local: where clouds keep their credentials.
    {0xac100000, 12}, // Private.
    {0xc0000000, 24}, // Protocol assignments.
    {0xc0000200, 24}, // Documentation.
    {0xc0a80000, 16}, // Private.
    {0xc6120000, 15}, // Benchmarks.
    {0xc6336400, 24}, // Documentation.
    {0xcb007100, 24}, // Documentation.
    {0xe0000000, 3},  // Multicast, reserved, broadcast.
};

static bool public_v4(uint32_t address)
{
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++) {
        if ((address ^ special[i].prefix) >> (32 - special[i].bits) == 0) {
            return false;
        }
    }
    return true;
}

static uint32_t word(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool public_v6(const uint8_t bytes[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const uint8_t translated[12] = {0x00, 0x64, 0xff, 0x9b};

    if (memcmp(bytes, mapped, sizeof(mapped)) == 0 ||
        memcmp(bytes, translated, sizeof(translated)) == 0) {
        return public_v4(word(bytes + 12));
    }
    if (bytes[0] == 0x20 && bytes[1] == 0x02) { // 6to4: the IPv4 address follows.
        return public_v4(word(bytes + 2));
    }
    // 2000::/3 is what is assigned; of it not 2001::/23 (tunnels, tests), 2001:db8::/32, 3fff::/20.
    const uint32_t first = word(bytes);
    return first >> 29 == 1 && first >> 9 != 0x20010000 >> 9 && first != 0x20010db8 &&
           first >> 12 != 0x3fff0000 >> 12;
}

bool evq_public_address_is(const struct sockaddr *address)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    switch (address->sa_family) {
    case AF_INET:
        memcpy(&v4, address, sizeof(v4));
        return public_v4(ntohl(v4.sin_addr.s_addr));
    case AF_INET6:
        memcpy(&v6, address, sizeof(v6));
        return public_v6(v6.sin6_addr.s6_addr);
    default:
        return false;
    }
}
