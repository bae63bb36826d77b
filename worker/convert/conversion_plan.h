/*
 * Decides whether a model server can load a checkpoint as it is. If it cannot, `evalq-worker
 * convert` must make a Transformers directory of it first, and runs like a prepare command of the
 * suite. Any thread.
 */
#ifndef EVQ_WORKER_CONVERT_CONVERSION_PLAN_H
#define EVQ_WORKER_CONVERT_CONVERSION_PLAN_H

#include "worker/evaluators/evaluator.h"

struct evq_conversion_plan {
    bool needed;
    char key[256]; // Names the input and the way of converting. Equal keys share one result.
    struct evq_evaluator evaluator;
    const char *argv[10];
};

/*
 * Fills in *ret. fingerprint is the one of the checkpoint. No conversion is needed if the suite
 * runs no model server or has a prepare command of its own, or if the checkpoint is a directory
 * with config.json and safetensors (and a tokenizer, if the suite says where to find one). The
 * texts are borrowed from the request. EVQ_E_NOMEM.
 */
enum evq_status evq_conversion_plan_make(const struct evq_eval_request *request,
                                         const char *fingerprint, struct evq_conversion_plan *ret,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#endif
