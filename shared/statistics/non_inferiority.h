/*
 * Decides whether a candidate is no worse than a baseline by more than a margin. Any thread.
 */
#ifndef EVQ_SHARED_STATISTICS_NON_INFERIORITY_H
#define EVQ_SHARED_STATISTICS_NON_INFERIORITY_H

#include "shared/statistics/paired.h"

#define EVQ_NON_INFERIORITY_POWER      0.8 // Chance to pass if there is no true difference.
#define EVQ_NON_INFERIORITY_GROUPS_MIN 20  // For t and bootstrap, which need a normal mean.

enum evq_non_inferiority_verdict {
    EVQ_NOT_WORSE,
    EVQ_WORSE,
    EVQ_TOO_FEW_ITEMS,
};

struct evq_non_inferiority {
    enum evq_non_inferiority_verdict verdict;
    bool shown_worse; // With EVQ_WORSE. True: the whole interval is beyond the margin. False:
                      // there were enough items, but it was not shown to be non-inferior.
    double bound;     // One-sided bound of how much better the candidate is, at least. Negative:
                      // it can be that much worse.
    double gain;      // The observed difference, positive if the candidate is better.
    double groups_needed; // Items, or clusters, to pass with EVQ_NON_INFERIORITY_POWER if there is
                          // no true difference.
    struct evq_paired paired; // At the two-sided confidence 2 * confidence - 1.
};

/*
 * The candidate is not worse if the one-sided bound at `confidence` (above 0.5, below 1) is no
 * further below 0 than `margin` (above 0). It is worse if the upper bound is beyond the margin, or
 * if there are groups_needed groups and it is not shown to be not worse. Otherwise there are too
 * few items. options->confidence is not read. Errors: as evq_paired_compare(), and EVQ_E_INVALID
 * for a margin or confidence out of range.
 */
enum evq_status evq_non_inferiority_decide(const struct evq_paired_items *items, double margin,
                                           double confidence,
                                           const struct evq_paired_options *options,
                                           struct evq_non_inferiority *ret,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

#endif
