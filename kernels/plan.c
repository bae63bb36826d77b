#include "kernels/plan.h"

#include <limits.h>

#define PLAN_ITEMS_MAX 1000000 // Most operations, slots or buffers.
// Most elements of one slot, or of one buffer with all its rows.
#define PLAN_ELEMENTS_MAX ((int64_t)1 << 40)

static bool is_head(const struct evq_op *op)
{
    return op->kind == EVQ_OP_CROSS_ENTROPY || op->kind == EVQ_OP_SQUARED_ERROR ||
           op->kind == EVQ_OP_SCORE;
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

static const char *gemm_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    if (!slot_is(plan, op->weight, op->n, op->k) || !vector_or_none(plan, op->bias, op->n)) {
        return "a weight or bias of another shape";
    }
    if (op->residual != 0 && (!buffer_holds(plan, op->residual, op->n) || op->residual == op->in)) {
        return "a residual that does not fit its buffer";
    }
    return op->in != op->out ? NULL : "an output that is its input";
}

static const char *embedding_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    const bool table = op->weight >= 0 && (size_t)op->weight < plan->slot_count &&
                       plan->slots[op->weight].columns == op->n;
    const bool positions =
        op->bias == -1 || (op->bias >= 0 && (size_t)op->bias < plan->slot_count &&
                           plan->slots[op->bias].columns == op->n && op->column >= 0 &&
                           plan->slots[op->bias].rows - op->column >= plan->length_max);
    const bool types = op->types == 0 || (op->types > 0 && (size_t)op->types < plan->slot_count &&
                                          plan->slots[op->types].columns == op->n);

    return table && positions && types ? NULL : "a table of another shape";
}

/* Whether a range of heads is inside its buffer. */
static bool range_fits(const struct evq_plan *plan, const struct evq_op *op, int64_t heads)
{
    return op->column >= 0 && heads >= 1 && op->n >= 1 &&
           (int64_t)op->column + heads * op->n <= plan->buffer_columns[op->in];
}

static const char *attention_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    const bool mixed = op->step != 0 && op->step != op->n;

    if (op->in == 0 || op->column != 0 || op->heads < 1 || op->kv_heads < 1 || op->window < 0 ||
        op->heads % op->kv_heads != 0 || op->n < 1 ||
        !range_fits(plan, op, op->heads + 2 * (int64_t)op->kv_heads) ||
        (mixed && (op->kv_heads != op->heads || op->step != 3 * (int64_t)op->n))) {
        return "heads that do not fit its input";
    }
    if (!vector_or_none(plan, op->weight, op->heads) || !(op->cap >= 0.0f)) {
        return "a weight of another shape, or a cap below 0";
    }
    if ((int64_t)op->heads * op->n > plan->buffer_columns[op->out] || op->in == op->out) {
        return "heads that do not fit its output";
    }
    return (int64_t)op->heads * plan->rows_max <= INT32_MAX ? NULL : "too many heads for its rows";
}

static const char *norm_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    const bool layer = op->kind == EVQ_OP_LAYER_NORM;
    const bool single = slot_is(plan, op->weight, 1, op->n);

    if (!range_fits(plan, op, op->heads)) {
        return "heads that do not fit its buffer";
    }
    if ((int64_t)op->column + (int64_t)op->heads * op->n > plan->buffer_columns[op->out]) {
        return "heads that do not fit its output";
    }
    if (layer && op->bias != -1) {
        return single && slot_is(plan, op->bias, 1, op->n) ? NULL
                                                           : "a weight or bias of another shape";
    }
    if (single || slot_is(plan, op->weight, 1, op->heads * op->n)) {
        return NULL;
    }
    return layer ? "a weight or bias of another shape" : "a weight of another shape";
}

static const char *rope_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    const int64_t step = op->step != 0 ? op->step : op->n;
    const int32_t turned = op->k != 0 ? op->k : op->n;

    if (op->column < 0 || op->heads < 1 || op->n < 1 || step < op->n ||
        op->column + (op->heads - 1) * step + op->n > plan->buffer_columns[op->in]) {
        return "heads that do not fit its buffer";
    }
    if (op->out != op->in || turned < 2 || turned > op->n || turned % 2 != 0) {
        return "pairs that do not turn in place";
    }
    if (op->far_frequencies != NULL && op->near < 1) {
        return "far frequencies from no length on";
    }
    return op->frequencies != NULL ? NULL : "no frequencies";
}

static const char *score_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    const bool fits =
        slot_is(plan, op->weight, op->n, op->k) && vector_or_none(plan, op->bias, op->n);
    const bool plain = op->scale == 0.0f && op->cap == 0.0f;

    if (!fits) {
        return "a weight or bias of another shape";
    }
    return op->cap >= 0.0f && (plain || op->bias == -1) ? NULL
                                                        : "a bias before a scale, or a cap below 0";
}

static const char *add_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    return op->residual > 0 && buffer_holds(plan, op->residual, op->n)
               ? NULL
               : "a residual that does not fit its buffer";
}

static const char *route_fault(const struct evq_op *op)
{
    return op->top_k >= 1 && op->top_k <= op->n && op->n <= EVQ_EXPERTS_MAX
               ? NULL
               : "more experts for a row than there are, or too many";
}

static bool table_or_none(const struct evq_plan *plan, int32_t slot, int32_t rows, int32_t columns)
{
    return slot == -1 || slot_is(plan, slot, rows, columns);
}

static const char *experts_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    const bool sized = op->experts >= 1 && op->inner >= 1 && op->inner <= INT32_MAX / 2;

    if (op->residual <= 0 || !buffer_holds(plan, op->residual, op->n) || op->in == op->out ||
        op->routes <= 0 || !buffer_holds(plan, op->routes, op->experts) || op->routes == op->out) {
        return "a residual or routes that do not fit their buffers";
    }
    for (int32_t e = 0; e < op->experts && sized; e++) {
        if (op->weight < 0 || op->down < 0 ||
            !slot_is(plan, op->weight + e, 2 * op->inner, op->k) ||
            !slot_is(plan, op->down + e, op->n, op->inner)) {
            return "weights of another shape";
        }
    }
    if (sized && (!table_or_none(plan, op->bias, op->experts, 2 * op->inner) ||
                  !table_or_none(plan, op->down_bias, op->experts, op->n) ||
                  (op->neighbours && !(op->cap > 0.0f)))) {
        return "biases of another shape, or no cap of its gates";
    }
    return sized && op->top_k >= 1 && op->top_k <= op->experts ? NULL : "no experts";
}

/* Number of columns that an operation reads. */
static int32_t columns_in(const struct evq_op *op)
{
    switch (op->kind) {
    case EVQ_OP_GEMM:
    case EVQ_OP_EXPERTS:
    case EVQ_OP_SCORE:
        return op->k;
    case EVQ_OP_EMBEDDING:
        return 1;
    case EVQ_OP_GATE:
        return op->n <= INT32_MAX / 2 ? 2 * op->n : -1;
    default:
        return op->n;
    }
}

static bool reads_tokens(const struct evq_op *op)
{
    return op->kind == EVQ_OP_EMBEDDING || op->kind == EVQ_OP_ROPE ||
           op->kind == EVQ_OP_ATTENTION || op->kind == EVQ_OP_MEAN || op->kind == EVQ_OP_SCORE;
}

static const char *op_fault(const struct evq_plan *plan, const struct evq_op *op)
{
    if (op->activation < 0 || op->activation >= EVQ_ACT_COUNT) {
        return "an unknown activation";
    }
    if (reads_tokens(op) && plan->length_max < 1) {
        return "tokens to read in a plan of samples";
    }
    if (is_head(op) != (op == &plan->ops[plan->op_count - 1])) {
        // Exactly one operation must fill the results.
        return "a head before the end, or none there";
    }
    if (!buffer_holds(plan, op->in, columns_in(op))) {
        return "an input that does not fit its buffer";
    }
    if (op->in == 0 && op->kind != EVQ_OP_EMBEDDING && plan->buffer_columns[0] != columns_in(op)) {
        return "an input narrower than the batch";
    }
    if (is_head(op)) {
        if (op->out != -1 || op->top_k < 0) {
            return "a head with an output";
        }
        return op->kind == EVQ_OP_SCORE ? score_fault(plan, op) : NULL;
    }
    if (!buffer_holds(plan, op->out, op->n) || op->out == 0) {
        return "an output that does not fit its buffer";
    }
    switch (op->kind) {
    case EVQ_OP_GEMM:
        return gemm_fault(plan, op);
    case EVQ_OP_EMBEDDING:
        return embedding_fault(plan, op);
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        return norm_fault(plan, op);
    case EVQ_OP_ROPE:
        return rope_fault(plan, op);
    case EVQ_OP_ATTENTION:
        return attention_fault(plan, op);
    case EVQ_OP_ADD:
        return add_fault(plan, op);
    case EVQ_OP_ROUTE:
        return route_fault(op);
    case EVQ_OP_EXPERTS:
        return experts_fault(plan, op);
    case EVQ_OP_GATE:
    case EVQ_OP_MEAN:
        return op->in != op->out ? NULL : "an output that is its input";
    default:
        return vector_or_none(plan, op->weight, op->n) && vector_or_none(plan, op->bias, op->n)
                   ? NULL
                   : "a weight or bias of another shape";
    }
}

enum evq_status evq_plan_check(const struct evq_plan *plan, struct evq_error *err)
{
    if (plan->rows_max < 1 || plan->length_max < 0 || plan->length_max > plan->rows_max ||
        plan->compute < 0 || plan->compute >= EVQ_COMPUTE_COUNT || plan->buffer_count < 1 ||
        plan->buffer_count > PLAN_ITEMS_MAX || plan->op_count > PLAN_ITEMS_MAX ||
        plan->slot_count > PLAN_ITEMS_MAX) {
        return evq_error_set(err, EVQ_E_BUG, "plan of %zu operations for %d rows", plan->op_count,
                             (int)plan->rows_max);
    }
    if (plan->op_count < 1) {
        return evq_error_set(err, EVQ_E_BUG, "plan without operations");
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

enum evq_status evq_plan_blob_check(const struct evq_plan *plan, int32_t slot,
                                    const struct evq_weight_blob *blob, int32_t rows_put,
                                    struct evq_error *err)
{
    if (plan == NULL || slot < 0 || (size_t)slot >= plan->slot_count) {
        return evq_error_set(err, EVQ_E_BUG, "weight %d is not in the prepared plan", (int)slot);
    }
    const struct evq_weight_slot *wanted = &plan->slots[slot];
    if (blob->values == NULL || blob->type < 0 || blob->type >= EVQ_WEIGHT_TYPE_COUNT ||
        blob->rows < 1 || blob->first_row < 0 || blob->rows > wanted->rows - blob->first_row ||
        (blob->first_row != 0 && blob->first_row != rows_put)) {
        return evq_error_set(
            err, EVQ_E_BUG, "weight '%s': %d rows from row %d on after %d of %d rows", wanted->name,
            (int)blob->rows, (int)blob->first_row, (int)rows_put, (int)wanted->rows);
    }
    return EVQ_OK;
}

static enum evq_status in_range(const char *what, const int32_t *values, int32_t count, int32_t end,
                                struct evq_error *err)
{
    for (int32_t i = 0; i < count; i++) {
        if (values[i] < 0 || values[i] >= end) {
            return evq_error_set(err, EVQ_E_INVALID, "row %d has %s %d, expected 0 to %d", (int)i,
                                 what, (int)values[i], (int)(end - 1));
        }
    }
    return EVQ_OK;
}

static enum evq_status sequences_check(const struct evq_plan *plan, const struct evq_batch *batch,
                                       struct evq_error *err)
{
    bool good = batch->starts != NULL && batch->sequences >= 1 && batch->starts[0] == 0 &&
                batch->starts[batch->sequences] == batch->rows;

    for (int32_t i = 0; i < batch->sequences && good; i++) {
        const int64_t length = (int64_t)batch->starts[i + 1] - batch->starts[i];
        good = length >= 1 && length <= plan->length_max;
    }
    return good ? EVQ_OK
                : evq_error_set(err, EVQ_E_BUG, "batch of sequences that do not fit its %d rows",
                                (int)batch->rows);
}

static enum evq_status scores_check(const struct evq_op *op, const struct evq_batch *batch,
                                    struct evq_error *err)
{
    bool good = batch->scores >= 0 &&
                (batch->scores == 0 || (batch->score_rows != NULL && batch->score_targets != NULL));

    for (int32_t i = 0; i < batch->scores && good; i++) {
        // Only SCORE computes several scores of one row.
        const int32_t least = i == 0                     ? 0
                              : op->kind == EVQ_OP_SCORE ? batch->score_rows[i - 1]
                                                         : batch->score_rows[i - 1] + 1;
        good = batch->score_rows[i] >= least && batch->score_rows[i] < batch->rows;
    }
    if (!good) {
        return evq_error_set(err, EVQ_E_BUG, "batch of scores that do not fit its %d rows",
                             (int)batch->rows);
    }
    return in_range(op->kind == EVQ_OP_SCORE ? "target" : "label", batch->score_targets,
                    batch->scores, op->n, err);
}

static enum evq_status op_batch_check(const struct evq_plan *plan, const struct evq_op *op,
                                      const struct evq_batch *batch, struct evq_error *err)
{
    bool missing = false;
    enum evq_status status = EVQ_OK;

    switch (op->kind) {
    case EVQ_OP_EMBEDDING:
        missing = batch->tokens == NULL;
        status = missing ? EVQ_OK
                         : in_range("token", batch->tokens, batch->rows,
                                    plan->slots[op->weight].rows, err);
        if (status == EVQ_OK && op->types != 0 && batch->types != NULL) {
            status =
                in_range("token type", batch->types, batch->rows, plan->slots[op->types].rows, err);
        }
        break;
    case EVQ_OP_CROSS_ENTROPY:
        if (plan->length_max > 0) {
            return scores_check(op, batch, err);
        }
        missing = batch->labels == NULL;
        status = missing ? EVQ_OK : in_range("label", batch->labels, batch->rows, op->n, err);
        break;
    case EVQ_OP_SQUARED_ERROR:
        missing = batch->targets == NULL;
        break;
    case EVQ_OP_SCORE:
        return scores_check(op, batch, err);
    default:
        missing = op->in == 0 && batch->inputs == NULL;
        break;
    }
    return missing ? evq_error_set(err, EVQ_E_BUG, "batch without the arrays its plan reads")
                   : status;
}

enum evq_status evq_plan_batch_check(const struct evq_plan *plan, const struct evq_batch *batch,
                                     struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (batch->rows < 0 || batch->rows > plan->rows_max) {
        return evq_error_set(err, EVQ_E_BUG, "batch of %d rows for a plan of %d", (int)batch->rows,
                             (int)plan->rows_max);
    }
    if (batch->rows == 0) {
        return EVQ_OK;
    }
    if (plan->length_max > 0) {
        status = sequences_check(plan, batch, err);
    }
    for (size_t i = 0; i < plan->op_count && status == EVQ_OK; i++) {
        status = op_batch_check(plan, &plan->ops[i], batch, err);
    }
    return status;
}

int32_t evq_plan_results(const struct evq_plan *plan, const struct evq_batch *batch)
{
    const enum evq_op_kind head = plan->ops[plan->op_count - 1].kind;
    const bool scores =
        head == EVQ_OP_SCORE || (head == EVQ_OP_CROSS_ENTROPY && plan->length_max > 0);

    return scores ? batch->scores : batch->rows;
}

/* Number of pairs of query and key in one sequence. */
static uint64_t pairs(const struct evq_op *op, int64_t length)
{
    const int64_t full = op->window > 0 && op->window < length ? op->window : length;
    const int64_t back = full * (full + 1) / 2 + (length - full) * full;

    return (uint64_t)(op->both ? 2 * back - length : back);
}

/* Floating-point operations for one row of a plan over samples. */
static uint64_t row_flops(const struct evq_plan *plan)
{
    uint64_t flops = 0;

    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        flops += op->kind == EVQ_OP_GEMM ? 2 * (uint64_t)op->n * (uint64_t)op->k : (uint64_t)op->n;
    }
    return flops;
}

uint64_t evq_plan_flops(const struct evq_plan *plan, const struct evq_batch *batch)
{
    uint64_t scored = 0;
    uint64_t flops = 0;
    size_t joined = 0; // Operations up to the last attention or experts run for every row.

    if (plan->length_max == 0) {
        return row_flops(plan) * (uint64_t)batch->rows;
    }
    for (int32_t i = 0; i < batch->scores; i++) {
        scored += i == 0 || batch->score_rows[i] != batch->score_rows[i - 1];
    }
    const bool scores = plan->ops[plan->op_count - 1].kind != EVQ_OP_SQUARED_ERROR;
    for (size_t i = 0; i < plan->op_count; i++) {
        const enum evq_op_kind kind = plan->ops[i].kind;
        const bool joins =
            kind == EVQ_OP_ATTENTION || kind == EVQ_OP_EXPERTS || kind == EVQ_OP_MEAN;
        joined = !scores || joins ? i + 1 : joined;
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        const uint64_t rows = i < joined ? (uint64_t)batch->rows : scored;
        if (op->kind == EVQ_OP_GEMM || op->kind == EVQ_OP_SCORE) {
            flops += 2 * (uint64_t)op->n * (uint64_t)op->k * rows;
        }
        if (op->kind == EVQ_OP_EXPERTS) {
            flops += 2 * (2 * (uint64_t)op->k + (uint64_t)op->n) * (uint64_t)op->inner *
                     (uint64_t)op->top_k * rows;
        }
        for (int32_t s = 0; s < batch->sequences && op->kind == EVQ_OP_ATTENTION; s++) {
            flops += 4 * (uint64_t)op->n * (uint64_t)op->heads *
                     pairs(op, batch->starts[s + 1] - batch->starts[s]);
        }
    }
    return flops;
}
