#include "shared/statistics/proportion.h"

#include <math.h>

#include "shared/statistics/distribution.h"

double evq_proportion_mcnemar(uint64_t wins, uint64_t losses)
{
    const double fewer = (double)(wins < losses ? wins : losses);
    const double count = (double)wins + (double)losses;

    if (wins == losses) {
        return 1.0;
    }
    // P(X <= k) of a binomial X with probability 1/2 is I_{1/2}(n - k, k + 1).
    const double p = 2.0 * evq_beta_incomplete(count - fewer, fewer + 1.0, 0.5, 0.5);
    return p < 1.0 ? p : 1.0;
}

/* Tango's score statistic: how many standard errors the observed difference is above delta. */
static double score(double count, double wins, double losses, double delta)
{
    const double b = -wins - losses + (2.0 * count - wins + losses) * delta;
    const double c = -losses * delta * (1.0 - delta);
    const double root = sqrt(fmax(b * b - 8.0 * count * c, 0.0));
    // The likeliest share of losses if the true difference is delta. Both forms are the same
    // number; each avoids a difference of nearly equal terms.
    const double lost = b < 0.0          ? (root - b) / (4.0 * count)
                        : root + b > 0.0 ? -2.0 * c / (root + b)
                                         : 0.0;
    const double variance = count * (2.0 * lost + delta * (1.0 - delta));
    const double above = wins - losses - count * delta;

    if (!(variance > 0.0)) {
        return above > 0.0 ? INFINITY : above < 0.0 ? -INFINITY : 0.0;
    }
    return above / sqrt(variance);
}

/* The delta within low to high at which the falling score passes z. */
static double passes(double count, double wins, double losses, double z, double low, double high)
{
    for (int step = 0; step < 200; step++) {
        const double middle = 0.5 * (low + high);
        if (middle <= low || middle >= high) {
            break;
        }
        if (score(count, wins, losses, middle) > z) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return 0.5 * (low + high);
}

void evq_proportion_interval(uint64_t count, uint64_t wins, uint64_t losses, double confidence,
                             double *ret_low, double *ret_high)
{
    const double n = (double)count;
    const double difference = ((double)wins - (double)losses) / n;
    const double z = evq_normal_quantile(0.5 + 0.5 * confidence);

    *ret_low =
        difference <= -1.0 ? -1.0 : passes(n, (double)wins, (double)losses, z, -1.0, difference);
    *ret_high =
        difference >= 1.0 ? 1.0 : passes(n, (double)wins, (double)losses, -z, difference, 1.0);
}

void evq_proportion_wilson(uint64_t count, uint64_t ones, double confidence, double *ret_low,
                           double *ret_high)
{
    const double n = (double)count;
    const double share = (double)ones / n;
    const double z = evq_normal_quantile(0.5 + 0.5 * confidence);
    const double scale = 1.0 + z * z / n;
    const double middle = (share + z * z / (2.0 * n)) / scale;
    const double reach = z * sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n)) / scale;

    *ret_low = ones == 0 ? 0.0 : middle - reach;
    *ret_high = ones == count ? 1.0 : middle + reach;
}
