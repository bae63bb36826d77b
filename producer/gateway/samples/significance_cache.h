/*
 * Keeps numbers that were computed from samples files, so that the curve of a run is not computed
 * again for each new step. It holds the newest EVQ_SIGNIFICANCE_CACHE_ENTRIES. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_SAMPLES_SIGNIFICANCE_CACHE_H
#define EVQ_PRODUCER_GATEWAY_SAMPLES_SIGNIFICANCE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_SIGNIFICANCE_CACHE_ENTRIES 8192

struct evq_significance_cache;

struct evq_significance_numbers {
    int64_t items;
    double value; // The mean of a step, or its difference to another step.
    double standard_error;
    double low;
    double high;
    double p;        // The p-value of a difference.
    char error[256]; // Why there are no numbers; "" if there are.
};

enum evq_status evq_significance_cache_open(struct evq_significance_cache **ret_cache,
                                            struct evq_error *err) EVQ_CHECK_RESULT;
void evq_significance_cache_close(struct evq_significance_cache *cache); // Accepts NULL.

/* The text names the files, their versions and the score. false: nothing is remembered. */
bool evq_significance_cache_get(struct evq_significance_cache *cache, const char *text,
                                struct evq_significance_numbers *ret);
void evq_significance_cache_put(struct evq_significance_cache *cache, const char *text,
                                const struct evq_significance_numbers *numbers);

#endif
