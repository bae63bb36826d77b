/*
 * A model family turns the tensors of a checkpoint into a plan of operations, and says which
 * tensors fill which weight of the plan. One file a family, registered in model.c. No tensor data
 * is read here.
 */
#ifndef EVQ_WORKER_MODEL_H
#define EVQ_WORKER_MODEL_H

#include "kernels/backend.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/config.h"

enum evq_source_kind {
    EVQ_SOURCE_TENSOR,     // The tensor `weight` as it is.
    EVQ_SOURCE_NORM_SCALE, // weight / sqrt(variance + eps), per column.
    EVQ_SOURCE_NORM_SHIFT  // bias - mean * weight / sqrt(variance + eps).
};

struct evq_source { // Where the values of one weight slot come from.
    enum evq_source_kind kind;
    const struct evq_tensor *weight; // NORM: NULL means 1.
    const struct evq_tensor *bias;   // NORM_SHIFT: NULL means 0. Else unused.
    const struct evq_tensor *mean;
    const struct evq_tensor *variance;
    double eps;
};

struct evq_model {
    struct evq_arena *arena; // Owns this struct and everything it points to but the tensors.
    const char *family;
    struct evq_plan plan;             // The task's head is its last operation.
    const struct evq_source *sources; // One for each slot of the plan; tensors of the checkpoint.
    int32_t inputs;
    int32_t outputs;
};

struct evq_model_request {
    const struct evq_checkpoint *checkpoint;
    const struct evq_task_config *task; // Its `model` options.
    struct evq_op head; // kind and what the task sets of it; the family fills in, n and the rest.
    int32_t rows_max;
};

struct evq_model_family {
    const char *name;
    /* Whether the `model` options alone are right. */
    enum evq_status (*check)(const struct evq_task_config *task, struct evq_error *err);
    enum evq_status (*build)(const struct evq_model_request *request, struct evq_model *model,
                             struct evq_error *err);
};

extern const struct evq_model_family evq_model_mlp;

/*
 * The family is the option `family`, else "mlp". The checkpoint must stay open while the model is
 * used. EVQ_E_INVALID, EVQ_E_UNSUPPORTED: one sentence naming the tensor or option and what was
 * expected. Free with evq_model_free().
 */
enum evq_status evq_model_build(const struct evq_model_request *request,
                                struct evq_model **ret_model,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_model_free(struct evq_model *model); // Accepts NULL.

/* Whether the task's `model` options are right, before there is a checkpoint. EVQ_E_INVALID. */
enum evq_status evq_model_check(const struct evq_task_config *task,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether both take the same values from the same tensors: loaded weights serve the other too. */
bool evq_model_same_weights(const struct evq_model *a, const struct evq_model *b);

#endif
