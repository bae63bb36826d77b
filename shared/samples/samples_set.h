/*
 * All samples of one task in memory, sorted by id. Pairs the samples of two such sets by id. One
 * thread.
 */
#ifndef EVQ_SHARED_SAMPLES_SAMPLES_SET_H
#define EVQ_SHARED_SAMPLES_SAMPLES_SET_H

#include "shared/base/arena.h"
#include "shared/samples/samples_reader.h"

#define EVQ_SAMPLES_SET_BYTES_MAX ((size_t)4 << 30)

struct evq_samples_item {
    const char *id;
    const char *output; // NULL: unknown, or read without texts. The same for target.
    const char *target;
    const char *cluster;
    const double *scores; // One for each of the set's names, in their order.
    double logprob;
    int64_t tokens;
    int64_t number; // Its place in the file, from 0.
};

struct evq_samples_set {
    struct evq_arena *arena; // Owns everything but items.
    char *path;
    struct evq_samples_header header;
    const char *names[EVQ_SAMPLE_SCORES_MAX];
    size_t name_count;
    struct evq_samples_item *items;
    size_t count;
};

/* Reads a file of evq_samples_writer. texts: outputs and targets are kept. limits: larger files are
 * refused; NULL: the limits of the format. Errors: as evq_samples_reader_next(), and EVQ_E_CORRUPT
 * for an id that comes twice or other scores than those of the first item, EVQ_E_LIMIT for more
 * than EVQ_SAMPLES_SET_BYTES_MAX. */
enum evq_status evq_samples_set_read(const char *path, bool texts,
                                     const struct evq_samples_limits *limits,
                                     struct evq_samples_set **ret_set,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_samples_set_free(struct evq_samples_set *set); // Accepts NULL.

/* The index of a score's name. SIZE_MAX: the set has none of that name. */
size_t evq_samples_set_name(const struct evq_samples_set *set, const char *name);

struct evq_samples_pair {
    const struct evq_samples_item *a;
    const struct evq_samples_item *b;
};

struct evq_samples_pairs {
    struct evq_samples_pair *pairs; // In the order of a's file.
    size_t count;
    size_t only_a; // Items that the other set does not have.
    size_t only_b;
    const char *first_only_a; // The id of one of them; NULL: there is none.
    const char *first_only_b;
};

/*
 * Pairs the items of two sets by id. The caller frees ret->pairs. EVQ_E_CONFLICT: the sets are of
 * different tasks, suites or data, so that the same id need not be the same item. EVQ_E_NOMEM.
 */
enum evq_status evq_samples_pairs_make(const struct evq_samples_set *a,
                                       const struct evq_samples_set *b,
                                       struct evq_samples_pairs *ret,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
