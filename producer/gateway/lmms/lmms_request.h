/*
 * Reads a request of a client of the LMMS-Eval server: the twelve fields of its protocol, and a
 * thirteenth that LMMs-Engine adds, lmms_engine_kwargs. Needs neither HTTP nor Redis. One thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_LMMS_LMMS_REQUEST_H
#define EVQ_PRODUCER_GATEWAY_LMMS_LMMS_REQUEST_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "shared/base/error.h"

#define EVQ_LMMS_REQUEST_BYTES_MAX 24576 // Size as JSON, because it is part of the job's message.
#define EVQ_LMMS_GPUS_MAX          64
#define EVQ_LMMS_NAME_BYTES        256

struct evq_lmms_request {
    json_t *echo;        // Owned: every field as it was understood. GET /jobs/ID shows it.
    json_t *args;        // Owned: model_args without num_gpus and batch_size.
    json_t *batch;       // Owned: the batch size, from model_args if it is there; null: none.
    int64_t gpus;        // num_gpus, from model_args if it is there; 1 to EVQ_LMMS_GPUS_MAX.
    const char *path;    // The checkpoint as the client names it; "": a model of the hub, or none.
    const char *key;     // The key of path in model_args; "": path is from lmms_engine_kwargs.
    bool merge;          // lmms_engine_kwargs was given, so the checkpoint consists of shards.
    const char *variant; // "regular" or "ema", as lmms_engine_kwargs says.
    const char *output_dir;              // Directory for results; "": not given.
    char model_dir[EVQ_LMMS_NAME_BYTES]; // The folder that lmms-eval gives the model's results.
};

/*
 * The caller frees *ret_request. EVQ_E_INVALID: *ret_fault is the body of a 422, {"detail": [...]},
 * in the server's own shape, which the caller json_decref()s. EVQ_E_NOMEM.
 */
enum evq_status evq_lmms_request_read(const char *body, size_t bytes,
                                      struct evq_lmms_request **ret_request,
                                      json_t **ret_fault) EVQ_CHECK_RESULT;
void evq_lmms_request_free(struct evq_lmms_request *request); // Accepts NULL.

struct evq_lmms_merge { // Body of POST /merge.
    json_t *fields;     // Owned.
    const char *path;
    const char *output_path; // "": not given.
    const char *variant;
};
enum evq_status evq_lmms_merge_read(const char *body, size_t bytes,
                                    struct evq_lmms_merge *ret_merge,
                                    json_t **ret_fault) EVQ_CHECK_RESULT;
void evq_lmms_merge_free(struct evq_lmms_merge *merge); // Accepts a zeroed one.

/* Returns a member that is text; "": it is absent or no text. */
const char *evq_lmms_member_text(const json_t *object, const char *key);
/* The last two components of a model's name or path as one file name, as lmms-eval writes it. */
void evq_lmms_model_dir(const char *name, char out[EVQ_LMMS_NAME_BYTES]);

#endif
