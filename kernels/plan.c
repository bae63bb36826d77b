#include "kernels/plan.h"

#include <limits.h>

#define PLAN_ITEMS_MAX    1000000            // Operations, slots, buffers.
#define PLAN_ELEMENTS_MAX ((int64_t)1 << 40) // Of one slot, or of one buffer with all its rows.

static bool is_head(const struct evq_op *op)
{
    return op->kind == EVQ_OP_CROSS_ENTROPY || op->kind == EVQ_OP_SQUARED_ERROR;
}

static bool slot_is(const struct evq_plan *plan, int32_t slot, int32_t rows, int32_t columns)
{
    return slot >= 0 && (size_t)slot < plan->slot_count && plan->slots[slot].rows == rows &&
           plan->slots[slot].columns == columns;
}

static bool vector_or_none(const struct evq_plan *plan, int32_t slot, int32_t columns)
{
    return slot == -1 || slot_is(plan, slot, 1, columns);
}

static bool buffer_holds(const struct evq_plan *plan, int32_t buffer, int32_t columns)
{
    return buffer >= 0 && buffer < plan->buffer_count && columns >= 1 &&
           columns <= plan->buffer_columns[buffer];
}

static const char *op_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    if (op->activation < 0 || op->activation >= EVQ_ACT_COUNT) {
        return "an unknown activation";
    }
    if (!buffer_holds(plan, op->in, op->kind == EVQ_OP_GEMM ? op->k : op->n)) {
        return "an input that does not fit its buffer";
    }
    if (op->in == 0 && plan->buffer_columns[0] != (op->kind == EVQ_OP_GEMM ? op->k : op->n)) {
        return "an input narrower than the batch";
    }
    if (is_head(op)) {
        return op->out == -1 && op->top_k >= 0 ? NULL : "a head with an output";
    }
    if (!buffer_holds(plan, op->out, op->n) || op->out == 0) {
        return "an output that does not fit its buffer";
    }
    if (op->kind == EVQ_OP_GEMM) {
        const bool fits =
            slot_is(plan, op->weight, op->n, op->k) && vector_or_none(plan, op->bias, op->n);
        return fits && op->in != op->out ? NULL : "a weight or bias of another shape";
    }
    const bool fits =
        vector_or_none(plan, op->weight, op->n) && vector_or_none(plan, op->bias, op->n);
    return fits ? NULL : "a weight or bias of another shape";
}

enum evq_status evq_plan_check(const struct evq_plan *plan, struct evq_error *err)
{
    if (plan->rows_max < 1 || plan->buffer_count < 1 || plan->buffer_count > PLAN_ITEMS_MAX ||
        plan->op_count > PLAN_ITEMS_MAX || plan->slot_count > PLAN_ITEMS_MAX) {
        return evq_error_set(err, EVQ_E_BUG, "plan of %zu operations for %d rows", plan->op_count,
                             (int)plan->rows_max);
    }
    for (int32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffer_columns[i] < 1 ||
            (int64_t)plan->buffer_columns[i] > PLAN_ELEMENTS_MAX / plan->rows_max) {
            return evq_error_set(err, EVQ_E_BUG, "plan: buffer %d has %d columns", (int)i,
                                 (int)plan->buffer_columns[i]);
        }
    }
    for (size_t i = 0; i < plan->slot_count; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        if (slot->rows < 1 || slot->columns < 1 ||
            (int64_t)slot->rows * slot->columns > PLAN_ELEMENTS_MAX) {
            return evq_error_set(err, EVQ_E_BUG, "plan: weight '%s' is %d x %d", slot->name,
                                 (int)slot->rows, (int)slot->columns);
        }
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        const char *fault =
            op->kind < 0 || op->kind >= EVQ_OP_COUNT ? "an unknown kind" : op_fault(plan, op);
        if (fault != NULL) {
            return evq_error_set(err, EVQ_E_BUG, "plan: operation %zu has %s", i, fault);
        }
    }
    return EVQ_OK;
}

static enum evq_status labels_check(const struct evq_batch *batch, int32_t classes,
                                    struct evq_error *err)
{
    for (int32_t r = 0; r < batch->rows; r++) {
        if (batch->labels[r] < 0 || batch->labels[r] >= classes) {
            return evq_error_set(err, EVQ_E_INVALID, "row %d has label %d, expected 0 to %d",
                                 (int)r, (int)batch->labels[r], (int)(classes - 1));
        }
    }
    return EVQ_OK;
}

enum evq_status evq_plan_batch_check(const struct evq_plan *plan, const struct evq_batch *batch,
                                     struct evq_error *err)
{
    if (batch->rows < 0 || batch->rows > plan->rows_max) {
        return evq_error_set(err, EVQ_E_BUG, "batch of %d rows for a plan of %d", (int)batch->rows,
                             (int)plan->rows_max);
    }
    if (batch->rows == 0) {
        return EVQ_OK;
    }
    bool missing = batch->inputs == NULL;
    enum evq_status status = EVQ_OK;
    for (size_t i = 0; i < plan->op_count && !missing && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_CROSS_ENTROPY) {
            missing = batch->labels == NULL;
            status = missing ? EVQ_OK : labels_check(batch, op->n, err);
        } else if (op->kind == EVQ_OP_SQUARED_ERROR) {
            missing = batch->targets == NULL;
        }
    }
    return missing ? evq_error_set(err, EVQ_E_BUG, "batch without the arrays its plan reads")
                   : status;
}

uint64_t evq_plan_row_flops(const struct evq_plan *plan)
{
    uint64_t flops = 0;

    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        flops += op->kind == EVQ_OP_GEMM ? 2 * (uint64_t)op->n * (uint64_t)op->k : (uint64_t)op->n;
    }
    return flops;
}
