#include "shared/statistics/paired.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "shared/statistics/bootstrap.h"
#include "shared/statistics/distribution.h"
#include "shared/statistics/proportion.h"

static double weight_of(const struct evq_paired_items *items, size_t at)
{
    return items->weights != NULL ? items->weights[at] : 1.0;
}

static enum evq_status check(const struct evq_paired_items *items,
                             const struct evq_paired_options *options, struct evq_error *err)
{
    if (items->count == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "there are no items to compare");
    }
    if (!(options->confidence > 0.0 && options->confidence < 1.0)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the confidence is %g, expected a number between 0 and 1",
                             options->confidence);
    }
    for (size_t i = 0; i < items->count; i++) {
        if (!isfinite(items->baseline[i]) || !isfinite(items->candidate[i])) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "the scores of item %zu are %g and %g, expected finite numbers", i,
                                 items->baseline[i], items->candidate[i]);
        }
        if (!(weight_of(items, i) > 0.0) || !isfinite(weight_of(items, i))) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "the weight of item %zu is %g, expected a number above 0", i,
                                 weight_of(items, i));
        }
        if (items->clusters != NULL && items->clusters[i] >= items->cluster_count) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "the cluster of item %zu is %" PRIu32 ", expected one below %zu",
                                 i, items->clusters[i], items->cluster_count);
        }
    }
    return EVQ_OK;
}

static bool is_binary(const struct evq_paired_items *items)
{
    if (items->weights != NULL || items->clusters != NULL) {
        return false;
    }
    for (size_t i = 0; i < items->count; i++) {
        if ((items->baseline[i] != 0.0 && items->baseline[i] != 1.0) ||
            (items->candidate[i] != 0.0 && items->candidate[i] != 1.0)) {
            return false;
        }
    }
    return true;
}

/* Counts and weighted means. */
static void describe(const struct evq_paired_items *items, struct evq_paired *to)
{
    double weights = 0.0;
    double baseline = 0.0;
    double candidate = 0.0;
    double difference = 0.0;

    to->count = items->count;
    for (size_t i = 0; i < items->count; i++) {
        const double weight = weight_of(items, i);
        const double off = items->candidate[i] - items->baseline[i];
        weights += weight;
        baseline += weight * items->baseline[i];
        candidate += weight * items->candidate[i];
        difference += weight * off;
        if (off == 0.0) {
            to->ties++;
        } else if ((off > 0.0) == items->higher_is_better) {
            to->wins++;
        } else {
            to->losses++;
        }
    }
    to->baseline = baseline / weights;
    to->candidate = candidate / weights;
    to->difference = difference / weights;
}

/* The sums of weight * difference and of the weights of each cluster, without empty clusters. The
 * caller frees them. */
static struct evq_bootstrap_group *group(const struct evq_paired_items *items, size_t *ret_count)
{
    const size_t room = items->clusters != NULL ? items->cluster_count : items->count;
    struct evq_bootstrap_group *groups = calloc(room, sizeof *groups);
    size_t count = 0;

    for (size_t i = 0; groups != NULL && i < items->count; i++) {
        struct evq_bootstrap_group *to = &groups[items->clusters != NULL ? items->clusters[i] : i];
        to->sum += weight_of(items, i) * (items->candidate[i] - items->baseline[i]);
        to->weight += weight_of(items, i);
    }
    for (size_t i = 0; groups != NULL && i < room; i++) {
        if (groups[i].weight > 0.0) {
            groups[count++] = groups[i];
        }
    }
    *ret_count = count;
    return groups;
}

/* The linearised, cluster-robust standard error of the weighted mean. Without clusters and weights
 * it is the standard deviation of the differences divided by the root of their number. */
static double robust_error(const struct evq_bootstrap_group *groups, size_t count, double mean)
{
    double squares = 0.0;
    double weight = 0.0;

    for (size_t i = 0; i < count; i++) {
        const double off = groups[i].sum - mean * groups[i].weight;
        squares += off * off;
        weight += groups[i].weight;
    }
    return sqrt(squares * (double)count / ((double)count - 1.0)) / weight;
}

static void finish_mcnemar(const struct evq_paired_items *items, double confidence,
                           struct evq_paired *to)
{
    const bool up = items->higher_is_better;
    const uint64_t up_count = up ? to->wins : to->losses; // Items whose score grew from 0 to 1.
    const uint64_t down_count = up ? to->losses : to->wins;

    to->p = evq_proportion_mcnemar(up_count, down_count);
    evq_proportion_interval(to->count, up_count, down_count, confidence, &to->low, &to->high);
}

static void finish_t(double confidence, struct evq_paired *to)
{
    const double freedom = (double)to->groups - 1.0;
    const double reach =
        to->standard_error > 0.0
            ? to->standard_error * evq_student_quantile(0.5 + 0.5 * confidence, freedom)
            : 0.0;

    to->low = to->difference - reach;
    to->high = to->difference + reach;
    if (to->standard_error > 0.0) {
        to->p = evq_student_outside(to->difference / to->standard_error, freedom);
    } else {
        to->p = to->difference == 0.0 ? 1.0 : 0.0;
    }
}

static enum evq_status finish_bootstrap(const struct evq_bootstrap_group *groups,
                                        const struct evq_paired_options *options,
                                        struct evq_paired *to, struct evq_error *err)
{
    struct evq_bootstrap drawn;
    const enum evq_status status = evq_bootstrap_run(
        groups, to->groups, options->draws > 0 ? options->draws : EVQ_BOOTSTRAP_DRAWS,
        options->seed, options->confidence, &drawn, NULL, err);

    if (status == EVQ_OK) {
        to->low = drawn.low;
        to->high = drawn.high;
        to->p = drawn.p;
        to->standard_error = drawn.standard_error;
    }
    return status;
}

static enum evq_status choose(const struct evq_paired_items *items, enum evq_paired_method asked,
                              enum evq_paired_method *ret, struct evq_error *err)
{
    const bool binary = is_binary(items);

    if (asked == EVQ_PAIRED_MCNEMAR && !binary) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "McNemar's test compares scores of 0 and 1 without weights and "
                             "clusters, and these are others");
    }
    *ret = asked != EVQ_PAIRED_AUTO ? asked
           : binary                 ? EVQ_PAIRED_MCNEMAR
           : items->weights != NULL ? EVQ_PAIRED_BOOTSTRAP
                                    : EVQ_PAIRED_T;
    return EVQ_OK;
}

enum evq_status evq_paired_compare(const struct evq_paired_items *items,
                                   const struct evq_paired_options *options, struct evq_paired *ret,
                                   struct evq_error *err)
{
    struct evq_paired out = {.p = NAN, .standard_error = NAN, .low = NAN, .high = NAN};
    struct evq_bootstrap_group *groups = NULL;
    enum evq_status status = check(items, options, err);

    if (status == EVQ_OK) {
        status = choose(items, options->method, &out.method, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    groups = group(items, &out.groups);
    if (groups == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to compare %zu items", items->count);
    }
    describe(items, &out);
    if (out.groups >= 2) {
        out.standard_error = robust_error(groups, out.groups, out.difference);
    }
    if (out.method == EVQ_PAIRED_MCNEMAR) {
        finish_mcnemar(items, options->confidence, &out);
    } else if (out.groups < 2) {
        status =
            evq_error_set(err, EVQ_E_INVALID,
                          "%zu items in one group, expected 2 or more groups of items", out.count);
    } else if (out.method == EVQ_PAIRED_T) {
        finish_t(options->confidence, &out);
    } else {
        status = finish_bootstrap(groups, options, &out, err);
    }
    if (status == EVQ_OK) {
        *ret = out;
    }
    free(groups);
    return status;
}

const char *evq_paired_method_name(enum evq_paired_method method)
{
    static const char *const names[] = {"auto", "McNemar", "t", "bootstrap"};

    return names[method];
}
