/*
 * Compares two sides, the baseline and the candidate, that were scored on the same items. Any
 * thread. Every difference is candidate - baseline. docs/statistics.md defines each number and
 * names its source.
 */
#ifndef EVQ_SHARED_STATISTICS_PAIRED_H
#define EVQ_SHARED_STATISTICS_PAIRED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

enum evq_paired_method {
    EVQ_PAIRED_AUTO, // McNemar if all scores are 0 or 1, bootstrap with weights, otherwise t. With
                     // clusters and without weights: t.
    EVQ_PAIRED_MCNEMAR,   // Exact p-value, Tango's interval.
    EVQ_PAIRED_T,         // Student's t; with clusters, a cluster-robust standard error.
    EVQ_PAIRED_BOOTSTRAP, // BCa over items or clusters.
};

struct evq_paired_items {
    size_t count;
    const double *baseline;
    const double *candidate;
    const double *weights;    // Above 0, such as the tokens of a document. NULL: all are 1.
    const uint32_t *clusters; // The cluster of each item, below cluster_count. NULL: each item is
                              // its own cluster.
    size_t cluster_count;
    bool higher_is_better; // Decides what a win is.
};

struct evq_paired_options {
    enum evq_paired_method method;
    double confidence; // Of the two-sided interval: above 0, below 1.
    uint32_t draws;    // 0: EVQ_BOOTSTRAP_DRAWS.
    uint64_t seed;
};

struct evq_paired {
    enum evq_paired_method method; // The one that was used; never EVQ_PAIRED_AUTO.
    size_t count;                  // Items.
    size_t groups;                 // Clusters that have items; without clusters, items.
    size_t wins;                   // Items where the candidate is better.
    size_t losses;
    size_t ties;
    double baseline; // Weighted means.
    double candidate;
    double difference;
    double standard_error; // Of the difference.
    double low;            // The interval of the difference.
    double high;
    double p; // Two-sided, that there is no difference. NaN: fewer than 2 groups.
};

/*
 * EVQ_E_INVALID: no items, a score that is not finite, a weight that is not above 0, a cluster
 * outside cluster_count, fewer than 2 groups where the method needs them, or McNemar's test for
 * scores other than 0 and 1 or with weights or clusters. EVQ_E_NOMEM.
 */
enum evq_status evq_paired_compare(const struct evq_paired_items *items,
                                   const struct evq_paired_options *options, struct evq_paired *ret,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* "McNemar", "t", "bootstrap". */
const char *evq_paired_method_name(enum evq_paired_method method);

#endif
