/* The pause between two questions to the queue. Any thread. */
#ifndef EVQ_PRODUCER_CLI_PAUSE_H
#define EVQ_PRODUCER_CLI_PAUSE_H

#include <stdint.h>

/*
 * Sleeps before the next question: 20 ms at first, doubled each time up to 500 ms, and never past
 * deadline_ms (monotonic; 0: none). Counts the questions in *look.
 */
void evq_pause(uint32_t *look, int64_t deadline_ms);

#endif
