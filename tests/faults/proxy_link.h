/*
 * One client's connection through the proxy: frames requests and replies, and does to them what the
 * rules say. One thread.
 */
#ifndef EVQ_TESTS_FAULTS_PROXY_LINK_H
#define EVQ_TESTS_FAULTS_PROXY_LINK_H

#include <poll.h>

#include "tests/faults/proxy_history.h"
#include "tests/faults/proxy_rules.h"

struct proxy_site {
    const char *to; // Where Redis is: PORT or /PATH.
    struct proxy_rules *rules;
    struct proxy_history *history; // NULL: none is wanted.
};

int64_t proxy_now_ms(void); // Monotonic.

/* A listening socket at PORT or /PATH, said on standard output; -1, said on standard error. */
int proxy_listen(const char *where);

struct proxy_link;
/* Accepts a client and connects to Redis; NULL: one of the two is not there. */
struct proxy_link *proxy_link_accept(struct proxy_site *site, int listen_fd, uint64_t number);
void proxy_link_free(struct proxy_link *link); // Closes both ends.

/* Fills polls[0] (client) and polls[1] (Redis), and lowers *wait_ms (-1: for ever) to when the link
 * wants its next step. */
void proxy_link_polls(const struct proxy_link *link, struct pollfd polls[2], int64_t now_ms,
                      int64_t *wait_ms);
/* Moves what can be moved. False: it is over. */
bool proxy_link_step(struct proxy_link *link, const struct pollfd polls[2]);

#endif
