/*
 * Answers cases for tests/peers/test_statistics.py: a JSON object per line on standard input, a
 * JSON object per line on standard output.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/statistics/bootstrap.h"
#include "shared/statistics/distribution.h"
#include "shared/statistics/holm.h"
#include "shared/statistics/mean.h"
#include "shared/statistics/non_inferiority.h"
#include "shared/statistics/paired.h"
#include "shared/statistics/proportion.h"

static void refuse(const char *what)
{
    fprintf(stderr, "statistics_cases: %s\n", what);
    exit(1);
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* The numbers of an array, which the caller frees; NULL if the member is absent. */
static double *numbers(const json_t *object, const char *key, size_t *ret_count)
{
    const json_t *list = json_object_get(object, key);
    const size_t count = json_array_size(list);
    double *out = json_is_array(list) ? malloc((count + 1) * sizeof *out) : NULL;

    for (size_t i = 0; out != NULL && i < count; i++) {
        out[i] = json_number_value(json_array_get(list, i));
    }
    if (ret_count != NULL) {
        *ret_count = count;
    }
    return out;
}

static void print_paired(const struct evq_paired *paired)
{
    printf("\"method\": \"%s\", \"groups\": %zu, \"wins\": %zu, \"losses\": %zu, \"ties\": %zu, "
           "\"difference\": %.17g, \"standard_error\": %.17g, \"low\": %.17g, \"high\": %.17g, "
           "\"p\": %.17g",
           evq_paired_method_name(paired->method), paired->groups, paired->wins, paired->losses,
           paired->ties, paired->difference, paired->standard_error, paired->low, paired->high,
           paired->p);
}

static void answer_paired(const json_t *ask)
{
    struct evq_paired_items items = {.higher_is_better =
                                         json_is_true(json_object_get(ask, "higher"))};
    struct evq_paired_options options = {.method = (enum evq_paired_method)number(ask, "method"),
                                         .confidence = number(ask, "confidence"),
                                         .draws = (uint32_t)number(ask, "draws"),
                                         .seed = (uint64_t)number(ask, "seed")};
    struct evq_error err;
    double *baseline = numbers(ask, "baseline", &items.count);
    double *candidate = numbers(ask, "candidate", NULL);
    double *weights = numbers(ask, "weights", NULL);
    double *clusters = numbers(ask, "clusters", NULL);
    uint32_t *cluster = calloc(items.count + 1, sizeof *cluster);

    if (cluster == NULL) {
        refuse("no memory");
    }
    for (size_t i = 0; clusters != NULL && i < items.count; i++) {
        cluster[i] = (uint32_t)clusters[i];
        items.cluster_count =
            cluster[i] >= items.cluster_count ? cluster[i] + 1U : items.cluster_count;
    }
    items.baseline = baseline;
    items.candidate = candidate;
    items.weights = weights;
    items.clusters = clusters != NULL ? cluster : NULL;
    if (json_object_get(ask, "margin") != NULL) {
        struct evq_non_inferiority gate;
        if (evq_non_inferiority_decide(&items, number(ask, "margin"), options.confidence, &options,
                                       &gate, &err) != EVQ_OK) {
            refuse(err.message);
        }
        printf("{\"verdict\": %d, \"bound\": %.17g, \"needed\": %.17g, ", (int)gate.verdict,
               gate.bound, gate.groups_needed);
        print_paired(&gate.paired);
    } else {
        struct evq_paired paired;
        if (evq_paired_compare(&items, &options, &paired, &err) != EVQ_OK) {
            refuse(err.message);
        }
        printf("{");
        print_paired(&paired);
    }
    printf("}\n");
    free(baseline);
    free(candidate);
    free(weights);
    free(clusters);
    free(cluster);
}

static void print_list(const char *name, const double *values, size_t count)
{
    printf("\"%s\": [", name);
    for (size_t i = 0; i < count; i++) {
        printf("%s%.17g", i > 0 ? ", " : "", values[i]);
    }
    printf("]");
}

static void answer_draws(const json_t *ask)
{
    size_t count = 0;
    struct evq_bootstrap drawn;
    struct evq_error err;
    const uint32_t draws = (uint32_t)number(ask, "draws");
    double *sums = numbers(ask, "sums", &count);
    double *weights = numbers(ask, "weights", NULL);
    struct evq_bootstrap_group *groups = calloc(count + 1, sizeof *groups);
    double *values = calloc(draws + 1, sizeof *values);

    for (size_t i = 0; groups != NULL && i < count; i++) {
        groups[i] = (struct evq_bootstrap_group){sums[i], weights[i]};
    }
    if (groups == NULL || values == NULL ||
        evq_bootstrap_run(groups, count, draws, (uint64_t)number(ask, "seed"),
                          number(ask, "confidence"), &drawn, values, &err) != EVQ_OK) {
        refuse("the bootstrap failed");
    }
    printf("{\"low\": %.17g, \"high\": %.17g, \"error\": %.17g, \"p\": %.17g, ", drawn.low,
           drawn.high, drawn.standard_error, drawn.p);
    print_list("values", values, draws);
    printf("}\n");
    free(sums);
    free(weights);
    free(groups);
    free(values);
}

static void answer_functions(const json_t *ask)
{
    const double freedom = number(ask, "freedom");
    const double p = number(ask, "p");
    const double t = number(ask, "t");
    const double x = number(ask, "x");

    printf("{\"below\": %.17g, \"normal\": %.17g, \"outside\": %.17g, \"student\": %.17g, "
           "\"beta\": %.17g}\n",
           evq_normal_below(t), evq_normal_quantile(p), evq_student_outside(t, freedom),
           evq_student_quantile(p, freedom),
           evq_beta_incomplete(number(ask, "a"), number(ask, "b"), x, 1.0 - x));
}

static void answer_holm(const json_t *ask)
{
    size_t count = 0;
    double *p = numbers(ask, "p", &count);

    if (evq_holm_correct(p, count, NULL) != EVQ_OK) {
        refuse("Holm's method failed");
    }
    printf("{");
    print_list("p", p, count);
    printf("}\n");
    free(p);
}

static void answer_mean(const json_t *ask)
{
    size_t count = 0;
    struct evq_mean mean;
    struct evq_error err;
    double *values = numbers(ask, "values", &count);

    if (evq_mean_interval(values, count, NULL, NULL, 0, number(ask, "confidence"), &mean, &err) !=
        EVQ_OK) {
        refuse(err.message);
    }
    printf("{\"mean\": %.17g, \"low\": %.17g, \"high\": %.17g}\n", mean.mean, mean.low, mean.high);
    free(values);
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;

    while (getline(&line, &room, stdin) > 0) {
        json_t *ask = json_loads(line, 0, NULL);
        const char *op = json_string_value(json_object_get(ask, "op"));
        if (op == NULL) {
            refuse("a line is no object with an op");
        } else if (strcmp(op, "paired") == 0) {
            answer_paired(ask);
        } else if (strcmp(op, "draws") == 0) {
            answer_draws(ask);
        } else if (strcmp(op, "functions") == 0) {
            answer_functions(ask);
        } else if (strcmp(op, "holm") == 0) {
            answer_holm(ask);
        } else if (strcmp(op, "mean") == 0) {
            answer_mean(ask);
        } else {
            refuse("an op is unknown");
        }
        json_decref(ask);
    }
    free(line);
    return 0;
}
