#include "shared/checkpoint/tensor_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/tensor_range.h"

static enum evq_status check_box(const struct evq_tensor *tensor,
                                 const struct evq_tensor_piece *piece, uint64_t *ret_elements,
                                 struct evq_error *err)
{
    uint64_t elements = 1;

    for (int32_t i = 0; i < tensor->rank; i++) {
        const int64_t length = piece->stored.shape[i];
        if (length < 0 || piece->begin[i] < 0 || length > tensor->shape[i] ||
            piece->begin[i] > tensor->shape[i] - length) {
            return evq_error_set(err, EVQ_E_CORRUPT,
                                 "a piece reaches from %lld over %lld of the %lld in dimension %d",
                                 (long long)piece->begin[i], (long long)length,
                                 (long long)tensor->shape[i], (int)i);
        }
        if (__builtin_mul_overflow(elements, (uint64_t)length, &elements)) {
            return evq_error_set(err, EVQ_E_CORRUPT, "the shape of a piece overflows");
        }
    }
    *ret_elements = elements;
    return EVQ_OK;
}

static bool overlap(const struct evq_tensor_piece *a, const struct evq_tensor_piece *b,
                    int32_t rank)
{
    for (int32_t i = 0; i < rank; i++) {
        if (a->begin[i] + a->stored.shape[i] <= b->begin[i] ||
            b->begin[i] + b->stored.shape[i] <= a->begin[i]) {
            return false;
        }
    }
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const struct evq_tensor_piece *left = *(const struct evq_tensor_piece *const *)a;
    const struct evq_tensor_piece *right = *(const struct evq_tensor_piece *const *)b;

    return left->begin[0] < right->begin[0] ? -1 : left->begin[0] > right->begin[0];
}

/* Checks that no pieces overlap. They are sorted by their first dimension, so that few pairs need a
 * comparison. */
static enum evq_status check_apart(const struct evq_tensor *tensor, struct evq_error *err)
{
    const struct evq_tensor_piece **order =
        malloc(tensor->piece_count * sizeof(struct evq_tensor_piece *));
    enum evq_status status = EVQ_OK;

    if (order == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu pieces", tensor->piece_count);
    }
    for (size_t i = 0; i < tensor->piece_count; i++) {
        order[i] = &tensor->pieces[i];
    }
    if (tensor->rank > 0) {
        qsort(order, tensor->piece_count, sizeof(struct evq_tensor_piece *), by_begin);
    }
    for (size_t i = 0; i < tensor->piece_count && status == EVQ_OK; i++) {
        for (size_t k = i + 1; k < tensor->piece_count && status == EVQ_OK; k++) {
            if (tensor->rank > 0 &&
                order[k]->begin[0] >= order[i]->begin[0] + order[i]->stored.shape[0]) {
                break; // No later piece begins before this one ends.
            }
            if (overlap(order[i], order[k], tensor->rank)) {
                status = evq_error_set(err, EVQ_E_CORRUPT, "two of its pieces overlap");
            }
        }
    }
    free(order);
    return status;
}

enum evq_status evq_tensor_pieces_check(const struct evq_tensor *tensor, struct evq_error *err)
{
    uint64_t filled = 0;
    size_t elements = 0;

    if (tensor->piece_count > EVQ_TENSOR_PIECES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "%zu pieces, allowed %d", tensor->piece_count,
                             EVQ_TENSOR_PIECES_MAX);
    }
    if (!evq_tensor_elements(tensor, &elements)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "its shape overflows");
    }
    for (size_t i = 0; i < tensor->piece_count; i++) {
        uint64_t held = 0;
        enum evq_status status = check_box(tensor, &tensor->pieces[i], &held, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (held == 0 || held > elements - filled) {
            return evq_error_set(err, EVQ_E_CORRUPT, "%s",
                                 held == 0 ? "a piece is empty" : "two of its pieces overlap");
        }
        filled += held;
    }
    if (filled != elements) {
        return evq_error_set(err, EVQ_E_CORRUPT, "its pieces hold %llu of its %zu elements",
                             (unsigned long long)filled, elements);
    }
    return check_apart(tensor, err);
}

/*
 * Iterates over a piece in rows of elements that are adjacent both in the piece and in the tensor.
 */
struct rows {
    const struct evq_tensor *tensor;
    const struct evq_tensor_piece *piece;
    size_t run;
    int32_t rank; // Number of dimensions above the rows.
    int64_t index[EVQ_TENSOR_RANK_MAX];
};

static void rows_start(struct rows *rows, const struct evq_tensor *tensor,
                       const struct evq_tensor_piece *piece)
{
    *rows = (struct rows){.tensor = tensor, .piece = piece, .run = 1, .rank = tensor->rank};
    while (rows->rank > 0) {
        const int32_t last = rows->rank - 1;
        rows->run *= (size_t)piece->stored.shape[last]; // No overflow: the elements were counted.
        rows->rank = last;
        if (piece->stored.shape[last] != tensor->shape[last]) {
            break; // The rest of the tensor's row belongs to other pieces.
        }
    }
}

/* Position of the current row in the tensor, in elements. */
static size_t rows_place(const struct rows *rows)
{
    size_t place = 0;

    for (int32_t i = 0; i < rows->tensor->rank; i++) {
        const int64_t inside = i < rows->rank ? rows->index[i] : 0;
        place = place * (size_t)rows->tensor->shape[i] + (size_t)(rows->piece->begin[i] + inside);
    }
    return place;
}

static bool rows_next(struct rows *rows)
{
    for (int32_t i = rows->rank - 1; i >= 0; i--) {
        if (++rows->index[i] < rows->piece->stored.shape[i]) {
            return true;
        }
        rows->index[i] = 0;
    }
    return false;
}

static enum evq_status read_piece(const struct evq_checkpoint *checkpoint,
                                  const struct evq_tensor *tensor,
                                  const struct evq_tensor_piece *piece, uint8_t *out, size_t size,
                                  struct evq_error *err)
{
    struct rows rows;
    size_t elements = 0;

    rows_start(&rows, tensor, piece);
    if (!evq_tensor_elements(&piece->stored, &elements)) {
        return evq_error_set(err, EVQ_E_BUG, "a piece that was not checked");
    }
    const size_t bytes = elements * size; // Cannot overflow: a piece is not larger than its tensor.
    if (rows.run == elements) {
        return evq_tensor_range_read(checkpoint, &piece->stored, out + rows_place(&rows) * size,
                                     bytes, size, err);
    }
    uint8_t *box = malloc(bytes);
    if (box == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
    }
    enum evq_status status =
        evq_tensor_range_read(checkpoint, &piece->stored, box, bytes, size, err);
    if (status == EVQ_OK) {
        const uint8_t *at = box;
        do {
            memcpy(out + rows_place(&rows) * size, at, rows.run * size);
            at += rows.run * size;
        } while (rows_next(&rows));
    }
    free(box);
    return status;
}

enum evq_status evq_tensor_pieces_read(const struct evq_checkpoint *checkpoint,
                                       const struct evq_tensor *tensor, void *out, size_t size,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < tensor->piece_count && status == EVQ_OK; i++) {
        status = read_piece(checkpoint, tensor, &tensor->pieces[i], out, size, err);
    }
    return status;
}
