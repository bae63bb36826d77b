#include "shared/statistics/distribution.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define STEPS_MAX 200000 // A continued fraction needs about sqrt(max(a, b)) steps.

double evq_normal_below(double z)
{
    return 0.5 * erfc(-z / sqrt(2.0));
}

/* Bisection and Newton's method on an increasing function: below(x, context) = p, with x in low to
 * high. density is the derivative of below. */
static double invert(double (*below)(double, double), double (*density)(double, double),
                     double freedom, double p, double low, double high)
{
    double x = 0.5 * (low + high);

    for (int step = 0; step < 200; step++) {
        const double error = below(x, freedom) - p;
        if (error == 0.0) {
            break;
        }
        if (error > 0.0) {
            high = x;
        } else {
            low = x;
        }
        double next = x - error / density(x, freedom);
        if (!(next > low && next < high)) {
            next = 0.5 * (low + high);
        }
        if (fabs(next - x) <= 2.0 * DBL_EPSILON * fabs(x)) {
            x = next;
            break;
        }
        x = next;
    }
    return x;
}

static double normal_below_of(double z, double unused)
{
    (void)unused;
    return evq_normal_below(z);
}

static double normal_density(double z, double unused)
{
    (void)unused;
    return exp(-0.5 * z * z) / sqrt(2.0 * M_PI);
}

double evq_normal_quantile(double p)
{
    if (!(p >= 0.0 && p <= 1.0)) {
        return NAN;
    }
    if (p == 0.0 || p == 1.0) {
        return p == 0.0 ? -INFINITY : INFINITY;
    }
    // The lower tail keeps its digits; the upper one is its mirror image.
    return p <= 0.5 ? invert(normal_below_of, normal_density, 0.0, p, -40.0, 0.0)
                    : -invert(normal_below_of, normal_density, 0.0, 1.0 - p, -40.0, 0.0);
}

/* What lnGamma(x) adds to Stirling's (x - 1/2) ln x - x + ln(2 pi) / 2, for x >= 10. */
static double stirling_rest(double x)
{
    const double y = 1.0 / (x * x);

    return (1.0 / 12 -
            y * (1.0 / 360 -
                 y * (1.0 / 1260 - y * (1.0 / 1680 - y * (1.0 / 1188 - y * (691.0 / 360360)))))) /
           x;
}

/* ln(1 + y) of y = value / centre - 1, where offset = value - centre is known exactly. */
static double log_ratio(double value, double centre, double offset)
{
    return fabs(offset) < 0.5 * centre ? log1p(offset / centre) : log(value / centre);
}

/* x^a rest^b / B(a, b). Differences of large lnGamma would lose the digits that the result needs,
 * so each case is written with terms that stay small. */
static double beta_prefix(double a, double b, double x, double rest)
{
    if (a >= 10.0 && b >= 10.0) {
        const double mean = a / (a + b);
        const double mean_rest = b / (a + b);
        const double offset = x < rest ? x - mean : mean_rest - rest;
        const double power =
            a * log_ratio(x, mean, offset) + b * log_ratio(rest, mean_rest, -offset);
        return exp(power + stirling_rest(a + b) - stirling_rest(a) - stirling_rest(b)) *
               sqrt(a * mean_rest / (2.0 * M_PI));
    }
    if (a >= 10.0 || b >= 10.0) {
        const double large = a >= 10.0 ? a : b;
        const double small = a >= 10.0 ? b : a;
        const double log_large = a >= 10.0 ? log_ratio(x, 1.0, -rest) : log_ratio(rest, 1.0, -x);
        const double log_small = a >= 10.0 ? log(rest) : log(x);
        const double gammas = (large + small - 0.5) * log1p(small / large) - small +
                              stirling_rest(large + small) - stirling_rest(large);
        return exp(large * log_large + small * (log_small + log(large)) + gammas - lgamma(small));
    }
    return exp(a * log(x) + b * log(rest) + lgamma(a + b) - lgamma(a) - lgamma(b));
}

/* The continued fraction of I_x(a, b), evaluated by the modified Lentz method. */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1.0;
    double d = 1.0 - (a + b) * x / (a + 1.0);
    d = 1.0 / (fabs(d) < tiny ? tiny : d);
    double value = d;

    for (int m = 1; m <= STEPS_MAX; m++) {
        const double even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 + even * d;
        c = 1.0 + even / c;
        d = 1.0 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        value *= d * c;
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 + odd * d;
        c = 1.0 + odd / c;
        d = 1.0 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        value *= d * c;
        if (fabs(d * c - 1.0) <= DBL_EPSILON) {
            break;
        }
    }
    return value;
}

double evq_beta_incomplete(double a, double b, double x, double rest)
{
    if (!(a > 0.0 && b > 0.0 && x >= 0.0 && rest >= 0.0)) {
        return NAN;
    }
    if (x == 0.0 || rest == 0.0) {
        return x == 0.0 ? 0.0 : 1.0;
    }
    // The fraction converges fast on this side of the mean; the other side is the complement.
    const bool below_mean = x <= (a + 1.0) / (a + b + 2.0);
    const double prefix = beta_prefix(a, b, x, rest);

    return below_mean ? prefix * beta_fraction(a, b, x) / a
                      : 1.0 - prefix * beta_fraction(b, a, rest) / b;
}

double evq_student_outside(double t, double freedom)
{
    if (!(freedom > 0.0) || isnan(t)) {
        return NAN;
    }
    if (isinf(t)) {
        return 0.0;
    }
    const double square = t * t;

    return evq_beta_incomplete(0.5 * freedom, 0.5, freedom / (freedom + square),
                               square / (freedom + square));
}

static double student_below(double t, double freedom)
{
    const double tail = 0.5 * evq_student_outside(t, freedom);

    return t < 0.0 ? tail : 1.0 - tail;
}

static double student_density(double t, double freedom)
{
    const double gammas = lgamma(0.5 * (freedom + 1.0)) - lgamma(0.5 * freedom);

    return exp(gammas - 0.5 * (freedom + 1.0) * log1p(t * t / freedom)) / sqrt(freedom * M_PI);
}

double evq_student_quantile(double p, double freedom)
{
    double low = -1.0;

    if (!(p >= 0.0 && p <= 1.0) || !(freedom > 0.0)) {
        return NAN;
    }
    if (p == 0.0 || p == 1.0) {
        return p == 0.0 ? -INFINITY : INFINITY;
    }
    if (p == 0.5) {
        return 0.0;
    }
    const double tail = p < 0.5 ? p : 1.0 - p;
    while (student_below(low, freedom) > tail && low > -DBL_MAX / 4.0) {
        low *= 2.0;
    }
    const double t = invert(student_below, student_density, freedom, tail, low, 0.0);
    return p < 0.5 ? t : -t;
}
