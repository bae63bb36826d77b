/*
 * Finds the tensors that a model needs in a checkpoint, by name and shape. Nothing is guessed. Not
 * for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_WEIGHTS_H
#define EVQ_WORKER_MODELS_WEIGHTS_H

#include "worker/models/model.h"
#include "worker/models/quantised.h"

#define EVQ_WANTED_RANK_MAX 4

struct evq_wanted { // One tensor, and the rows of a slot that it fills.
    const char *name;
    int32_t slot;
    int32_t first_row, rows; // As in struct evq_source.
    int32_t columns;         // 0: a vector of `rows` elements.
    // The tensor's dimensions, if it is not a matrix or a vector as above; otherwise shape[0] is 0.
    // The product of the dimensions is the number of values.
    int32_t shape[EVQ_WANTED_RANK_MAX + 1];
    bool transposed;           // The checkpoint stores [columns, rows].
    int32_t part, parts;       // As in struct evq_source: the tensor has one dimension more.
    enum evq_source_kind kind; // Not SCALED.
    const char *scale;         // MXFP4: the name of the scales.
};

/* The tensors that a model does not use, as text for the user. */
struct evq_ignored {
    struct evq_arena *arena;
    const char *text;    // Starts as ""; NULL: memory ran out.
    size_t named, count; // Number of tensors in the text, and of all.
};

/* Whether the option `ignore` contains the tensor's name or a prefix of it. */
bool evq_weights_told_to_ignore(const struct evq_task_config *task, const char *name);
void evq_weights_add_ignored(struct evq_ignored *ignored, const struct evq_tensor *tensor);
/* Sets model->ignored; EVQ_E_NOMEM. */
enum evq_status evq_weights_tell_ignored(const struct evq_ignored *ignored, struct evq_model *model,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Finds all wanted tensors under one prefix (the option `prefix`, otherwise
 * evq_checkpoint_find_prefix()) and makes them the model's sources. If head_name is not NULL, that
 * tensor may also be there; the model uses wanted[0] in its place. buffers: endings of names that
 * are not weights (".attn.bias"), NULL-terminated. EVQ_E_NOT_FOUND: a tensor is missing.
 * EVQ_E_INVALID: a tensor has another shape, is one too many, or is outside the prefix and may be
 * the model's own head. EVQ_E_UNSUPPORTED: it is not floating point, and not quantised in a way
 * that is handled. The message names tensor, file and what was expected.
 */
enum evq_status evq_weights_find(const struct evq_model_request *request,
                                 const struct evq_wanted *wanted, size_t count,
                                 const char *head_name, const char *const *buffers,
                                 const struct evq_quantised *quantised, struct evq_model *model,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
