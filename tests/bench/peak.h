/*
 * What this processor can multiply and add at most, by a loop that stays in its registers.
 */
#ifndef EVQ_TESTS_BENCH_PEAK_H
#define EVQ_TESTS_BENCH_PEAK_H

#include <stdbool.h>

/* GFLOP/s of `threads` threads together over about 5 ms, of the wall clock or of the time that the
 * processor gave them; bf16 is 0 where the processor has none. */
double peak_measure(int threads, bool bf16, bool processor_time);

#endif
