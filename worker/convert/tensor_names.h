/*
 * Which tensors of a checkpoint the model has, and under which names: the prefixes that trainers
 * add are stripped, and tensors of other modules are left out. One thread.
 */
#ifndef EVQ_WORKER_CONVERT_TENSOR_NAMES_H
#define EVQ_WORKER_CONVERT_TENSOR_NAMES_H

#include "worker/convert/safetensors_write.h"

struct evq_tensor_names_request {
    const struct evq_checkpoint *checkpoint;
    const struct evq_checkpoint *base; // Weights of the model's base; NULL: there are none.
    const char *config_path;           // The model's config.json.
    bool base_config;                  // It is the one of base, so the shapes must be equal too.
};

/*
 * The model's names are those that the native engine expects by config.json; of a family that it
 * does not know, those of the base; without a base, all names without module., _orig_mod. and
 * similar prefixes. An adapter has the names of its base. The texts are in arena. EVQ_E_INVALID
 * names a tensor that is missing or has another shape.
 */
enum evq_status evq_tensor_names_choose(const struct evq_tensor_names_request *request,
                                        struct evq_arena *arena,
                                        struct evq_named_tensor **ret_tensors, size_t *ret_count,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

#endif
