/*
 * The mean of one side's scores and its confidence interval. Any thread. docs/statistics.md defines
 * the numbers and names the sources.
 */
#ifndef EVQ_SHARED_STATISTICS_MEAN_H
#define EVQ_SHARED_STATISTICS_MEAN_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_mean {
    double mean; // Weighted.
    double standard_error;
    double low; // The interval of the mean.
    double high;
};

/*
 * weights, clusters and cluster_count: as in struct evq_paired_items. The interval is Wilson's if
 * all values are 0 or 1 without weights and clusters, otherwise Student's t. Errors: as
 * evq_paired_compare(); EVQ_E_INVALID also for fewer than 2 groups.
 */
enum evq_status evq_mean_interval(const double *values, size_t count, const double *weights,
                                  const uint32_t *clusters, size_t cluster_count, double confidence,
                                  struct evq_mean *ret, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
