#include "producer/cli/poll_delay.h"

#include <unistd.h>

#include "shared/base/clock.h"

void evq_poll_delay(uint32_t *look, int64_t deadline_ms)
{
    int64_t pause_ms = 20 << (*look < 5 ? *look : 5);
    pause_ms = pause_ms > 500 ? 500 : pause_ms;
    (*look)++;
    if (deadline_ms > 0) {
        int left = evq_clock_left_ms(deadline_ms);
        pause_ms = pause_ms > left ? left : pause_ms;
    }
    (void)usleep((useconds_t)pause_ms * 1000);
}
