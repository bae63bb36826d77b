#include "kernels/cpu/weights.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

// Values that are converted at a time. Their share of a panel fits into the first-level cache.
#define PIECE 128

static bool is_matrix(const struct evq_plan *plan, int32_t slot)
{
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        const bool product = op->kind == EVQ_OP_GEMM || op->kind == EVQ_OP_SCORE;
        if (product && op->weight == slot) {
            return true;
        }
        if (op->kind == EVQ_OP_EXPERTS &&
            ((slot >= op->weight && slot - op->weight < op->experts) ||
             (slot >= op->down && slot - op->down < op->experts))) {
            return true;
        }
    }
    return false;
}

static size_t bytes_of(const struct evq_weight *weight, int32_t panel)
{
    const size_t panels = ((size_t)weight->rows + (size_t)panel - 1) / (size_t)panel;
    const size_t columns = (size_t)weight->columns;

    switch (weight->form) {
    case EVQ_WEIGHT_PANELS:
        return panels * (size_t)panel * columns * sizeof(float);
    case EVQ_WEIGHT_PANELS_BF16:
        return panels * (size_t)panel * ((columns + 1) / 2) * 2 * sizeof(uint16_t);
    default:
        return ((size_t)weight->rows * columns + EVQ_KERNELS_PAD) * sizeof(float);
    }
}

enum evq_status evq_weights_prepare(struct evq_weights *weights, const struct evq_plan *plan,
                                    struct evq_memory *memory, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (weights->count > plan->slot_count) {
        evq_memory_release(memory, &weights->items[--weights->count].block);
    }
    struct evq_weight *grown =
        realloc(weights->items, (plan->slot_count > 0 ? plan->slot_count : 1) * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu weights", plan->slot_count);
    }
    weights->items = grown;
    for (; weights->count < plan->slot_count; weights->count++) {
        weights->items[weights->count] = (struct evq_weight){0};
    }
    for (size_t i = 0; i < plan->slot_count && status == EVQ_OK; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        struct evq_weight *weight = &weights->items[i];
        const enum evq_weight_form form = !is_matrix(plan, (int32_t)i) ? EVQ_WEIGHT_ROWS
                                          : plan->compute == EVQ_COMPUTE_BF16
                                              ? EVQ_WEIGHT_PANELS_BF16
                                              : EVQ_WEIGHT_PANELS;
        if (weight->block.data != NULL && weight->rows == slot->rows &&
            weight->columns == slot->columns && weight->form == form) {
            continue; // The slot keeps its values too.
        }
        evq_memory_release(memory, &weight->block);
        weight->rows = slot->rows;
        weight->columns = slot->columns;
        weight->form = form;
        weight->rows_put = 0;
        status = evq_memory_resize(memory, &weight->block, bytes_of(weight, weights->panel),
                                   slot->name, err);
    }
    return status;
}

void evq_weights_release(struct evq_weights *weights, struct evq_memory *memory)
{
    for (size_t i = 0; i < weights->count; i++) {
        evq_memory_release(memory, &weights->items[i].block);
    }
    free(weights->items);
    weights->items = NULL;
    weights->count = 0;
}

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The conversion is exact, because every half is a float. Multiplying by 2^112 corrects the
 * exponent, also for denormals. */
static float from_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t size = (uint32_t)(half & 0x7fff) << 13;

    if (size >= 0x0f800000u) {
        return from_bits(sign | size | 0x7f800000u); // Infinity or NaN.
    }
    return from_bits(sign) + from_bits(size) * (sign != 0 ? -0x1p112f : 0x1p112f);
}

/* Rounds to the nearest, ties to even. A NaN stays a NaN. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Returns `count` values of the blob from index `at` on as floats: in place, or converted into out.
 */
static const float *floats_at(const struct evq_weight_blob *blob, size_t at, int32_t count,
                              float *out)
{
    const uint16_t *shorts = (const uint16_t *)blob->values + at;

    switch (blob->type) {
    case EVQ_WEIGHT_F16:
        for (int32_t i = 0; i < count; i++) {
            out[i] = from_half(shorts[i]);
        }
        return out;
    case EVQ_WEIGHT_BF16:
        for (int32_t i = 0; i < count; i++) {
            out[i] = from_bits((uint32_t)shorts[i] << 16);
        }
        return out;
    default:
        return (const float *)blob->values + at;
    }
}

/* The position of the value of one row and column, in floats or in bf16 values. */
static size_t panel_at(const struct evq_weight *weight, int32_t panel, int32_t row, int32_t column)
{
    const size_t columns = (size_t)weight->columns;
    const size_t lane = (size_t)(row % panel);

    if (weight->form == EVQ_WEIGHT_PANELS_BF16) {
        const size_t pairs = (size_t)(row / panel) * ((columns + 1) / 2) + (size_t)(column / 2);
        return (pairs * (size_t)panel + lane) * 2 + (size_t)(column % 2);
    }
    return ((size_t)(row / panel) * columns + (size_t)column) * (size_t)panel + lane;
}

/* Stores `count` values of one row from a column on. It uses few instructions per value, because
 * this is half of the cost of loading a model. */
static void store_row(const struct evq_weight *weight, int32_t panel, int32_t row, int32_t from,
                      int32_t count, const float *values)
{
    float *floats = weight->block.data;
    uint16_t *shorts = weight->block.data;
    const size_t step = (size_t)panel;

    if (weight->form == EVQ_WEIGHT_ROWS) {
        memcpy(floats + (size_t)row * (size_t)weight->columns + (size_t)from, values,
               (size_t)count * sizeof(float));
    } else if (weight->form == EVQ_WEIGHT_PANELS) {
        float *out = floats + panel_at(weight, panel, row, from);
        for (int32_t c = 0; c < count; c++) {
            out[(size_t)c * step] = values[c];
        }
    } else {
        // from is even, so a pair begins here.
        uint16_t *out = shorts + panel_at(weight, panel, row, from);
        for (int32_t c = 0; c < count; c++) {
            out[(size_t)(c / 2) * 2 * step + (size_t)(c % 2)] = to_bf16(values[c]);
        }
    }
}

/* Stores `count` values of one column from a row on, all in one panel. */
static void store_column(const struct evq_weight *weight, int32_t panel, int32_t row, int32_t count,
                         int32_t column, const float *values)
{
    float *floats = weight->block.data;
    uint16_t *shorts = weight->block.data;

    if (weight->form == EVQ_WEIGHT_ROWS) {
        float *out = floats + (size_t)row * (size_t)weight->columns + (size_t)column;
        for (int32_t r = 0; r < count; r++) {
            out[(size_t)r * (size_t)weight->columns] = values[r];
        }
    } else if (weight->form == EVQ_WEIGHT_PANELS) {
        memcpy(floats + panel_at(weight, panel, row, column), values,
               (size_t)count * sizeof(float));
    } else {
        uint16_t *out = shorts + panel_at(weight, panel, row, column);
        for (int32_t r = 0; r < count; r++) {
            out[2 * (size_t)r] = to_bf16(values[r]);
        }
    }
}

struct put_run {
    struct evq_weight *weight;
    const struct evq_weight_blob *blob;
    int32_t panel;
    int32_t first_panel;
};

/* Stores the rows of the blob that belong to one panel. */
static void put_panel(void *context, int32_t part, int32_t thread)
{
    const struct put_run *run = context;
    const struct evq_weight_blob *blob = run->blob;
    struct evq_weight *weight = run->weight;
    const int32_t start = (run->first_panel + part) * run->panel;
    const int32_t low = start > blob->first_row ? start : blob->first_row;
    const int32_t blob_end = blob->first_row + blob->rows;
    const int32_t high = start > blob_end - run->panel ? blob_end : start + run->panel;
    float piece[PIECE];

    (void)thread;
    if (blob->transposed) {
        for (int32_t c = 0; c < weight->columns; c++) {
            const size_t line = (size_t)c * (size_t)blob->rows;
            store_column(
                weight, run->panel, low, high - low, c,
                floats_at(blob, line + (size_t)(low - blob->first_row), high - low, piece));
        }
        return;
    }
    for (int32_t from = 0; from < weight->columns; from += PIECE) {
        const int32_t count = weight->columns - from < PIECE ? weight->columns - from : PIECE;
        for (int32_t row = low; row < high; row++) {
            const size_t line = (size_t)(row - blob->first_row) * (size_t)weight->columns;
            store_row(weight, run->panel, row, from, count,
                      floats_at(blob, line + (size_t)from, count, piece));
        }
    }
}

void evq_weights_put(struct evq_weight *weight, int32_t panel, const struct evq_weight_blob *blob,
                     struct evq_pool *pool)
{
    const int32_t last = blob->first_row + blob->rows - 1;
    struct put_run run = {
        .weight = weight, .blob = blob, .panel = panel, .first_panel = blob->first_row / panel};

    evq_pool_run(pool, put_panel, &run, last / panel - run.first_panel + 1);
    weight->rows_put = last + 1;
}

void evq_weights_row(const struct evq_weight *weight, int32_t panel, int32_t row, float *out)
{
    const float *floats = weight->block.data;
    const uint16_t *shorts = weight->block.data;

    if (weight->form == EVQ_WEIGHT_ROWS) {
        memcpy(out, floats + (size_t)row * (size_t)weight->columns,
               (size_t)weight->columns * sizeof(float));
        return;
    }
    for (int32_t c = 0; c < weight->columns; c++) {
        const size_t at = panel_at(weight, panel, row, c);
        out[c] =
            weight->form == EVQ_WEIGHT_PANELS ? floats[at] : from_bits((uint32_t)shorts[at] << 16);
    }
}
