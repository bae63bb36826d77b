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
        read_vector(checkpoint, source->tensor, 1.0f, count, weight, bytes, err);
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

static size_t source_values(const struct evq_model *model, const struct evq_source *source)
{
    const struct evq_weight_slot *slot = &model->plan.slots[source->slot];

    return (size_t)source->rows * (slot->rows == 1 ? 1 : (size_t)slot->columns);
}

/* Room for the largest tensor as fp32, or a whole slot of one row and the four vectors of a norm.
 */
static enum evq_status stage_bytes(const struct evq_model *model, size_t *ret_bytes,
                                   struct evq_error *err)
{
    size_t most = 1;

    for (size_t i = 0; i < model->source_count; i++) {
        const struct evq_source *source = &model->sources[i];
        const struct evq_weight_slot *slot = &model->plan.slots[source->slot];
        const size_t values =
            slot->rows == 1 ? 4 * (size_t)slot->columns : source_values(model, source);
        most = values > most ? values : most; // evq_plan_check() bounds it far below 2^64.
    }
    return evq_size_mul(most, sizeof(float), ret_bytes)
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_NOMEM, "weights overflow");
}

static enum evq_status read_values(const struct evq_checkpoint *checkpoint,
                                   const struct evq_source *source, size_t count, float *stage,
                                   int64_t *bytes, struct evq_error *err)
{
    if (source->kind == EVQ_SOURCE_NORM_SCALE || source->kind == EVQ_SOURCE_NORM_SHIFT) {
        return read_norm(checkpoint, source, count, stage, bytes, err);
    }
    *bytes += (int64_t)source->tensor->bytes;
    const enum evq_status status =
        evq_checkpoint_read_f32(checkpoint, source->tensor, stage, count, err);
    for (size_t i = 0; source->kind == EVQ_SOURCE_ONE_PLUS && i < count && status == EVQ_OK; i++) {
        stage[i] += 1.0f;
    }
    return status;
}

/* The type in which the backend takes the tensor's bytes as they are; false: none. */
static bool own_type(const struct evq_model *model, const struct evq_source *source,
                     enum evq_weight_type *ret_type)
{
    const struct evq_tensor *tensor = source->tensor;
    const bool plain = source->kind == EVQ_SOURCE_TENSOR && tensor->contiguous &&
                       model->plan.slots[source->slot].rows > 1 && model->plan.length_max > 0;

    switch (plain ? tensor->dtype : EVQ_DTYPE_OTHER) {
    case EVQ_DTYPE_F32:
        *ret_type = EVQ_WEIGHT_F32;
        return true;
    case EVQ_DTYPE_F16:
        *ret_type = EVQ_WEIGHT_F16;
        return true;
    case EVQ_DTYPE_BF16:
        *ret_type = EVQ_WEIGHT_BF16;
        return true;
    default:
        return false;
    }
}

/* One tensor into its rows of a matrix. */
static enum evq_status fill_rows(const struct evq_backend_ops *backend, void *state,
                                 const struct evq_checkpoint *checkpoint,
                                 const struct evq_model *model, const struct evq_source *source,
                                 void *stage, int64_t *bytes, struct evq_error *err)
{
    struct evq_weight_blob blob = {.values = stage,
                                   .type = EVQ_WEIGHT_F32,
                                   .first_row = source->first_row,
                                   .rows = source->rows,
                                   .transposed = source->transposed};
    enum evq_status status = EVQ_OK;

    if (own_type(model, source, &blob.type)) {
        *bytes += (int64_t)source->tensor->bytes;
        status = evq_checkpoint_read_raw(checkpoint, source->tensor, stage,
                                         (size_t)source->tensor->bytes, err);
    } else {
        status = read_values(checkpoint, source, source_values(model, source), stage, bytes, err);
    }
    return status == EVQ_OK ? backend->put(state, source->slot, &blob, err) : status;
}

/* All tensors of a slot of one row, one after another. */
static enum evq_status fill_vector(const struct evq_backend_ops *backend, void *state,
                                   const struct evq_checkpoint *checkpoint,
                                   const struct evq_source *source, size_t count, float *stage,
                                   int64_t *bytes, struct evq_error *err)
{
    const struct evq_weight_blob blob = {.values = stage, .type = EVQ_WEIGHT_F32, .rows = 1};
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = read_values(checkpoint, &source[i], (size_t)source[i].rows,
                             stage + source[i].first_row, bytes, err);
    }
    return status == EVQ_OK ? backend->put(state, source->slot, &blob, err) : status;
}

static size_t sources_of_slot(const struct evq_model *model, size_t first)
{
    size_t count = 1;

    while (first + count < model->source_count &&
           model->sources[first + count].slot == model->sources[first].slot) {
        count++;
    }
    return count;
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
    for (size_t i = 0, count = 1; i < model->source_count && status == EVQ_OK; i += count) {
        const struct evq_source *source = &model->sources[i];
        const bool vector = model->plan.slots[source->slot].rows == 1;
        count = vector ? sources_of_slot(model, i) : 1;
        status = vector ? fill_vector(backend, state, checkpoint, source, count, stage, &read, err)
                        : fill_rows(backend, state, checkpoint, model, source, stage, &read, err);
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
