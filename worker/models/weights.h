/*
 * The tensors that a model wants, found in a checkpoint by their names and shapes: nothing is
 * guessed. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODEL_WEIGHTS_H
#define EVQ_WORKER_MODEL_WEIGHTS_H

#include "worker/models/model.h"

struct evq_wanted { // One tensor, and the rows of a slot that it fills.
    const char *name;
    int32_t slot;
    int32_t first_row, rows;   // As in struct evq_source.
    int32_t columns;           // 0: a vector of `rows` elements.
    bool transposed;           // The checkpoint has [columns, rows].
    enum evq_source_kind kind; // TENSOR or ONE_PLUS.
};

/* Tensors that a model leaves aside, as text for its user. */
struct evq_ignored {
    struct evq_arena *arena;
    const char *text;    // "" at first; NULL: out of memory.
    size_t named, count; // In text; of all.
};

/* Whether the option `ignore` names the tensor, or a beginning of its name. */
bool evq_weights_told_to_ignore(const struct evq_task_config *task, const char *name);
void evq_weights_ignore(struct evq_ignored *ignored, const struct evq_tensor *tensor);
/* Sets model->ignored; EVQ_E_NOMEM. */
enum evq_status evq_weights_tell_ignored(const struct evq_ignored *ignored, struct evq_model *model,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Finds all wanted under one prefix (the option `prefix`, else evq_checkpoint_find_prefix()) and
 * makes them the model's sources. Where `head_name` is not NULL it may be there beside them: the
 * model takes wanted[0] for it. buffers: ends of names that are no weights (".attn.bias"),
 * NULL-terminated. EVQ_E_NOT_FOUND: a tensor is missing; EVQ_E_INVALID: another shape, or one too
 * many, or one outside the prefix that may be the model's own head;
 * EVQ_E_UNSUPPORTED: not floating point. Each names tensor, file and what was expected.
 */
enum evq_status evq_weights_find(const struct evq_model_request *request,
                                 const struct evq_wanted *wanted, size_t count,
                                 const char *head_name, const char *const *buffers,
                                 struct evq_model *model, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
