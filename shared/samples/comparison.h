/*
 * Compares two checkpoints on all tasks and scores that both have samples of, and corrects the
 * p-values. One thread.
 */
#ifndef EVQ_SHARED_SAMPLES_COMPARISON_H
#define EVQ_SHARED_SAMPLES_COMPARISON_H

#include <jansson.h>

#include "shared/samples/pairing.h"

struct evq_comparison_row { // One score of one task.
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char score[136];
    struct evq_paired paired;
    double corrected; // p by Holm's method.
    size_t only_a;
    size_t only_b;
    char first_only_a[EVQ_SAMPLE_ID_BYTES_MAX + 1];
    char first_only_b[EVQ_SAMPLE_ID_BYTES_MAX + 1];
};

struct evq_comparison {
    struct evq_comparison_row *rows; // Sorted by suite and task, then as in the samples.
    size_t count;
};

struct evq_comparison_options {
    const char *score; // NULL: all that both sides have.
    bool bootstrap;
    const struct evq_samples_limits *limits; // NULL: those of the format.
};

/* The caller frees ret->rows. EVQ_E_NOT_FOUND: the files have no suite and task in common, or not
 * this score. Other errors: as evq_pairing_open() and evq_paired_compare(). */
enum evq_status evq_comparison_make(const struct evq_sample_files *a,
                                    const struct evq_sample_files *b,
                                    const struct evq_comparison_options *options,
                                    struct evq_comparison *ret,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* The comparison as JSON. baseline and candidate are the names of the sides. NULL: memory ran out.
 */
json_t *evq_comparison_json(const struct evq_comparison *comparison, const char *baseline,
                            const char *candidate);

#endif
