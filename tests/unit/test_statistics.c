/* Stored values of the statistics, what they refuse, and a simulation of their intervals. The
 * stored values are printed by scipy 1.17 and statsmodels 0.15; tests/peers/test_statistics.py
 * compares 1,000 random cases of each method with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "shared/statistics/bootstrap.h"
#include "shared/statistics/distribution.h"
#include "shared/statistics/holm.h"
#include "shared/statistics/mean.h"
#include "shared/statistics/non_inferiority.h"
#include "shared/statistics/paired.h"
#include "shared/statistics/proportion.h"

#define ITEMS_MAX 400

static void assert_near(double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance * fmax(1e-12, fabs(wanted)))) {
        fail_msg("%.17g, expected %.17g", value, wanted);
    }
}

static void statistics_distributions_equal_stored_values(void **state)
{
    (void)state;
    assert_near(evq_normal_below(-1.5), 0.06680720126885807, 1e-13);
    assert_near(evq_normal_quantile(0.975), 1.959963984540054, 1e-13);
    assert_near(evq_normal_quantile(1e-12), -7.034483825301132, 1e-13);
    assert_near(evq_student_outside(2.5, 9), 0.033861827682985735, 1e-12);
    assert_near(evq_student_outside(2.5, 999999), 0.012419489502322098, 1e-10);
    assert_near(evq_student_quantile(0.975, 1), 12.706204736174705, 1e-12);
    assert_near(evq_student_quantile(0.975, 9), 2.262157162798205, 1e-12);
    assert_near(evq_beta_incomplete(2, 3, 0.25, 0.75), 0.26171875, 1e-13);
    assert_true(isnan(evq_normal_quantile(1.5)));
    assert_true(isnan(evq_student_outside(NAN, 3)));
    assert_true(isinf(evq_normal_quantile(1.0)));
}

static void statistics_mcnemar_is_exact(void **state)
{
    double low = 0;
    double high = 0;

    (void)state;
    assert_near(evq_proportion_mcnemar(0, 0), 1.0, 0);
    assert_near(evq_proportion_mcnemar(5, 5), 1.0, 0);
    assert_near(evq_proportion_mcnemar(0, 6), 0.03125, 1e-13); // 2 / 2^6.
    assert_near(evq_proportion_mcnemar(3, 12), 0.03515625, 1e-13);
    assert_near(evq_proportion_mcnemar(12, 3), 0.03515625, 1e-13);
    // Without wins and losses, Tango's interval ends at z^2 / (n + z^2).
    evq_proportion_interval(100, 0, 0, 0.95, &low, &high);
    assert_near(low, -3.8414588206941254 / 103.8414588206941254, 1e-10);
    assert_near(high, 3.8414588206941254 / 103.8414588206941254, 1e-10);
}

static void statistics_mean_has_the_interval_of_its_values(void **state)
{
    static const double right[] = {1, 0, 1, 0, 0, 1, 0, 0, 0, 0};
    static const double real[] = {0.2, 1.5, 0.7, 2.2, 1.1, 0.4, 1.9, 0.8};
    static const uint32_t alone[] = {0, 0, 0, 0, 0, 0, 0, 0};
    struct evq_mean mean;
    struct evq_error err = {.message = ""};
    double low = 0;
    double high = 0;

    (void)state;
    assert_int_equal(evq_mean_interval(right, 10, NULL, NULL, 0, 0.95, &mean, NULL), EVQ_OK);
    assert_near(mean.mean, 0.3, 1e-13);
    assert_near(mean.low, 0.10779126740630103, 1e-12); // Wilson.
    assert_near(mean.high, 0.6032218525388546, 1e-12);
    evq_proportion_wilson(10, 0, 0.95, &low, &high);
    assert_true(low == 0.0);
    assert_near(high, 0.2775327998628892, 1e-12);
    evq_proportion_wilson(10, 10, 0.95, &low, &high);
    assert_near(low, 1 - 0.2775327998628892, 1e-12);
    assert_true(high == 1.0);
    assert_int_equal(evq_mean_interval(real, 8, NULL, NULL, 0, 0.95, &mean, NULL), EVQ_OK);
    assert_near(mean.mean, 1.1, 1e-13);
    const double reach = mean.standard_error * evq_student_quantile(0.975, 7);
    assert_near(mean.low, 1.1 - reach, 1e-12);
    assert_near(mean.high, 1.1 + reach, 1e-12);
    assert_int_equal(evq_mean_interval(real, 8, NULL, alone, 1, 0.95, &mean, &err), EVQ_E_INVALID);
    assert_int_equal(evq_mean_interval(real, 0, NULL, NULL, 0, 0.95, &mean, &err), EVQ_E_INVALID);
}

static const double before[] = {0.2, 1.5, 0.7, 2.2, 1.1, 0.4, 1.9, 0.8};
static const double after[] = {0.5, 1.4, 1.1, 2.9, 1.6, 0.3, 2.4, 1.5};

static struct evq_paired compare(const struct evq_paired_items *items,
                                 enum evq_paired_method method)
{
    struct evq_paired out;
    struct evq_error err = {.message = ""};
    const struct evq_paired_options options = {.method = method, .confidence = 0.95, .seed = 1};

    if (evq_paired_compare(items, &options, &out, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    return out;
}

static void statistics_t_equals_stored_values(void **state)
{
    const uint32_t clusters[] = {0, 0, 1, 1, 2, 2, 3, 3};
    struct evq_paired_items items = {
        .count = 8, .baseline = before, .candidate = after, .higher_is_better = true};

    (void)state;
    struct evq_paired out = compare(&items, EVQ_PAIRED_AUTO);
    assert_int_equal(out.method, EVQ_PAIRED_T);
    assert_int_equal(out.groups, 8);
    assert_int_equal(out.wins, 6);
    assert_int_equal(out.losses, 2);
    assert_near(out.difference, 0.3625, 1e-12);
    assert_near(out.standard_error, 0.11170352980738149, 1e-11);
    assert_near(out.p, 0.014150944451390155, 1e-10);
    assert_near(out.low, 0.09836312442894818, 1e-10);
    assert_near(out.high, 0.6266368755710516, 1e-10);

    items.clusters = clusters;
    items.cluster_count = 4;
    out = compare(&items, EVQ_PAIRED_AUTO);
    assert_int_equal(out.groups, 4);
    assert_near(out.standard_error, 0.12479149276559946, 1e-11);
    assert_near(out.p, 0.06225660946628832, 1e-10);
}

static void statistics_wins_follow_the_direction(void **state)
{
    const double zero_one[] = {0, 1, 1, 0, 1};
    const double other[] = {1, 1, 1, 1, 0};
    struct evq_paired_items items = {.count = 5, .baseline = zero_one, .candidate = other};

    (void)state;
    struct evq_paired lower = compare(&items, EVQ_PAIRED_AUTO);
    assert_int_equal(lower.method, EVQ_PAIRED_MCNEMAR);
    assert_int_equal(lower.wins, 1);
    assert_int_equal(lower.losses, 2);
    assert_int_equal(lower.ties, 2);
    items.higher_is_better = true;
    const struct evq_paired higher = compare(&items, EVQ_PAIRED_AUTO);
    assert_int_equal(higher.wins, 2);
    // The interval is that of candidate - baseline, whatever is better.
    assert_near(higher.low, lower.low, 0);
    assert_near(higher.high, lower.high, 0);
    assert_true(higher.low < higher.difference && higher.difference < higher.high);
}

static void statistics_bootstrap_repeats_with_its_seed(void **state)
{
    double weights[8];
    struct evq_paired_items items = {
        .count = 8, .baseline = before, .candidate = after, .weights = weights};

    (void)state;
    for (size_t i = 0; i < 8; i++) {
        weights[i] = 1.0 + (double)i;
    }
    const struct evq_paired out = compare(&items, EVQ_PAIRED_AUTO);
    const struct evq_paired again = compare(&items, EVQ_PAIRED_AUTO);
    assert_int_equal(out.method, EVQ_PAIRED_BOOTSTRAP);
    assert_near(out.low, again.low, 0);
    assert_near(out.high, again.high, 0);
    assert_near(out.p, again.p, 0);
    assert_true(out.low < out.difference && out.difference < out.high);
    // One group that decides everything would have no spread without its weight.
    assert_true(out.p < 0.05 && out.low > 0.0);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The draws are shared among threads. They must be those of one loop, on every machine. */
static void statistics_bootstrap_draws_do_not_depend_on_threads(void **state)
{
    enum { GROUPS = 1001, DRAWS = 3000 };
    struct evq_bootstrap_group groups[GROUPS];
    struct evq_bootstrap out;
    double drawn[DRAWS];
    double expected[DRAWS];
    uint64_t random = 5;

    (void)state;
    for (size_t i = 0; i < GROUPS; i++) {
        // Whole numbers, so that the order of a sum does not matter.
        groups[i] = (struct evq_bootstrap_group){(double)(i * 37 % 101), 1.0 + (double)(i % 3)};
    }
    for (size_t i = 0; i < DRAWS; i++) {
        double sum = 0.0;
        double weight = 0.0;
        uint64_t z = 0;
        for (size_t k = 0; k < GROUPS; k++) { // A random number gives two indices.
            if (k % 2 == 0) {
                random += UINT64_C(0x9e3779b97f4a7c15);
                z = (random ^ (random >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
                z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
                z ^= z >> 31;
            }
            const size_t at = (size_t)((k % 2 == 0 ? z >> 32 : z & UINT32_MAX) * GROUPS >> 32);
            sum += groups[at].sum;
            weight += groups[at].weight;
        }
        expected[i] = sum / weight;
    }
    qsort(expected, DRAWS, sizeof *expected, by_value);
    assert_int_equal(evq_bootstrap_run(groups, GROUPS, DRAWS, 5, 0.95, &out, drawn, NULL), EVQ_OK);
    for (size_t i = 0; i < DRAWS; i++) {
        assert_near(drawn[i], expected[i], 0);
    }
}

static void statistics_bootstrap_takes_weights_of_1_as_it_takes_others(void **state)
{
    struct evq_bootstrap_group ones[101];
    struct evq_bootstrap_group twos[101];
    struct evq_bootstrap out;
    double of_ones[500];
    double of_twos[500];

    (void)state;
    for (size_t i = 0; i < 101; i++) {
        ones[i] = (struct evq_bootstrap_group){sin((double)i * 1.7) + 0.2, 1.0};
        twos[i] = (struct evq_bootstrap_group){2.0 * ones[i].sum, 2.0}; // The same, exactly.
    }
    assert_int_equal(evq_bootstrap_run(ones, 101, 500, 5, 0.95, &out, of_ones, NULL), EVQ_OK);
    assert_int_equal(evq_bootstrap_run(twos, 101, 500, 5, 0.95, &out, of_twos, NULL), EVQ_OK);
    for (size_t i = 0; i < 500; i++) {
        assert_near(of_ones[i], of_twos[i], 0);
    }
}

static void statistics_p_of_the_bootstrap_ends_its_interval(void **state)
{
    struct evq_bootstrap_group groups[60];
    struct evq_bootstrap out;

    (void)state;
    for (size_t i = 0; i < 60; i++) {
        groups[i] = (struct evq_bootstrap_group){sin((double)i * 1.7) + 0.2, 1.0};
    }
    assert_int_equal(evq_bootstrap_run(groups, 60, 20000, 5, 0.95, &out, NULL, NULL), EVQ_OK);
    assert_true(out.p > 0.01 && out.p < 0.5);
    const double p = out.p;
    assert_int_equal(evq_bootstrap_run(groups, 60, 20000, 5, 1.0 - p, &out, NULL, NULL), EVQ_OK);
    assert_true(fabs(out.low) < 0.002); // 20,000 draws are 0.0001 apart near 0.
}

static void statistics_holm_equals_stored_values(void **state)
{
    double p[] = {0.01, NAN, 0.04, 0.03, 0.005};

    (void)state;
    assert_int_equal(evq_holm_correct(p, 5, NULL), EVQ_OK);
    assert_near(p[0], 0.03, 1e-14);
    assert_true(isnan(p[1]));
    assert_near(p[2], 0.06, 1e-14);
    assert_near(p[3], 0.06, 1e-14);
    assert_near(p[4], 0.02, 1e-14);
}

static void assert_refused(const struct evq_paired_items *items, double confidence,
                           enum evq_paired_method method, const char *said)
{
    const struct evq_paired_options options = {.method = method, .confidence = confidence};
    struct evq_paired out;
    struct evq_error err;

    assert_int_equal(evq_paired_compare(items, &options, &out, &err), EVQ_E_INVALID);
    assert_string_equal(err.message, said);
}

static void statistics_refuse_what_has_no_answer(void **state)
{
    const double nan_scores[] = {0.5, NAN};
    const double zero_weights[] = {1.0, 0.0};
    const uint32_t clusters[] = {0, 7};
    struct evq_paired_items items = {.baseline = before, .candidate = after};

    (void)state;
    assert_refused(&items, 0.95, EVQ_PAIRED_AUTO, "there are no items to compare");
    items.count = 2;
    assert_refused(&items, 1.0, EVQ_PAIRED_AUTO,
                   "the confidence is 1, expected a number between 0 and 1");
    assert_refused(&items, 0.95, EVQ_PAIRED_MCNEMAR,
                   "McNemar's test compares scores of 0 and 1 without weights and clusters, and "
                   "these are others");
    items.weights = zero_weights;
    assert_refused(&items, 0.95, EVQ_PAIRED_AUTO,
                   "the weight of item 1 is 0, expected a number above 0");
    items.weights = NULL;
    items.clusters = clusters;
    items.cluster_count = 2;
    assert_refused(&items, 0.95, EVQ_PAIRED_AUTO,
                   "the cluster of item 1 is 7, expected one below 2");
    items.clusters = NULL;
    items.candidate = nan_scores;
    assert_refused(&items, 0.95, EVQ_PAIRED_AUTO,
                   "the scores of item 1 are 1.5 and nan, expected finite numbers");
    items.candidate = after;
    items.count = 1;
    assert_refused(&items, 0.95, EVQ_PAIRED_T,
                   "1 items in one group, expected 2 or more groups of items");
}

/* A side that has `wins` more right and `losses` more wrong than the baseline, of count items. */
static struct evq_non_inferiority decide(size_t count, size_t wins, size_t losses, double margin)
{
    static double baseline[20000];
    static double candidate[20000];
    struct evq_non_inferiority out;
    const struct evq_paired_options options = {.seed = 1};

    for (size_t i = 0; i < count; i++) {
        baseline[i] = i < wins ? 0.0 : 1.0;
        candidate[i] = i >= wins && i < wins + losses ? 0.0 : 1.0;
    }
    const struct evq_paired_items items = {
        .count = count, .baseline = baseline, .candidate = candidate, .higher_is_better = true};
    assert_int_equal(evq_non_inferiority_decide(&items, margin, 0.95, &options, &out, NULL),
                     EVQ_OK);
    return out;
}

static void statistics_gate_decides_by_the_bound(void **state)
{
    (void)state;
    assert_int_equal(decide(10000, 100, 100, 0.01).verdict, EVQ_NOT_WORSE);
    assert_int_equal(decide(20, 0, 0, 0.01).verdict, EVQ_TOO_FEW_ITEMS);
    assert_int_equal(decide(300, 0, 0, 0.01).verdict, EVQ_NOT_WORSE);
    struct evq_non_inferiority out = decide(1000, 0, 100, 0.01);
    assert_int_equal(out.verdict, EVQ_WORSE);
    assert_true(out.shown_worse);
    assert_near(out.gain, -0.1, 1e-12);
    // A drop of 0.9 points of 20,000 items: enough items, and the bound is beyond the margin.
    out = decide(20000, 100, 280, 0.01);
    assert_int_equal(out.verdict, EVQ_WORSE);
    assert_false(out.shown_worse);
    assert_true(out.groups_needed <= 20000);
    // What it says is needed is enough, and a tenth of it is not.
    out = decide(1000, 50, 50, 0.01);
    assert_int_equal(out.verdict, EVQ_TOO_FEW_ITEMS);
    const size_t needed = (size_t)out.groups_needed;
    assert_int_equal(decide(needed, needed / 20, needed / 20, 0.01).verdict, EVQ_NOT_WORSE);
}

/* The mean of few real values is not nearly normal, so it shows nothing, even if all are worse. */
static void statistics_gate_needs_twenty_items_for_real_values(void **state)
{
    double baseline[40];
    double candidate[40];
    struct evq_paired_items items = {
        .baseline = baseline, .candidate = candidate, .higher_is_better = true};
    const struct evq_paired_options options = {.seed = 1};
    struct evq_non_inferiority out;

    (void)state;
    for (size_t i = 0; i < 40; i++) {
        baseline[i] = 0.9;
        candidate[i] = 0.2 + 0.01 * (double)(i % 3);
    }
    for (items.count = 8; items.count <= 40; items.count += 32) {
        assert_int_equal(evq_non_inferiority_decide(&items, 0.01, 0.95, &options, &out, NULL),
                         EVQ_OK);
        assert_int_equal(out.verdict, items.count == 8 ? EVQ_TOO_FEW_ITEMS : EVQ_WORSE);
    }
    assert_true(out.shown_worse);
}

/* Numbers of the simulation: uniform from a 64-bit generator, normal by summing twelve. */
static uint64_t simulation_state;

static double uniform(void)
{
    simulation_state = simulation_state * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return (double)(simulation_state >> 11) / 9007199254740992.0;
}

static double normal(void)
{
    double sum = -6.0;

    for (int i = 0; i < 12; i++) {
        sum += uniform();
    }
    return sum;
}

struct simulation {
    const char *name;
    enum evq_paired_method method;
    size_t count;
    size_t clusters;
    bool weights;
    bool skewed;
    double truth;
};

static void fill(const struct simulation *one, double *baseline, double *candidate, double *weights,
                 uint32_t *clusters)
{
    double effects[ITEMS_MAX];

    for (size_t i = 0; i < one->clusters; i++) {
        effects[i] = 0.7 * normal();
    }
    for (size_t i = 0; i < one->count; i++) {
        weights[i] = 1.0 + floor(20.0 * uniform());
        clusters[i] = one->clusters > 0 ? (uint32_t)(i % one->clusters) : 0;
        if (one->method == EVQ_PAIRED_MCNEMAR) {
            const double u = uniform();
            baseline[i] = u < 0.6 ? 1.0 : 0.0; // Wins: 12 %; losses: 7 %.
            candidate[i] = u < 0.53 || (u >= 0.6 && u < 0.72) ? 1.0 : 0.0;
            continue;
        }
        const double noise = one->skewed ? -log(1.0 - uniform()) - 1.0 : normal();
        baseline[i] = normal();
        candidate[i] =
            baseline[i] + one->truth + noise + (one->clusters > 0 ? effects[clusters[i]] : 0.0);
    }
}

static double coverage(const struct simulation *one, int rounds)
{
    static double baseline[ITEMS_MAX];
    static double candidate[ITEMS_MAX];
    static double weights[ITEMS_MAX];
    static uint32_t clusters[ITEMS_MAX];
    int covered = 0;

    for (int i = 0; i < rounds; i++) {
        struct evq_paired out;
        struct evq_error err = {.message = ""};
        fill(one, baseline, candidate, weights, clusters);
        const struct evq_paired_items items = {.count = one->count,
                                               .baseline = baseline,
                                               .candidate = candidate,
                                               .weights = one->weights ? weights : NULL,
                                               .clusters = one->clusters > 0 ? clusters : NULL,
                                               .cluster_count = one->clusters,
                                               .higher_is_better = true};
        const struct evq_paired_options options = {
            .method = one->method, .confidence = 0.95, .draws = 1000, .seed = (uint64_t)i + 1};
        if (evq_paired_compare(&items, &options, &out, &err) != EVQ_OK) {
            fail_msg("%s: %s", one->name, err.message);
        }
        covered += out.low <= one->truth && one->truth <= out.high;
    }
    return (double)covered / rounds;
}

static void statistics_intervals_cover_the_truth(void **state)
{
    static const struct simulation all[] = {
        {"McNemar, 150 items", EVQ_PAIRED_MCNEMAR, 150, 0, false, false, 0.05},
        {"t, 40 items", EVQ_PAIRED_T, 40, 0, false, false, 0.3},
        {"t, 400 items, skewed", EVQ_PAIRED_T, 400, 0, false, true, 0.3},
        {"t, 240 items in 40 clusters", EVQ_PAIRED_T, 240, 40, false, false, 0.3},
        {"bootstrap, 120 items, skewed", EVQ_PAIRED_BOOTSTRAP, 120, 0, false, true, 0.3},
        {"bootstrap, 200 items, weights", EVQ_PAIRED_BOOTSTRAP, 200, 0, true, false, 0.3},
        {"bootstrap, 400 items in 80 clusters", EVQ_PAIRED_BOOTSTRAP, 400, 80, true, false, 0.3},
    };
    const char *seed = getenv("EVALQ_SEED");

    (void)state;
    simulation_state = seed != NULL ? strtoull(seed, NULL, 10) : 20261125;
    print_message("seed %llu\n", (unsigned long long)simulation_state);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const int rounds = all[i].method == EVQ_PAIRED_BOOTSTRAP ? 2000 : 5000;
        const double share = coverage(&all[i], rounds);
        print_message("%s: the 95 %% interval covers the truth in %.2f %% of %d cases\n",
                      all[i].name, 100.0 * share, rounds);
        assert_true(share >= 0.93 && share <= 0.97);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_distributions_equal_stored_values),
        cmocka_unit_test(statistics_mcnemar_is_exact),
        cmocka_unit_test(statistics_mean_has_the_interval_of_its_values),
        cmocka_unit_test(statistics_t_equals_stored_values),
        cmocka_unit_test(statistics_wins_follow_the_direction),
        cmocka_unit_test(statistics_bootstrap_repeats_with_its_seed),
        cmocka_unit_test(statistics_bootstrap_draws_do_not_depend_on_threads),
        cmocka_unit_test(statistics_bootstrap_takes_weights_of_1_as_it_takes_others),
        cmocka_unit_test(statistics_p_of_the_bootstrap_ends_its_interval),
        cmocka_unit_test(statistics_holm_equals_stored_values),
        cmocka_unit_test(statistics_refuse_what_has_no_answer),
        cmocka_unit_test(statistics_gate_decides_by_the_bound),
        cmocka_unit_test(statistics_gate_needs_twenty_items_for_real_values),
        cmocka_unit_test(statistics_intervals_cover_the_truth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
