/*
 * `evalq compare RUN`: compares each step of a run that has samples with the last such step, item
 * by item. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_STEP_CHANGES_H
#define EVQ_PRODUCER_CLI_SAMPLES_STEP_CHANGES_H

#include <jansson.h>

#include "producer/cli/cli.h"
#include "shared/queue/job.h"

struct evq_step_point { // One step of one score.
    int64_t step;
    double mean;       // The mean over the items that the last step has, too.
    double difference; // The mean of the last step minus this one.
    double p;          // The corrected p-value. NaN: there are too few items for a test.
};

struct evq_step_change { // One score of one task.
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char score[136];
    struct evq_step_point *points; // From the last step to the first.
    size_t count;                  // At least 1.
    size_t best;                   // The best mean; among equal ones, the earliest step.
    size_t changed; // The latest step that differs significantly from the last. 0: there is none.
};

struct evq_step_changes {
    struct evq_step_change *rows; // By suite and task, then as in the samples.
    size_t count;
    size_t compared; // How many comparisons Holm's method corrects for.
    size_t others;   // Samples files that are left out: their suite or data were different.
};

/*
 * Reads all samples of the run. The configuration is loaded, and the options choose task, suite and
 * variant. metric: only this score, or the key that a results table shows for it; NULL: all. No
 * samples is not an error. After an error *ret is empty.
 */
enum evq_status evq_step_changes_make(struct evq_cli *cli, const char *run, const char *metric,
                                      struct evq_step_changes *ret,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_step_changes_free(struct evq_step_changes *changes);

/* Prints a line for each score. Without any, it prints nothing. */
enum evq_status evq_step_changes_print(struct evq_cli *cli, const struct evq_step_changes *changes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
/* Returns the changes as a JSON list. NULL: memory ran out. */
json_t *evq_step_changes_json(const struct evq_step_changes *changes);

#endif
