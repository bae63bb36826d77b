/* The pause between two requests to the queue. Any thread. */
#ifndef EVQ_PRODUCER_CLI_POLL_DELAY_H
#define EVQ_PRODUCER_CLI_POLL_DELAY_H

#include <stdint.h>

/*
 * Sleeps before the next request: 20 ms at first, twice as long each time, 500 ms at most, and
 * never past deadline_ms (monotonic; 0: no deadline). *look counts the requests.
 */
void evq_poll_delay(uint32_t *look, int64_t deadline_ms);

#endif
