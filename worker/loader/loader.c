#include "worker/loader/loader.h"

#include <math.h>
#include <string.h>

/* Fills out with `missing` where an optional tensor is not there. */
static enum evq_status read_vector(const struct evq_checkpoint *checkpoint,
                                   const struct evq_tensor *tensor, float missing, size_t count,
                                   float *out, int64_t *bytes, struct evq_error *err)
{
    if (tensor == NULL) {
        for (size_t i = 0; i < count; i++) {
            out[i] = missing;
        }
        return EVQ_OK;
    }
    *bytes += (int64_t)tensor->bytes;
    return evq_checkpoint_read_f32(checkpoint, tensor, out, count, err);
}

/* stage has room for four vectors: weight, bias, mean, variance; the slot's values are left in the
 * first. */
static enum evq_status read_norm(const struct evq_checkpoint *checkpoint,
                                 const struct evq_source *source, size_t count, float *stage,
                                 int64_t *bytes, struct evq_error *err)
{
    float *weight = stage;
    float *bias = stage + count;
    float *mean = stage + 2 * count;
    float *variance = stage + 3 * count;

    enum evq_status status =
        read_vector(checkpoint, source->weight, 1.0f, count, weight, bytes, err);
    if (status == EVQ_OK) {
        status = read_vector(checkpoint, source->bias, 0.0f, count, bias, bytes, err);
    }
    if (status == EVQ_OK) {
        status = read_vector(checkpoint, source->mean, 0.0f, count, mean, bytes, err);
    }
    if (status == EVQ_OK) {
        status = read_vector(checkpoint, source->variance, 1.0f, count, variance, bytes, err);
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        const double scale = (double)weight[i] / sqrt((double)variance[i] + source->eps);
        const double shift = (double)bias[i] - (double)mean[i] * scale;
        weight[i] = (float)(source->kind == EVQ_SOURCE_NORM_SCALE ? scale : shift);
    }
    return status;
}

static size_t slot_values(const struct evq_model *model, size_t slot)
{
    return (size_t)model->plan.slots[slot].rows * (size_t)model->plan.slots[slot].columns;
}

static enum evq_status stage_bytes(const struct evq_model *model, size_t *ret_bytes,
                                   struct evq_error *err)
{
    size_t most = 1;

    for (size_t i = 0; i < model->plan.slot_count; i++) {
        const size_t vectors = model->sources[i].kind == EVQ_SOURCE_TENSOR ? 1 : 4;
        const size_t values =
            slot_values(model, i) * vectors; // evq_plan_check() bounds it far below 2^64.
        most = values > most ? values : most;
    }
    return evq_size_mul(most, sizeof(float), ret_bytes)
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_NOMEM, "weights overflow");
}

enum evq_status evq_loader_fill(const struct evq_backend_ops *backend, void *state,
                                const struct evq_checkpoint *checkpoint,
                                const struct evq_model *model, char ret_digest[33],
                                int64_t *ret_bytes, struct evq_error *err)
{
    size_t bytes = 0;
    void *stage = NULL;
    int64_t read = 0;

    enum evq_status status = stage_bytes(model, &bytes, err);
    if (status == EVQ_OK) {
        status = backend->alloc(state, bytes, &stage, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < model->plan.slot_count && status == EVQ_OK; i++) {
        const struct evq_source *source = &model->sources[i];
        const size_t values = slot_values(model, i);
        if (source->kind == EVQ_SOURCE_TENSOR) {
            read += (int64_t)source->weight->bytes;
            status = evq_checkpoint_read_f32(checkpoint, source->weight, stage, values, err);
        } else {
            status = read_norm(checkpoint, source, values, stage, &read, err);
        }
        if (status == EVQ_OK) {
            const struct evq_weight_blob blob = {
                .values = stage, .type = EVQ_WEIGHT_F32, .rows = model->plan.slots[i].rows};
            status = backend->put(state, (int32_t)i, &blob, err);
        }
        if (status == EVQ_OK) {
            status = backend->settle(state, err);
        }
    }
    backend->free(state, stage);
    if (status == EVQ_OK) {
        status = evq_checkpoint_digest(checkpoint, ret_digest, err);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    if (status == EVQ_OK) {
        *ret_bytes = read;
    }
    return status;
}
