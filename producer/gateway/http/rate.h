/*
 * Limits the requests of each client: a bucket per client that fills at a steady rate. One thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_RATE_H
#define EVQ_PRODUCER_GATEWAY_HTTP_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct evq_rate;

/* per_second: requests a second, 0: no limit. burst: requests at once. NULL: memory ran out.
 */
struct evq_rate *evq_rate_new(uint32_t per_second, uint32_t burst);
void evq_rate_free(struct evq_rate *rate); // Accepts NULL.
/* Whether the client may make a request that counts as `cost` requests, a burst at most. If all
 * buckets are in use, the fullest of a few is reused, so that the busiest clients are remembered
 * longest. */
bool evq_rate_take(struct evq_rate *rate, const char *client, uint32_t cost, int64_t now_ms);

#endif
