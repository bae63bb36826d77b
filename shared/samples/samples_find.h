/*
 * Finds the samples files of checkpoints in a directory, never in Redis. Names that would leave the
 * directory are refused. Any thread.
 */
#ifndef EVQ_SHARED_SAMPLES_SAMPLES_FIND_H
#define EVQ_SHARED_SAMPLES_SAMPLES_FIND_H

#include "shared/samples/samples_writer.h"

struct evq_sample_place { // A checkpoint, written RUN@STEP.
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    int64_t step;
};

struct evq_sample_choice {
    const char *directory; // samples.directory of the configuration.
    const char *variant;
    const char *suite; // NULL: any.
    const char *task;  // NULL: any.
};

struct evq_sample_file {
    char job[EVQ_JOB_ID_BYTES_MAX]; // With the newest generation that has samples.
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char path[EVQ_SAMPLES_PATH_BYTES];
};

struct evq_sample_files {
    struct evq_sample_file *files; // Sorted by suite and task.
    size_t count;
};

/* Reads "RUN@STEP". EVQ_E_INVALID: it is not one. */
enum evq_status evq_samples_find_place(const char *text, struct evq_sample_place *ret,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Lists the files of a checkpoint. The caller frees ret->files. EVQ_E_NOT_FOUND: there is none.
 * EVQ_E_INVALID: the run or the variant is no name. */
enum evq_status evq_samples_find_files(const struct evq_sample_choice *choice,
                                       const struct evq_sample_place *place,
                                       struct evq_sample_files *ret,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* The same for exactly one file. EVQ_E_INVALID: several suites or tasks are left. */
enum evq_status evq_samples_find_one(const struct evq_sample_choice *choice,
                                     const struct evq_sample_place *place,
                                     struct evq_sample_file *ret,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Lists the newest steps_max steps of a run that have a directory, in rising order. It is empty if
 * the run has no samples or is no name. */
size_t evq_samples_find_steps(const char *directory, const char *run, int64_t *steps,
                              size_t steps_max);

/* Whether the first line of a file names the job and task that its path names. EVQ_E_CORRUPT: the
 * file was copied or renamed. */
enum evq_status evq_samples_find_check(const struct evq_sample_file *file,
                                       const struct evq_samples_header *header,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
