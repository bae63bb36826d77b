/*
 * How many requests one client may make: a bucket per name that fills at a steady rate. One thread.
 */
#ifndef EVQ_GATEWAY_RATE_H
#define EVQ_GATEWAY_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct evq_rate;

/* per_second requests a second, burst of them at once; per_second 0: any number. NULL: no memory.
 */
struct evq_rate *evq_rate_new(uint32_t per_second, uint32_t burst);
void evq_rate_free(struct evq_rate *rate); // Accepts NULL.
/* Whether the client may go on; takes cost requests of its bucket then, a burst at most. When all
 * buckets are taken, the fullest of a few makes room: who asks most is remembered longest. */
bool evq_rate_take(struct evq_rate *rate, const char *client, uint32_t cost, int64_t now_ms);

#endif
