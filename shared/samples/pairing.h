/*
 * Pairs the samples of two checkpoints item by item, for compare, diff, gate, best and the gateway.
 * A pairing is used by one thread.
 */
#ifndef EVQ_SHARED_SAMPLES_PAIRING_H
#define EVQ_SHARED_SAMPLES_PAIRING_H

#include "shared/samples/samples_find.h"
#include "shared/samples/samples_set.h"
#include "shared/statistics/paired.h"

#define EVQ_PAIRING_SEED       1 // Seed of the bootstrap, so that equal data give equal numbers.
#define EVQ_PAIRING_CONFIDENCE 0.95

struct evq_pairing {
    struct evq_samples_set *a; // The baseline.
    struct evq_samples_set *b; // The candidate.
    struct evq_samples_pairs pairs;
    bool owns_sets;
};

/* Reads one file. limits NULL: those of the format. EVQ_E_CORRUPT: it was renamed, so that its
 * first line names another job. Other errors: as evq_samples_set_read(). */
enum evq_status evq_pairing_read(const struct evq_sample_file *file, bool texts,
                                 const struct evq_samples_limits *limits,
                                 struct evq_samples_set **ret_set,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads both files, the second one in a thread of its own, and pairs their items. texts: outputs
 * and targets are kept. limits: larger files are refused; NULL: the limits of the format. Close it
 * whatever the result. EVQ_E_INVALID: they have no item in common. */
enum evq_status evq_pairing_open(const struct evq_sample_file *a, const struct evq_sample_file *b,
                                 bool texts, const struct evq_samples_limits *limits,
                                 struct evq_pairing *ret, struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for two sets, which the caller keeps longer than the pairing and frees itself. */
enum evq_status evq_pairing_make(struct evq_samples_set *a, struct evq_samples_set *b,
                                 struct evq_pairing *ret, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_pairing_close(struct evq_pairing *pairing);

/* Chooses the score: `wanted`, or the first of the file if it is NULL. EVQ_E_NOT_FOUND: a side does
 * not have it; the message lists what there is. */
enum evq_status evq_pairing_score(const struct evq_pairing *pairing, const char *wanted,
                                  const char **ret_name, struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether higher is better, by the name of the score. */
bool evq_pairing_higher(const char *score);

struct evq_pairing_items { // Owns its arrays.
    struct evq_paired_items items;
    double *baseline;
    double *candidate;
    double *weights;
    uint32_t *clusters;
};

/* Fills arrays with one score that both sides have. Call evq_pairing_items_free() also after an
 * error. EVQ_E_CONFLICT: the score is a mean over tokens, and an item has different numbers of
 * tokens on the two sides. */
enum evq_status evq_pairing_items(const struct evq_pairing *pairing, const char *score,
                                  struct evq_pairing_items *ret,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
void evq_pairing_items_free(struct evq_pairing_items *items);

/* The weighted mean of values, which is the baseline or the candidate of items. */
double evq_pairing_mean(const struct evq_pairing_items *items, const double *values);

/* Compares one score that both sides have, with EVQ_PAIRING_CONFIDENCE. Errors: as
 * evq_pairing_items() and evq_paired_compare(). */
enum evq_status evq_pairing_compare(const struct evq_pairing *pairing, const char *score,
                                    enum evq_paired_method method, struct evq_paired *ret,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

#endif
