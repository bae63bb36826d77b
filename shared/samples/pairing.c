#include "shared/samples/pairing.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/nearest.h"
#include "shared/queue/result.h"

enum evq_status evq_pairing_make(struct evq_samples_set *a, struct evq_samples_set *b,
                                 struct evq_pairing *ret, struct evq_error *err)
{
    *ret = (struct evq_pairing){.a = a, .b = b};
    const enum evq_status status = evq_samples_pairs_make(a, b, &ret->pairs, err);

    if (status == EVQ_OK && ret->pairs.count == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' (%zu items) and '%s' (%zu items) have no item in common",
                             a->path, a->count, b->path, b->count);
    }
    return status;
}

struct side {
    const struct evq_sample_file *file;
    bool texts;
    const struct evq_samples_limits *limits;
    struct evq_samples_set *set;
    enum evq_status status;
    struct evq_error err;
};

enum evq_status evq_pairing_read(const struct evq_sample_file *file, bool texts,
                                 const struct evq_samples_limits *limits,
                                 struct evq_samples_set **ret_set, struct evq_error *err)
{
    struct evq_samples_set *set = NULL;
    enum evq_status status = evq_samples_set_read(file->path, texts, limits, &set, err);

    if (status == EVQ_OK) {
        status = evq_samples_find_check(file, &set->header, err);
    }
    if (status != EVQ_OK) {
        evq_samples_set_free(set);
        return status;
    }
    *ret_set = set;
    return EVQ_OK;
}

static void *read_side(void *context)
{
    struct side *side = context;

    side->status = evq_pairing_read(side->file, side->texts, side->limits, &side->set, &side->err);
    return NULL;
}

enum evq_status evq_pairing_open(const struct evq_sample_file *a, const struct evq_sample_file *b,
                                 bool texts, const struct evq_samples_limits *limits,
                                 struct evq_pairing *ret, struct evq_error *err)
{
    struct side sides[] = {{.file = a, .texts = texts, .limits = limits},
                           {.file = b, .texts = texts, .limits = limits}};
    pthread_t thread;

    *ret = (struct evq_pairing){.a = NULL};
    // A second thread, because unpacking takes most of the time.
    const bool has_thread = pthread_create(&thread, NULL, read_side, &sides[1]) == 0;
    (void)read_side(&sides[0]);
    if (has_thread) {
        (void)pthread_join(thread, NULL); // It can only fail for a thread that does not exist.
    } else {
        (void)read_side(&sides[1]);
    }
    for (size_t i = 0; i < 2; i++) {
        if (sides[i].status != EVQ_OK) {
            evq_samples_set_free(sides[0].set);
            evq_samples_set_free(sides[1].set);
            if (err != NULL) {
                *err = sides[i].err;
            }
            return sides[i].status;
        }
    }
    const enum evq_status status = evq_pairing_make(sides[0].set, sides[1].set, ret, err);
    ret->owns_sets = true;
    return status;
}

void evq_pairing_close(struct evq_pairing *pairing)
{
    free(pairing->pairs.pairs);
    if (pairing->owns_sets) {
        evq_samples_set_free(pairing->a);
        evq_samples_set_free(pairing->b);
    }
    *pairing = (struct evq_pairing){.a = NULL};
}

enum evq_status evq_pairing_score(const struct evq_pairing *pairing, const char *wanted,
                                  const char **ret_name, struct evq_error *err)
{
    const char *name = wanted != NULL ? wanted : pairing->a->names[0];
    const struct evq_samples_set *const sides[] = {pairing->a, pairing->b};

    for (size_t i = 0; i < 2; i++) {
        if (evq_samples_set_name(sides[i], name) == SIZE_MAX) {
            char list[256];
            char shown[160];
            return evq_error_set(
                err, EVQ_E_NOT_FOUND, "'%s' has no score '%s': %s", sides[i]->path,
                evq_error_escape(name, strlen(name), shown, sizeof shown),
                evq_nearest_choice(name, sides[i]->names, sides[i]->name_count, list, sizeof list));
        }
    }
    *ret_name = name;
    return EVQ_OK;
}

bool evq_pairing_higher(const char *score)
{
    return evq_metric_direction(&(struct evq_metric){.name = score, .higher_is_better = -1}) != 0;
}

struct named { // A cluster's name and the pair that has it.
    const char *name;
    size_t at;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* Numbers the clusters. Without a cluster on every item there are none. */
static enum evq_status take_clusters(const struct evq_pairing *pairing,
                                     struct evq_pairing_items *to, struct evq_error *err)
{
    const struct evq_samples_pairs *pairs = &pairing->pairs;

    for (size_t i = 0; i < pairs->count; i++) {
        if (pairs->pairs[i].a->cluster == NULL) {
            return EVQ_OK;
        }
    }
    struct named *named = calloc(pairs->count, sizeof *named);
    to->clusters = calloc(pairs->count, sizeof *to->clusters);
    if (named == NULL || to->clusters == NULL) {
        free(named);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to compare %zu items", pairs->count);
    }
    for (size_t i = 0; i < pairs->count; i++) {
        named[i] = (struct named){pairs->pairs[i].a->cluster, i};
    }
    qsort(named, pairs->count, sizeof *named, by_name);
    uint32_t number = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        number += i > 0 && strcmp(named[i - 1].name, named[i].name) != 0;
        to->clusters[named[i].at] = number;
    }
    to->items.clusters = to->clusters;
    to->items.cluster_count = (size_t)number + 1;
    free(named);
    return EVQ_OK;
}

static enum evq_status take_weights(const struct evq_pairing *pairing, struct evq_pairing_items *to,
                                    struct evq_error *err)
{
    const struct evq_samples_pairs *pairs = &pairing->pairs;

    to->weights = calloc(pairs->count, sizeof *to->weights);
    if (to->weights == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to compare %zu items", pairs->count);
    }
    for (size_t i = 0; i < pairs->count; i++) {
        const struct evq_samples_item *a = pairs->pairs[i].a;
        const struct evq_samples_item *b = pairs->pairs[i].b;
        if (a->tokens != b->tokens || a->tokens < 1) {
            return evq_error_set(err, EVQ_E_CONFLICT,
                                 "item '%s' has %lld tokens on one side and %lld on the other, so "
                                 "its loss per token cannot be compared",
                                 a->id, (long long)a->tokens, (long long)b->tokens);
        }
        to->weights[i] = (double)a->tokens;
    }
    to->items.weights = to->weights;
    return EVQ_OK;
}

enum evq_status evq_pairing_items(const struct evq_pairing *pairing, const char *score,
                                  struct evq_pairing_items *ret, struct evq_error *err)
{
    const struct evq_samples_pairs *pairs = &pairing->pairs;
    const size_t a = evq_samples_set_name(pairing->a, score);
    const size_t b = evq_samples_set_name(pairing->b, score);

    *ret = (struct evq_pairing_items){
        .items = {.count = pairs->count, .higher_is_better = evq_pairing_higher(score)}};
    ret->baseline = calloc(pairs->count, sizeof *ret->baseline);
    ret->candidate = calloc(pairs->count, sizeof *ret->candidate);
    if (ret->baseline == NULL || ret->candidate == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to compare %zu items", pairs->count);
    }
    for (size_t i = 0; i < pairs->count; i++) {
        ret->baseline[i] = pairs->pairs[i].a->scores[a];
        ret->candidate[i] = pairs->pairs[i].b->scores[b];
    }
    ret->items.baseline = ret->baseline;
    ret->items.candidate = ret->candidate;
    enum evq_status status = take_clusters(pairing, ret, err);
    if (status == EVQ_OK && strcmp(pairing->a->header.weighted, score) == 0) {
        status = take_weights(pairing, ret, err);
    }
    return status;
}

void evq_pairing_items_free(struct evq_pairing_items *items)
{
    free(items->baseline);
    free(items->candidate);
    free(items->weights);
    free(items->clusters);
    *items = (struct evq_pairing_items){.baseline = NULL};
}

double evq_pairing_mean(const struct evq_pairing_items *items, const double *values)
{
    double sum = 0.0;
    double weights = 0.0;

    for (size_t i = 0; i < items->items.count; i++) {
        const double weight = items->weights != NULL ? items->weights[i] : 1.0;
        sum += weight * values[i];
        weights += weight;
    }
    return sum / weights;
}

enum evq_status evq_pairing_compare(const struct evq_pairing *pairing, const char *score,
                                    enum evq_paired_method method, struct evq_paired *ret,
                                    struct evq_error *err)
{
    const struct evq_paired_options options = {
        .method = method, .confidence = EVQ_PAIRING_CONFIDENCE, .seed = EVQ_PAIRING_SEED};
    struct evq_pairing_items arrays;
    enum evq_status status = evq_pairing_items(pairing, score, &arrays, err);

    if (status == EVQ_OK) {
        status = evq_paired_compare(&arrays.items, &options, ret, err);
    }
    evq_pairing_items_free(&arrays);
    return status;
}
