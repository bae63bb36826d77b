#include "worker/loader/load_list.h"

#include <stdlib.h>

#include "shared/checkpoint/digest.h"
#include "worker/loader/dequantise.h"

#define ALIGNMENT    64
#define UNUSED_MAX   4096 // Most unused tensors that are hashed while the others load.
#define UNUSED_BYTES ((uint64_t)64 << 10) // Smaller unused tensors are hashed at the end.

static enum evq_status add(struct evq_load_list *list, const struct evq_load_piece *piece,
                           struct evq_error *err)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 256 : 2 * list->capacity;
        struct evq_load_piece *grown = realloc(list->pieces, capacity * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "%zu pieces of weights", capacity);
        }
        list->pieces = grown;
        list->capacity = capacity;
    }
    list->pieces[list->count++] = *piece;
    list->bytes += piece->bytes;
    list->room_max = piece->room > list->room_max ? piece->room : list->room_max;
    return EVQ_OK;
}

/* Finds the type in which the backend accepts the tensor's bytes unchanged; false: there is none.
 * Plans of samples are small, so a backend needs only fp32 for them. */
static bool own_type(const struct evq_model *model, const struct evq_tensor *tensor,
                     enum evq_weight_type *ret_type)
{
    *ret_type = EVQ_WEIGHT_F32;
    switch (tensor->dtype) {
    case EVQ_DTYPE_F32:
        return true;
    case EVQ_DTYPE_F16:
        *ret_type = model->plan.length_max > 0 ? EVQ_WEIGHT_F16 : EVQ_WEIGHT_F32;
        return model->plan.length_max > 0;
    case EVQ_DTYPE_BF16:
        *ret_type = model->plan.length_max > 0 ? EVQ_WEIGHT_BF16 : EVQ_WEIGHT_F32;
        return model->plan.length_max > 0;
    default:
        return false;
    }
}

static size_t up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Makes a piece of a contiguous tensor fp32 if the backend does not accept it as it is. */
static void set_type(const struct evq_model *model, struct evq_load_piece *piece)
{
    const struct evq_source *source = piece->source;

    piece->room = up((size_t)piece->bytes);
    piece->convert =
        !own_type(model, piece->tensor, &piece->type) || source->kind != EVQ_SOURCE_TENSOR;
    if (piece->convert) {
        piece->type = EVQ_WEIGHT_F32;
        piece->room += up(evq_dequantise_values(source, piece->bytes) * sizeof(float)) +
                       evq_dequantise_room(source, piece->bytes);
    }
}

/* Adds an item of a tensor's first dimension as one piece. */
static enum evq_status add_part(const struct evq_model *model, const struct evq_source *source,
                                struct evq_load_list *list, struct evq_error *err)
{
    const struct evq_tensor *tensor = source->tensor;
    const uint64_t bytes = tensor->bytes / (uint64_t)source->parts;
    struct evq_load_piece piece = {.kind = EVQ_LOAD_BYTES,
                                   .source = source,
                                   .count = 1,
                                   .tensor = tensor,
                                   .at = bytes * (uint64_t)source->part,
                                   .bytes = bytes,
                                   .first_row = source->first_row,
                                   .rows = source->rows};

    if (!tensor->contiguous) {
        return evq_error_set(
            err, EVQ_E_UNSUPPORTED,
            "tensor '%s' holds %d matrices and is not stored in one piece: convert "
            "the checkpoint to safetensors first",
            tensor->name, (int)source->parts);
    }
    piece.unhashed = evq_digest_block_bytes(tensor) != bytes;
    set_type(model, &piece);
    return add(list, &piece, err);
}

/* Adds a contiguous tensor in whole blocks of its digest, or as one piece if the backend wants
 * that. */
static enum evq_status add_bytes(const struct evq_model *model, const struct evq_source *source,
                                 struct evq_load_list *list, struct evq_error *err)
{
    const struct evq_tensor *tensor = source->tensor;
    const bool cut = !source->transposed && model->plan.length_max > 0;
    const uint64_t block = evq_digest_block_bytes(tensor);
    const uint64_t row = tensor->bytes / (uint64_t)source->rows;
    const uint64_t blocks = EVQ_LOAD_PIECE_BYTES / block;
    const uint64_t step = !cut ? tensor->bytes : blocks > 0 ? blocks * block : block;
    struct evq_load_piece piece = {
        .kind = EVQ_LOAD_BYTES, .source = source, .count = 1, .tensor = tensor};
    enum evq_status status = EVQ_OK;

    for (uint64_t at = 0; at < tensor->bytes && status == EVQ_OK; at += step) {
        const uint64_t left = tensor->bytes - at;
        piece.at = at;
        piece.bytes = left < step ? left : step;
        piece.rows = cut ? (int32_t)(piece.bytes / row) : source->rows;
        piece.first_row = source->first_row + (cut ? (int32_t)(at / row) : 0);
        set_type(model, &piece);
        status = add(list, &piece, err);
    }
    return status;
}

static enum evq_status add_values(const struct evq_model *model, const struct evq_source *source,
                                  struct evq_load_list *list, struct evq_error *err)
{
    const struct evq_tensor *tensor = source->tensor;
    const size_t values = (size_t)source->rows * (size_t)model->plan.slots[source->slot].columns;
    struct evq_load_piece piece = {.kind = EVQ_LOAD_VALUES,
                                   .source = source,
                                   .count = 1,
                                   .tensor = tensor,
                                   .first_row = source->first_row,
                                   .rows = source->rows};

    piece.convert = !own_type(model, tensor, &piece.type) || tensor->merge != NULL ||
                    source->kind == EVQ_SOURCE_ONE_PLUS;
    piece.type = piece.convert ? EVQ_WEIGHT_F32 : piece.type;
    piece.room = values * sizeof(float);
    piece.bytes = values * evq_dtype_bytes(tensor->dtype);
    return add(list, &piece, err);
}

static enum evq_status add_vector(const struct evq_model *model, const struct evq_source *source,
                                  size_t count, struct evq_load_list *list, struct evq_error *err)
{
    const size_t columns = (size_t)model->plan.slots[source->slot].columns;
    struct evq_load_piece piece = {.kind = EVQ_LOAD_VECTOR,
                                   .source = source,
                                   .count = count,
                                   .rows = 1,
                                   .room = columns * sizeof(float)};

    for (size_t i = 0; i < count; i++) {
        piece.bytes += source[i].tensor->bytes;
    }
    return add(list, &piece, err);
}

/* Whether the tensor's bytes are loaded anyway, under this name or one that it is tied to. */
static bool is_used(const struct evq_model *model, const struct evq_tensor *tensor)
{
    for (size_t i = 0; i < model->source_count; i++) {
        const struct evq_tensor *used = model->sources[i].tensor;
        if (used == tensor || (used != NULL && used->contiguous && used->file == tensor->file &&
                               used->offset == tensor->offset)) {
            return true;
        }
    }
    return false;
}

/* Adds tensors that only the digest needs, so that the same threads read them. */
static enum evq_status add_unused(const struct evq_checkpoint *checkpoint,
                                  const struct evq_model *model, struct evq_load_list *list,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0, found = 0; i < checkpoint->tensor_count && found < UNUSED_MAX; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        const uint64_t block = evq_digest_block_bytes(tensor);
        if (!tensor->contiguous || tensor->bytes < UNUSED_BYTES || block > EVQ_LOAD_PIECE_BYTES ||
            is_used(model, tensor)) {
            continue;
        }
        const uint64_t step = EVQ_LOAD_PIECE_BYTES / block * block;
        for (uint64_t at = 0; at < tensor->bytes && status == EVQ_OK; at += step) {
            const uint64_t left = tensor->bytes - at;
            const struct evq_load_piece piece = {.kind = EVQ_LOAD_DIGEST,
                                                 .tensor = tensor,
                                                 .at = at,
                                                 .bytes = left < step ? left : step,
                                                 .room = (size_t)step};
            status = add(list, &piece, err);
        }
        found++;
    }
    return status;
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

enum evq_status evq_load_list_make(const struct evq_checkpoint *checkpoint,
                                   const struct evq_model *model, struct evq_load_list *list,
                                   struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    *list = (struct evq_load_list){0};
    for (size_t i = 0, step = 1; i < model->source_count && status == EVQ_OK; i += step) {
        const struct evq_source *source = &model->sources[i];
        step = 1;
        if (model->plan.slots[source->slot].rows == 1) {
            step = sources_of_slot(model, i);
            status = add_vector(model, source, step, list, err);
        } else if (source->parts > 0) {
            status = add_part(model, source, list, err);
        } else if (source->tensor->contiguous) {
            status = add_bytes(model, source, list, err);
        } else {
            status = add_values(model, source, list, err);
        }
    }
    return status == EVQ_OK ? add_unused(checkpoint, model, list, err) : status;
}

void evq_load_list_free(struct evq_load_list *list)
{
    free(list->pieces);
    *list = (struct evq_load_list){0};
}
