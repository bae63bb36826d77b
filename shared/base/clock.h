/*
 * Time, jitter and deadlines. Any thread.
 */
#ifndef EVQ_SHARED_BASE_CLOCK_H
#define EVQ_SHARED_BASE_CLOCK_H

#include <stdint.h>

int64_t evq_clock_mono_ms(void); // Monotonic; for deadlines and durations only.
int64_t evq_clock_mono_us(void);
int64_t evq_clock_unix_ms(void); // Wall clock; for what people read.

/* ms left until deadline_ms (monotonic), 0 if passed; clamped to INT32_MAX. */
int evq_clock_left_ms(int64_t deadline_ms);

/* base_ms +- percent %, at least 1, from *state (any non-zero seed; xorshift64*, advanced). */
int64_t evq_clock_jitter_ms(uint64_t *state, int64_t base_ms, uint32_t percent);

/* Next wait of an exponential back-off: doubles from first_ms to max_ms, with 25 % jitter.
 * try_count from 0. */
int64_t evq_clock_backoff_ms(uint64_t *state, uint32_t try_count, int64_t first_ms, int64_t max_ms);

/* 64 bits from getrandom(2); never 0. */
uint64_t evq_clock_random(void);

/* Writes "2026-11-21T00:35:00.123Z" and the NUL. */
#define EVQ_CLOCK_ISO_BYTES 25
void evq_clock_iso(int64_t unix_ms, char out[EVQ_CLOCK_ISO_BYTES]);

#endif
