/*
 * A model family turns the tensors of a checkpoint into a plan of operations, and says which
 * tensors fill which weight of the plan. One file a family, registered in model.c. No tensor data
 * is read here.
 */
#ifndef EVQ_WORKER_MODEL_H
#define EVQ_WORKER_MODEL_H

#include "kernels/backend.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/config/config.h"

enum evq_source_kind {
    EVQ_SOURCE_TENSOR,     // The tensor as it is, in its own type where the backend takes it.
    EVQ_SOURCE_ONE_PLUS,   // 1 + the tensor.
    EVQ_SOURCE_NORM_SCALE, // tensor / sqrt(variance + eps), per column.
    EVQ_SOURCE_NORM_SHIFT  // bias - mean * tensor / sqrt(variance + eps).
};

struct evq_source { // Where the values of a part of one weight slot come from.
    int32_t slot;
    int32_t first_row, rows; // Of a slot of one row: its elements.
    enum evq_source_kind kind;
    bool transposed;                 // The tensor is [columns, rows], as Conv1D keeps it.
    const struct evq_tensor *tensor; // NORM: NULL means 1.
    const struct evq_tensor *bias;   // NORM_SHIFT: NULL means 0. Else unused.
    const struct evq_tensor *mean;
    const struct evq_tensor *variance;
    double eps;
};

struct evq_model {
    struct evq_arena *arena; // Owns this struct and everything it points to but the tensors.
    const char *family;
    // The task's head is its last operation. Until the backend prepares it, the caller may set
    // compute, rows_max, and length_max up to the context.
    struct evq_plan plan;
    const struct evq_source *sources; // By slot and row, without gaps; tensors of the checkpoint.
    size_t source_count;
    // A tensor of the checkpoint that the model does not use, for it takes `tied` in its place;
    // their values ought to be the same. NULL: none.
    const struct evq_tensor *unused, *tied;
    const char *ignored; // The other tensors that it does not use, "a, b, c"; "": there are none.
    int32_t inputs;      // Values of a sample; 1 where it reads tokens.
    int32_t outputs;     // Classes, values, or the vocabulary.
    int32_t context;     // Longest sequence of tokens that it takes; 0: it reads samples.
};

struct evq_model_request {
    const struct evq_checkpoint *checkpoint;
    const struct evq_task_config *task; // Its `model` options.
    struct evq_op head; // kind and what the task sets of it; the family fills in, n and the rest.
    int32_t rows_max;
    int32_t length_max; // Longest sequence of a batch; 0: the context, but at most rows_max.
};

struct evq_decoder_kind;

struct evq_model_family {
    const char *name;
    const char *const *architectures; // In config.json, NULL-terminated; NULL: none.
    const char *const *options;       // Keys of `model` that it knows, NULL-terminated.
    /* Whether the values of the `model` options are right; the keys were looked at. */
    enum evq_status (*check)(const struct evq_model_family *family,
                             const struct evq_task_config *task, struct evq_error *err);
    enum evq_status (*build)(const struct evq_model_family *family,
                             const struct evq_model_request *request, struct evq_model *model,
                             struct evq_error *err);
    // Other models with the same names of tensors compute otherwise: no other type can be forced to
    // this family.
    bool own_types_only;
    const struct evq_decoder_kind *decoder; // NULL: no decoder of tokens (worker/models/decoder.h).
};

extern const struct evq_model_family evq_model_mlp;
extern const struct evq_model_family evq_model_gpt2;
extern const struct evq_model_family evq_model_llama;
extern const struct evq_model_family evq_model_mistral;
extern const struct evq_model_family evq_model_qwen2;
extern const struct evq_model_family evq_model_qwen3;
extern const struct evq_model_family evq_model_gemma;

/*
 * The family is the option `family`, else what config.json beside the weights names, else (a file
 * of nanoGPT) what the checkpoint itself says, else "mlp". The checkpoint must stay open while the
 * model is used. EVQ_E_INVALID, EVQ_E_UNSUPPORTED, EVQ_E_NOT_FOUND: one sentence naming the tensor
 * or option and what was expected. Free with evq_model_free().
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
