/*
 * Probabilities and quantiles of the normal distribution and Student's t. Any thread. Arguments
 * that are not numbers give NaN. docs/statistics.md names the sources of the formulas.
 */
#ifndef EVQ_SHARED_STATISTICS_DISTRIBUTION_H
#define EVQ_SHARED_STATISTICS_DISTRIBUTION_H

/* P(Z <= z) of a standard normal Z. */
double evq_normal_below(double z);
/* The z with P(Z <= z) = p. -Infinity for 0, Infinity for 1, NaN outside 0 to 1. */
double evq_normal_quantile(double p);

/* The regularised incomplete beta function I_x(a, b), for a > 0 and b > 0. rest is 1 - x: the
 * caller passes both, because the difference of a rounded x loses digits near 1. */
double evq_beta_incomplete(double a, double b, double x, double rest);

/* P(|T| >= |t|) of Student's t with `freedom` degrees of freedom (above 0). */
double evq_student_outside(double t, double freedom);
/* The t with P(T <= t) = p, for p within 0 to 1. */
double evq_student_quantile(double p, double freedom);

#endif
