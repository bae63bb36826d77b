#include "shared/base/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_us(clockid_t id)
{
    struct timespec now = {0};
    (void)clock_gettime(id, &now); // Cannot fail for these two clocks.
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t evq_clock_mono_ms(void)
{
    return clock_us(CLOCK_MONOTONIC) / 1000;
}

int64_t evq_clock_mono_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

int64_t evq_clock_unix_ms(void)
{
    return clock_us(CLOCK_REALTIME) / 1000;
}

int evq_clock_left_ms(int64_t deadline_ms)
{
    int64_t now = evq_clock_mono_ms();
    if (deadline_ms <= now) {
        return 0;
    }
    if (now < 0 || deadline_ms - now > INT32_MAX) {
        return INT32_MAX;
    }
    return (int)(deadline_ms - now);
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state != 0 ? *state : UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

int64_t evq_clock_jitter_ms(uint64_t *state, int64_t base_ms, uint32_t percent)
{
    if (base_ms < 1) {
        base_ms = 1;
    }
    if (percent > 100) {
        percent = 100;
    }
    // Divides first if the product would overflow.
    int64_t reach = base_ms > INT64_MAX / 256 ? base_ms / 100 * percent : base_ms * percent / 100;
    uint64_t random = random_next(state);
    if (reach <= 0) {
        return base_ms;
    }
    int64_t offset = (int64_t)(random % (2 * (uint64_t)reach + 1)) - reach;
    if (offset > 0 && base_ms > INT64_MAX - offset) {
        return INT64_MAX;
    }
    return base_ms + offset < 1 ? 1 : base_ms + offset;
}

int64_t evq_clock_backoff_ms(uint64_t *state, uint32_t try_count, int64_t first_ms, int64_t max_ms)
{
    int64_t wait = first_ms < 1 ? 1 : first_ms;
    for (uint32_t i = 0; i < try_count && wait < max_ms; i++) {
        wait = wait > INT64_MAX / 2 ? max_ms : wait * 2;
    }
    return evq_clock_jitter_ms(state, wait < max_ms ? wait : max_ms, 25);
}

uint64_t evq_clock_random(void)
{
    uint64_t value = 0;
    ssize_t got;
    do {
        got = getrandom(&value, sizeof value, 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof value) {
        // If getrandom(2) is missing or forbidden, the value is unique enough, though not secret.
        uint64_t mix = (uint64_t)clock_us(CLOCK_REALTIME) ^ ((uint64_t)getpid() << 32) ^
                       (uint64_t)(uintptr_t)&value;
        value = random_next(&mix);
    }
    return value != 0 ? value : 1;
}

/* Writes count digits of value and the character `behind`. Every result has a time, and strftime()
 * would cost more than the rest of the record. */
static char *digits_put(char *out, size_t count, unsigned value, char behind)
{
    for (size_t at = count; at > 0; at--) {
        out[at - 1] = (char)('0' + value % 10);
        value /= 10;
    }
    out[count] = behind;
    return out + count + 1;
}

void evq_clock_iso(int64_t unix_ms, char out[EVQ_CLOCK_ISO_BYTES])
{
    const int64_t year_10000_ms = INT64_C(253402300800000);
    if (unix_ms < 0) {
        unix_ms = 0;
    }
    if (unix_ms >= year_10000_ms) {
        unix_ms = year_10000_ms - 1;
    }
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm parts;
    memset(&parts, 0, sizeof parts);
    (void)gmtime_r(&seconds, &parts); // Cannot fail within the years clamped to above.
    out = digits_put(out, 4, (unsigned)parts.tm_year + 1900, '-');
    out = digits_put(out, 2, (unsigned)parts.tm_mon + 1, '-');
    out = digits_put(out, 2, (unsigned)parts.tm_mday, 'T');
    out = digits_put(out, 2, (unsigned)parts.tm_hour, ':');
    out = digits_put(out, 2, (unsigned)parts.tm_min, ':');
    out = digits_put(out, 2, (unsigned)parts.tm_sec, '.');
    out = digits_put(out, 3, (unsigned)(unix_ms % 1000), 'Z');
    *out = '\0';
}
