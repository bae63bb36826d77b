/*
 * The BCa bootstrap of a weighted mean whose items come in groups. Any thread.
 */
#ifndef EVQ_SHARED_STATISTICS_BOOTSTRAP_H
#define EVQ_SHARED_STATISTICS_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_BOOTSTRAP_DRAWS      10000 // What evalq's programs use.
#define EVQ_BOOTSTRAP_DRAWS_MIN  100
#define EVQ_BOOTSTRAP_DRAWS_MAX  1000000
#define EVQ_BOOTSTRAP_GROUPS_MAX 16777216

/* A group is drawn as a whole: an item, or all items of a document or question group. */
struct evq_bootstrap_group {
    double sum;    // Of weight * value over the group's items.
    double weight; // Sum of the weights. Above 0.
};

struct evq_bootstrap {
    double standard_error; // The standard deviation of the draws.
    double low;
    double high;
    double p;            // Two-sided: 1 - confidence of the interval that has 0 at one of its ends.
    double bias;         // z0 of BCa.
    double acceleration; // a of BCa.
};

/*
 * Draws group_count groups with replacement, `draws` times, and takes the ratio of the summed `sum`
 * to the summed `weight` of each draw. The same seed gives the same numbers on every machine.
 * ret_draws (NULL: not wanted) has room for `draws` numbers and gets them in rising order.
 * EVQ_E_INVALID: fewer than 2 groups, or a weight or sum that is not usable. EVQ_E_LIMIT: more than
 * EVQ_BOOTSTRAP_GROUPS_MAX groups, or draws outside the limits. EVQ_E_NOMEM.
 */
enum evq_status evq_bootstrap_run(const struct evq_bootstrap_group *groups, size_t group_count,
                                  uint32_t draws, uint64_t seed, double confidence,
                                  struct evq_bootstrap *ret, double *ret_draws,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
