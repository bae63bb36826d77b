#include "shared/statistics/non_inferiority.h"

#include <math.h>

#include "shared/statistics/distribution.h"

/* How many groups it takes to pass with the wanted power if there is no true difference. */
static double needed(const struct evq_paired *paired, double margin, double confidence)
{
    const double z = evq_normal_quantile(confidence);
    const double reach = z + evq_normal_quantile(EVQ_NON_INFERIORITY_POWER);
    // The standard deviation of one group's difference, from the error of the mean.
    double deviation = paired->standard_error * sqrt((double)paired->groups);
    double least = EVQ_NON_INFERIORITY_GROUPS_MIN;

    if (paired->method == EVQ_PAIRED_MCNEMAR) {
        // Half an item more in each of the four cells: no deviation is 0 by chance.
        const double n = (double)paired->count + 2.0;
        const double wins = (double)paired->wins + 0.5;
        const double losses = (double)paired->losses + 0.5;
        deviation = sqrt((wins + losses) / n - (wins - losses) * (wins - losses) / (n * n));
        // Without wins and losses, Tango's bound is -z^2 / (n + z^2).
        least = z * z * (1.0 - fmin(margin, 1.0)) / margin;
    }
    const double groups = (reach * deviation / margin) * (reach * deviation / margin);
    return ceil(fmax(fmax(groups, least), 1.0));
}

enum evq_status evq_non_inferiority_decide(const struct evq_paired_items *items, double margin,
                                           double confidence,
                                           const struct evq_paired_options *options,
                                           struct evq_non_inferiority *ret, struct evq_error *err)
{
    struct evq_non_inferiority out = {.verdict = EVQ_TOO_FEW_ITEMS};
    struct evq_paired_options two_sided = *options;

    if (!(margin > 0.0) || !isfinite(margin)) {
        return evq_error_set(err, EVQ_E_INVALID, "the margin is %g, expected a number above 0",
                             margin);
    }
    if (!(confidence > 0.5 && confidence < 1.0)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the confidence is %g, expected a number between 0.5 and 1",
                             confidence);
    }
    two_sided.confidence = 2.0 * confidence - 1.0;
    const enum evq_status status = evq_paired_compare(items, &two_sided, &out.paired, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_paired *paired = &out.paired;
    const bool up = items->higher_is_better;
    const double most = up ? paired->high : -paired->low;
    out.bound = up ? paired->low : -paired->high;
    out.gain = up ? paired->difference : -paired->difference;
    out.groups_needed = needed(paired, margin, confidence);
    const bool enough =
        paired->method == EVQ_PAIRED_MCNEMAR || paired->groups >= EVQ_NON_INFERIORITY_GROUPS_MIN;
    if (enough && out.bound >= -margin) {
        out.verdict = EVQ_NOT_WORSE;
    } else if (enough && most < -margin) {
        out.verdict = EVQ_WORSE;
        out.shown_worse = true;
    } else if ((double)paired->groups >= out.groups_needed) {
        out.verdict = EVQ_WORSE;
    }
    *ret = out;
    return EVQ_OK;
}
