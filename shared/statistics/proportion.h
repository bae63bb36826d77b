/*
 * Right and wrong answers, of one side or of two sides to the same items. Any thread. wins: items
 * that only the candidate has right; losses: items that only the baseline has right.
 * docs/statistics.md names the sources.
 */
#ifndef EVQ_SHARED_STATISTICS_PROPORTION_H
#define EVQ_SHARED_STATISTICS_PROPORTION_H

#include <stdint.h>

/* The two-sided p-value of McNemar's exact test. 1 if there are neither wins nor losses. */
double evq_proportion_mcnemar(uint64_t wins, uint64_t losses);

/* Tango's score interval of (wins - losses) / count, two-sided at `confidence` (0.95). count is 1
 * or more, wins + losses at most count. */
void evq_proportion_interval(uint64_t count, uint64_t wins, uint64_t losses, double confidence,
                             double *ret_low, double *ret_high);

/* Wilson's score interval of ones / count, two-sided at `confidence`. count is 1 or more. */
void evq_proportion_wilson(uint64_t count, uint64_t ones, double confidence, double *ret_low,
                           double *ret_high);

#endif
