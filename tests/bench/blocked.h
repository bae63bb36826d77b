/*
 * Many workers' connections that block on a class's wake marker, as idle workers do, all in one
 * thread: raw sockets with a non-blocking reader each, since ten thousand of shared/redis/conn.h
 * would be ten thousand threads.
 */
#ifndef EVQ_TESTS_BENCH_BLOCKED_H
#define EVQ_TESTS_BENCH_BLOCKED_H

#include <stdbool.h>
#include <stdint.h>

struct blocked;

/* count connections to the unix socket, each blocked on the class's marker of the queue main when
 * this returns. Ends the program, with a sentence, where the system does not let it. */
struct blocked *blocked_open(const char *socket_path, int count, uint32_t class_number);
void blocked_close(struct blocked *blocked); // Accepts NULL.

struct blocked_claim {
    char id[256];
    char token[64];
    int64_t claimed_ns; // CLOCK_MONOTONIC, when the claim's reply was read.
};
/*
 * Lets woken workers claim, one job each, and block again, until `jobs` were claimed or the time
 * has passed. Returns how many were; *ret_empty counts the claims that found nothing.
 */
int blocked_claim(struct blocked *blocked, struct blocked_claim *claims, int jobs,
                  int64_t timeout_ms, int *ret_empty);

#endif
