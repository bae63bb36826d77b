#include "shared/statistics/bootstrap.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/statistics/distribution.h"

#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)
#define THREADS_MAX 8
#define THREAD_WORK ((uint64_t)1 << 20) // So many group draws (2 ms) justify one more thread.

/* SplitMix64: the state grows by a constant and is mixed. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += RANDOM_STEP;

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One draw. A random number of 64 bits gives two indices; their bias is below 2^-8 of one part in
 * count, because count is at most 2^24. */
static double draw_weighted(const struct evq_bootstrap_group *groups, size_t count, uint64_t *state)
{
    double sum = 0.0;
    double weight = 0.0;
    size_t i = 0;

    for (; i + 1 < count; i += 2) {
        const uint64_t random = random_next(state);
        const struct evq_bootstrap_group *a = &groups[((random >> 32) * count) >> 32];
        const struct evq_bootstrap_group *b = &groups[((random & UINT32_MAX) * count) >> 32];
        sum += a->sum + b->sum;
        weight += a->weight + b->weight;
    }
    if (i < count) {
        const struct evq_bootstrap_group *last =
            &groups[((random_next(state) >> 32) * count) >> 32];
        sum += last->sum;
        weight += last->weight;
    }
    return sum / weight;
}

/* One draw of groups of weight 1. It makes the same choices as draw_weighted() and takes three
 * quarters of its time, because the processor's cache holds twice as many groups. */
static double draw_unweighted(const double *sums, size_t count, uint64_t *state)
{
    double sum = 0.0;
    size_t i = 0;

    for (; i + 1 < count; i += 2) {
        const uint64_t random = random_next(state);
        sum += sums[((random >> 32) * count) >> 32] + sums[((random & UINT32_MAX) * count) >> 32];
    }
    if (i < count) {
        sum += sums[((random_next(state) >> 32) * count) >> 32];
    }
    return sum / (double)count;
}

struct part { // The draws of one thread.
    const struct evq_bootstrap_group *groups;
    const double *sums; // The sums of the groups, if all weights are 1. Otherwise NULL.
    size_t group_count;
    uint64_t seed;
    uint32_t first;
    uint32_t end;
    double *values; // The results of all draws.
};

/* Each draw uses the random numbers that follow those of the draw before, so that any number of
 * threads gives the same values. */
static void *draw_part(void *argument)
{
    const struct part *part = argument;
    const uint64_t randoms = (part->group_count + 1) / 2; // Random numbers that one draw takes.
    uint64_t state = part->seed + part->first * randoms * RANDOM_STEP;

    for (uint32_t i = part->first; i < part->end; i++) {
        part->values[i] = part->sums != NULL
                              ? draw_unweighted(part->sums, part->group_count, &state)
                              : draw_weighted(part->groups, part->group_count, &state);
    }
    return NULL;
}

/* Returns how many threads to use for this number of draws. */
static uint32_t thread_count(const struct part *all)
{
    const uint64_t worth = 1 + all->end * (uint64_t)all->group_count / THREAD_WORK;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const uint64_t most = processors < 1             ? 1
                          : processors < THREADS_MAX ? (uint64_t)processors
                                                     : THREADS_MAX;

    return (uint32_t)(worth < most ? worth : most);
}

/* Divides the draws among threads. If a thread cannot start, this thread computes its part. */
static void draw_all(const struct part *all)
{
    const uint32_t count = thread_count(all);
    struct part parts[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    bool has_thread[THREADS_MAX] = {false};

    for (uint32_t i = 0; i < count; i++) {
        parts[i] = *all;
        parts[i].first = (uint32_t)((uint64_t)all->end * i / count);
        parts[i].end = (uint32_t)((uint64_t)all->end * (i + 1) / count);
        has_thread[i] = i > 0 && pthread_create(&threads[i], NULL, draw_part, &parts[i]) == 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (has_thread[i]) {
            (void)pthread_join(threads[i], NULL); // It can only fail if there is no such thread.
        } else {
            (void)draw_part(&parts[i]);
        }
    }
}

/* The quantile p of sorted values, with linear interpolation (type 7 of Hyndman and Fan). */
static double quantile(const double *sorted, size_t count, double p)
{
    const double at = p * (double)(count - 1);
    const size_t below = (size_t)at;

    if (below + 1 >= count) {
        return sorted[count - 1];
    }
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

/* The acceleration, from the estimates that leave out one group each. */
static double acceleration(const struct evq_bootstrap_group *groups, size_t count, double sum,
                           double weight)
{
    double mean = 0.0;
    double squares = 0.0;
    double cubes = 0.0;

    for (size_t i = 0; i < count; i++) {
        mean += (sum - groups[i].sum) / (weight - groups[i].weight);
    }
    mean /= (double)count;
    for (size_t i = 0; i < count; i++) {
        const double off = mean - (sum - groups[i].sum) / (weight - groups[i].weight);
        squares += off * off;
        cubes += off * off * off;
    }
    return squares > 0.0 ? cubes / (6.0 * squares * sqrt(squares)) : 0.0;
}

/* The share of the draws that is below value; equal ones count half. */
static double share_below(const double *sorted, size_t count, double value)
{
    size_t less = 0;
    size_t equal = 0;

    while (less < count && sorted[less] < value) {
        less++;
    }
    while (less + equal < count && sorted[less + equal] == value) {
        equal++;
    }
    return ((double)less + 0.5 * (double)equal) / (double)count;
}

/* The p-value: BCa maps a quantile z of the interval to z0 + (z0 + z) / (1 - a (z0 + z)) of the
 * draws. This is the inverse map at 0, kept off 0 and 1 by the number of draws. */
static double p_of_zero(const double *sorted, size_t count, double bias, double accel)
{
    const double least = 1.0 / ((double)count + 1.0);
    const double share = fmin(fmax(share_below(sorted, count, 0.0), least), 1.0 - least);
    const double off = evq_normal_quantile(share) - bias;
    const double side = evq_normal_below(off / (1.0 + accel * off) - bias);

    return fmin(1.0, fmax(2.0 * fmin(side, 1.0 - side), 2.0 * least));
}

static void summarise(const struct evq_bootstrap_group *groups, size_t group_count,
                      const double *sorted, uint32_t draws, double confidence,
                      struct evq_bootstrap *ret)
{
    struct evq_bootstrap out;
    double sum = 0.0;
    double weight = 0.0;
    double mean = 0.0;
    double squares = 0.0;

    for (size_t i = 0; i < group_count; i++) {
        sum += groups[i].sum;
        weight += groups[i].weight;
    }
    for (uint32_t i = 0; i < draws; i++) {
        mean += sorted[i] / draws;
    }
    for (uint32_t i = 0; i < draws; i++) {
        squares += (sorted[i] - mean) * (sorted[i] - mean);
    }
    out.standard_error = sqrt(squares / (draws - 1.0));
    const double least = 1.0 / (draws + 1.0);
    const double below = share_below(sorted, draws, sum / weight);
    out.bias = evq_normal_quantile(fmin(fmax(below, least), 1.0 - least));
    out.acceleration = acceleration(groups, group_count, sum, weight);
    const double z = evq_normal_quantile(0.5 + 0.5 * confidence);
    const double low = out.bias + (out.bias - z) / (1.0 - out.acceleration * (out.bias - z));
    const double high = out.bias + (out.bias + z) / (1.0 - out.acceleration * (out.bias + z));
    out.low = quantile(sorted, draws, evq_normal_below(low));
    out.high = quantile(sorted, draws, evq_normal_below(high));
    out.p = sorted[0] == sorted[draws - 1] ? (sorted[0] == 0.0 ? 1.0 : 2.0 * least)
                                           : p_of_zero(sorted, draws, out.bias, out.acceleration);
    *ret = out;
}

enum evq_status evq_bootstrap_run(const struct evq_bootstrap_group *groups, size_t group_count,
                                  uint32_t draws, uint64_t seed, double confidence,
                                  struct evq_bootstrap *ret, double *ret_draws,
                                  struct evq_error *err)
{
    if (group_count < 2) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the bootstrap has %zu groups of items, expected 2 or more",
                             group_count);
    }
    if (group_count > EVQ_BOOTSTRAP_GROUPS_MAX || draws < EVQ_BOOTSTRAP_DRAWS_MIN ||
        draws > EVQ_BOOTSTRAP_DRAWS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "a bootstrap of %zu groups and %" PRIu32
                             " draws, expected at most %d groups and %d to %d draws",
                             group_count, draws, EVQ_BOOTSTRAP_GROUPS_MAX, EVQ_BOOTSTRAP_DRAWS_MIN,
                             EVQ_BOOTSTRAP_DRAWS_MAX);
    }
    for (size_t i = 0; i < group_count; i++) {
        if (!isfinite(groups[i].sum) || !isfinite(groups[i].weight) || !(groups[i].weight > 0.0)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "group %zu of the bootstrap has the sum %g and the weight %g, "
                                 "expected numbers and a weight above 0",
                                 i, groups[i].sum, groups[i].weight);
        }
    }
    double *values = malloc(draws * sizeof *values);
    double *sums = malloc(group_count * sizeof *sums);
    if (values == NULL || sums == NULL) {
        free(values);
        free(sums);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %" PRIu32 " draws", draws);
    }
    bool is_weighted = false;
    for (size_t i = 0; i < group_count; i++) {
        sums[i] = groups[i].sum;
        is_weighted |= groups[i].weight != 1.0;
    }
    const struct part all = {.groups = groups,
                             .sums = is_weighted ? NULL : sums,
                             .group_count = group_count,
                             .seed = seed,
                             .end = draws,
                             .values = values};
    draw_all(&all);
    qsort(values, draws, sizeof *values, by_value);
    summarise(groups, group_count, values, draws, confidence, ret);
    if (ret_draws != NULL) {
        memcpy(ret_draws, values, draws * sizeof *values);
    }
    free(values);
    free(sums);
    return EVQ_OK;
}
