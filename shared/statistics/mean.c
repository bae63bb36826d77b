#include "shared/statistics/mean.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "shared/statistics/paired.h"
#include "shared/statistics/proportion.h"

/* Whether all values are 0 or 1. Counts those that are 1. */
static bool is_binary(const double *values, size_t count, uint64_t *ret_ones)
{
    uint64_t ones = 0;

    for (size_t i = 0; i < count; i++) {
        if (values[i] != 0.0 && values[i] != 1.0) {
            return false;
        }
        ones += values[i] == 1.0;
    }
    *ret_ones = ones;
    return true;
}

enum evq_status evq_mean_interval(const double *values, size_t count, const double *weights,
                                  const uint32_t *clusters, size_t cluster_count, double confidence,
                                  struct evq_mean *ret, struct evq_error *err)
{
    const struct evq_paired_options options = {.method = EVQ_PAIRED_T, .confidence = confidence};
    struct evq_paired paired;
    uint64_t ones = 0;
    double *zeros = calloc(count + 1, sizeof *zeros);

    if (zeros == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the mean of %zu items", count);
    }
    // The mean of the values is the mean difference to zeros.
    const struct evq_paired_items items = {.count = count,
                                           .baseline = zeros,
                                           .candidate = values,
                                           .weights = weights,
                                           .clusters = clusters,
                                           .cluster_count = cluster_count};
    const enum evq_status status = evq_paired_compare(&items, &options, &paired, err);
    free(zeros);
    if (status != EVQ_OK) {
        return status;
    }
    *ret = (struct evq_mean){.mean = paired.difference,
                             .standard_error = paired.standard_error,
                             .low = paired.low,
                             .high = paired.high};
    if (weights == NULL && clusters == NULL && is_binary(values, count, &ones)) {
        evq_proportion_wilson(count, ones, confidence, &ret->low, &ret->high);
    }
    return EVQ_OK;
}
