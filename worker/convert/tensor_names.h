/*
 * Chooses which tensors of a checkpoint belong to the model, and their names in the new file.
 * Removes prefixes that trainers add, and leaves out tensors of other modules. One thread.
 */
#ifndef EVQ_WORKER_CONVERT_TENSOR_NAMES_H
#define EVQ_WORKER_CONVERT_TENSOR_NAMES_H

#include "worker/convert/safetensors_write.h"

struct evq_tensor_names_request {
    const struct evq_checkpoint *checkpoint;
    const struct evq_checkpoint *base; // Weights of the model's base; NULL: there are none.
    const char *config_path;           // The model's config.json.
    bool base_config;                  // config_path is that of base, so the shapes must be equal.
};

/*
 * The model's names are those that the native engine expects by config.json. If the engine does not
 * know the family, they are those of the base. Without a base, they are all names of the
 * checkpoint, without prefixes such as module. and _orig_mod. An adapter has the names of its base.
 * The texts are in arena. EVQ_E_INVALID names a tensor that is missing or has another shape.
 */
enum evq_status evq_tensor_names_choose(const struct evq_tensor_names_request *request,
                                        struct evq_arena *arena,
                                        struct evq_named_tensor **ret_tensors, size_t *ret_count,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

#endif
