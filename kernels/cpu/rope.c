#include "kernels/cpu/rope.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int32_t turned(const struct evq_op *op)
{
    return op->k != 0 ? op->k : op->n;
}

/* 0: all sequences use the same frequencies. */
static int32_t near_lines(const struct evq_op *op, int32_t positions)
{
    return op->far_frequencies != NULL && positions > op->near ? op->near : 0;
}

int32_t evq_rope_line(const struct evq_op *op, int32_t position, int32_t length)
{
    return op->far_frequencies != NULL && length > op->near ? op->near + position : position;
}

static bool fits(const struct evq_rope_table *table, const struct evq_op *op, int32_t positions)
{
    const size_t half = (size_t)(turned(op) / 2) * sizeof(float);
    const int32_t near = near_lines(op, positions);
    const char *kept = table->frequencies.data;

    return table->block.data != NULL && table->n == turned(op) && table->near == near &&
           table->lines == near + positions &&
           memcmp(&table->scale, &op->scale, sizeof(op->scale)) == 0 &&
           memcmp(kept, op->frequencies, half) == 0 &&
           (near == 0 || memcmp(kept + half, op->far_frequencies, half) == 0);
}

/* Angles are fp32, as in the reference implementations. */
static void fill(struct evq_rope_table *table)
{
    const int32_t half = table->n / 2;
    float *turns = table->block.data;

    for (int32_t line = 0; line < table->lines; line++) {
        const bool far = table->near > 0 && line >= table->near;
        const int32_t position = far ? line - table->near : line;
        const float *frequencies = (const float *)table->frequencies.data + (far ? half : 0);
        for (int32_t i = 0; i < half; i++) {
            const float angle = (float)position * frequencies[i];
            turns[i] = (float)cos((double)angle) * table->scale;
            turns[half + i] = (float)sin((double)angle) * table->scale;
        }
        turns += table->n;
    }
}

static enum evq_status make(struct evq_rope_table *table, const struct evq_op *op,
                            int32_t positions, struct evq_memory *memory, struct evq_error *err)
{
    const size_t line = (size_t)turned(op) * sizeof(float);
    const int32_t near = near_lines(op, positions);
    const size_t lines = (size_t)near + (size_t)positions;

    evq_memory_release(memory, &table->block);
    enum evq_status status =
        evq_memory_resize(memory, &table->frequencies, line, "rope frequencies", err);
    if (status == EVQ_OK) {
        // n is at most the number of a buffer's columns, so the plan's check bounds the product.
        status = evq_memory_resize(memory, &table->block, line * lines, "rope", err);
    }
    if (status == EVQ_OK) {
        table->n = turned(op);
        table->lines = (int32_t)lines;
        table->near = near;
        table->scale = op->scale;
        memcpy(table->frequencies.data, op->frequencies, line / 2);
        memcpy((char *)table->frequencies.data + line / 2,
               near > 0 ? op->far_frequencies : op->frequencies, line / 2);
        fill(table);
    }
    return status;
}

enum evq_status evq_rope_prepare(struct evq_rope *rope, const struct evq_plan *plan,
                                 struct evq_memory *memory, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t used = 0;
    struct evq_rope next = {.tables = calloc(plan->op_count + 1, sizeof(*next.tables)),
                            .of_op = calloc(plan->op_count + 1, sizeof(*next.of_op))};

    if (next.tables == NULL || next.of_op == NULL) {
        free(next.tables);
        free(next.of_op);
        return evq_error_set(err, EVQ_E_NOMEM, "rope of %zu operations", plan->op_count);
    }
    // Existing tables are tried first, so that a plan like the one before finds its own again.
    for (size_t i = 0; i < rope->count && i < plan->op_count; i++) {
        next.tables[i] = rope->tables[i];
        rope->tables[i] = (struct evq_rope_table){0};
        next.count++;
    }
    evq_rope_release(rope, memory);
    *rope = next;
    for (size_t i = 0; i < plan->op_count && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind != EVQ_OP_ROPE) {
            continue;
        }
        size_t t = 0;
        while (t < rope->count && !fits(&rope->tables[t], op, plan->length_max)) {
            t++;
        }
        if (t == rope->count) {
            t = used;
            status = make(&rope->tables[t], op, plan->length_max, memory, err);
        }
        used = t >= used ? t + 1 : used;
        rope->count = used > rope->count ? used : rope->count;
        rope->of_op[i] = t;
    }
    return status;
}

void evq_rope_release(struct evq_rope *rope, struct evq_memory *memory)
{
    for (size_t i = 0; i < rope->count; i++) {
        evq_memory_release(memory, &rope->tables[i].block);
        evq_memory_release(memory, &rope->tables[i].frequencies);
    }
    free(rope->tables);
    free(rope->of_op);
    *rope = (struct evq_rope){0};
}
