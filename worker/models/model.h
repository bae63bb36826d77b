/*
 * A model family turns the tensors of a checkpoint into a plan of operations and tells which
 * tensors fill which weight of the plan. Families are files of worker/models/families/, registered
 * in model.c. No tensor data is read here.
 */
#ifndef EVQ_WORKER_MODELS_MODEL_H
#define EVQ_WORKER_MODELS_MODEL_H

#include "kernels/backend.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/config/config.h"

enum evq_source_kind {
    EVQ_SOURCE_TENSOR,   // The tensor itself, in its own type if the backend accepts it.
    EVQ_SOURCE_ONE_PLUS, // 1 + the tensor.
    EVQ_SOURCE_SCALED,   // The tensor; each block of values is multiplied by its scale.
    EVQ_SOURCE_MXFP4     // As SCALED; each byte of the tensor holds two values of a row.
};

struct evq_source { // Where the values of a part of one weight slot come from.
    int32_t slot;
    int32_t first_row, rows; // Rows of the slot; for a slot of one row, its elements.
    enum evq_source_kind kind;
    bool transposed; // The tensor is [columns, rows], as Conv1D stores it.
    // The tensor has `parts` items in its first dimension, and the values are the item `part`.
    // parts 0: the values are the whole tensor.
    int32_t part, parts;
    const struct evq_tensor *tensor;
    const struct evq_tensor *scale; // For SCALED and MXFP4; both tensors are then contiguous.
};

struct evq_patches { // An image, and the patches that it is divided into, row by row.
    int32_t channels, height, width;
    int32_t patch_height, patch_width;
};

static inline int32_t evq_patches_values(const struct evq_patches *patches)
{
    return patches->channels * patches->patch_height * patches->patch_width;
}

static inline int32_t evq_patches_count(const struct evq_patches *patches)
{
    return (patches->height / patches->patch_height) * (patches->width / patches->patch_width);
}

struct evq_model {
    struct evq_arena *arena; // Owns this struct and everything it points to, except the tensors.
    const char *family;
    // The last operation is the task's head. Until the backend prepares the plan, the caller may
    // set compute, rows_max, and length_max up to the context.
    struct evq_plan plan;
    // Ordered by slot and row, without gaps. The tensors belong to the checkpoint.
    const struct evq_source *sources;
    size_t source_count;
    const char *const *names; // With names_only: the tensors that the model needs.
    size_t name_count;
    // `unused` is a tensor of the checkpoint that the model replaces by `tied`. Their values should
    // be equal. NULL: there is none.
    const struct evq_tensor *unused, *tied;
    // Other tensors that the model does not use, "a, b, c"; "": there are none.
    const char *ignored;
    int32_t inputs;     // Values of a sample; 1 if the model reads tokens.
    int32_t outputs;    // Number of classes, of values, or of tokens in the vocabulary.
    int32_t vocabulary; // Number of tokens that the model reads; 0: it reads samples.
    int32_t types;      // Number of token types; 0: the model does not read types.
    int32_t padding;    // A token that no text may contain; -1: there is none.
    int32_t context;    // Longest sequence of tokens; 0: the model reads samples.
    // An image goes through the model as a sequence of patches. channels 0: it reads no images.
    struct evq_patches patches;
};

struct evq_model_request {
    const struct evq_checkpoint *checkpoint;
    const struct evq_task_config *task; // The task with its `model` options.
    // The task sets kind and its own fields; the family fills in `in`, `n` and the rest.
    struct evq_op head;
    int32_t rows_max;
    int32_t length_max; // Longest sequence of a batch; 0: the context, but at most rows_max.
    // For decoders only: the model gets the names of tensors, and no tensor is searched.
    bool names_only;
};

struct evq_decoder_kind;

struct evq_model_family {
    const char *name;
    const char *const *architectures; // Names in config.json, NULL-terminated; NULL: none.
    // A decoder or an encoder (worker/models/decoder.h). It needs none of the next three.
    const struct evq_decoder_kind *decoder;
    const char *const *options; // Keys of `model` that the family knows, NULL-terminated.
    /* Checks the values of the `model` options. The keys were checked before. */
    enum evq_status (*check)(const struct evq_task_config *task, struct evq_error *err);
    enum evq_status (*build)(const struct evq_model_request *request, struct evq_model *model,
                             struct evq_error *err);
    // Other models have the same tensor names but compute differently, so no other type can be
    // forced to this family.
    bool own_types_only;
};

extern const struct evq_model_family evq_model_mlp;
extern const struct evq_model_family evq_model_arcee;
extern const struct evq_model_family evq_model_bert;
extern const struct evq_model_family evq_model_cohere;
extern const struct evq_model_family evq_model_cohere2;
extern const struct evq_model_family evq_model_distilbert;
extern const struct evq_model_family evq_model_exaone4;
extern const struct evq_model_family evq_model_gemma;
extern const struct evq_model_family evq_model_gemma2;
extern const struct evq_model_family evq_model_gemma3;
extern const struct evq_model_family evq_model_glm;
extern const struct evq_model_family evq_model_glm4;
extern const struct evq_model_family evq_model_gpt2;
extern const struct evq_model_family evq_model_gpt_neox;
extern const struct evq_model_family evq_model_gpt_oss;
extern const struct evq_model_family evq_model_granite;
extern const struct evq_model_family evq_model_llama;
extern const struct evq_model_family evq_model_ministral3;
extern const struct evq_model_family evq_model_mistral;
extern const struct evq_model_family evq_model_mixtral;
extern const struct evq_model_family evq_model_modernbert;
extern const struct evq_model_family evq_model_olmo2;
extern const struct evq_model_family evq_model_olmo3;
extern const struct evq_model_family evq_model_olmoe;
extern const struct evq_model_family evq_model_phi3;
extern const struct evq_model_family evq_model_qwen2;
extern const struct evq_model_family evq_model_qwen3;
extern const struct evq_model_family evq_model_qwen3_moe;
extern const struct evq_model_family evq_model_roberta;
extern const struct evq_model_family evq_model_seed_oss;
extern const struct evq_model_family evq_model_smollm3;
extern const struct evq_model_family evq_model_stablelm;
extern const struct evq_model_family evq_model_starcoder2;
extern const struct evq_model_family evq_model_vit;

/*
 * The family is the option `family`; otherwise the one that config.json beside the weights names;
 * otherwise what the checkpoint itself tells (nanoGPT); otherwise "mlp". The checkpoint must stay
 * open while the model is used. EVQ_E_INVALID, EVQ_E_UNSUPPORTED, EVQ_E_NOT_FOUND: the message
 * names the tensor or option and what was expected. Free it with evq_model_free().
 */
enum evq_status evq_model_build(const struct evq_model_request *request,
                                struct evq_model **ret_model,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_model_free(struct evq_model *model); // Accepts NULL.

/* Checks the task's `model` options before there is a checkpoint. EVQ_E_INVALID. */
enum evq_status evq_model_check(const struct evq_task_config *task,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether both models take the same values from the same tensors, so that loaded weights serve
 * both. */
bool evq_model_same_weights(const struct evq_model *a, const struct evq_model *b);

#endif
