/*
 * Keeps the samples of the tasks of one attempt, if the suite wants them. Bad samples never fail a
 * job: its numbers are published with a note that says why there are no samples. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_SAMPLE_STORE_H
#define EVQ_WORKER_EVALUATORS_SAMPLE_STORE_H

#include <jansson.h>

#include "shared/samples/samples_writer.h"
#include "worker/evaluators/evaluator.h"

struct evq_sample_store; // The samples of one task. NULL is accepted everywhere and keeps nothing.

/* Whether samples of this request are kept. They need a job, whose name is that of the file. */
bool evq_sample_store_wanted(const struct evq_eval_request *request);

/* Where a task's samples file is written: samples.directory, or below the attempt's scratch
 * directory if the file is sent. */
void evq_sample_store_directory(const struct evq_config *config, const char *scratch,
                                char out[EVQ_SAMPLES_PATH_BYTES]);

/* Begins the samples of a task. NULL: they are not wanted, or memory ran out. data_digest: "" for
 * programs. weighted: see struct evq_samples_header. */
struct evq_sample_store *evq_sample_store_new(const struct evq_eval_request *request,
                                              const char *task, const char *data_digest,
                                              const char *weighted);
void evq_sample_store_free(struct evq_sample_store *store); // Gives up.

const char *evq_sample_store_task(const struct evq_sample_store *store); // "" for NULL.

/* Adds one sample. After a fault, all later ones are ignored. */
void evq_sample_store_add(struct evq_sample_store *store, const struct evq_sample *sample);
/* The same for one JSON object of a program. */
void evq_sample_store_add_json(struct evq_sample_store *store, const json_t *object);
/* The same for each line of a program's file. EVQ_E_NOT_FOUND of the file is not a fault. */
void evq_sample_store_add_file(struct evq_sample_store *store, const char *path);
/* Notes the first fault. */
void evq_sample_store_fault(struct evq_sample_store *store, const struct evq_error *fault);

/* Completes the file and sets samples_digest and samples_bytes of the result, or its note. Without
 * any sample there is no file. Frees the store. Texts are in the result's arena. */
void evq_sample_store_finish(struct evq_sample_store *store, struct evq_result *result);

#endif
