/*
 * Makes the plan of a decoder: its operations, the slots of its weights, and the tensors that fill
 * them. It reads nothing of the checkpoint. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_DECODER_PLAN_H
#define EVQ_WORKER_MODELS_DECODER_PLAN_H

#include "worker/models/decoder.h"
#include "worker/models/weights.h"

struct evq_decoder_plan { // A plan while it is made.
    // The caller sets these.
    const struct evq_model_request *request;
    const struct evq_decoder *shape;
    const struct evq_decoder_names *names;
    struct evq_arena *arena;
    const char *inside; // names->inside, or "".
    const char *head;   // The name of the head.
    bool transposed;    // The layers' matrices are transposed.
    bool joined;        // All experts of a layer are in one tensor.
    bool packed;        // That tensor is MXFP4.
    // evq_decoder_plan_make() sets these.
    struct evq_op *ops;
    struct evq_weight_slot *slots;
    struct evq_wanted *wanted;
    size_t op_count, slot_count, wanted_count;
    size_t op_room, slot_room, wanted_room; // The arrays grow to more.
    bool failed;                            // Memory ran out.
};

/* Fills in the plan and the sizes of model, and plan->wanted. The first slot and the first wanted
 * tensor belong to the embedding. EVQ_E_NOMEM. */
enum evq_status evq_decoder_plan_make(struct evq_decoder_plan *plan, struct evq_model *model,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
