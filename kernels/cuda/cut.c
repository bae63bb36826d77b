#include "kernels/cuda/cut.h"

#include <stdlib.h>

#define NO_CUT (-1)

void evq_cuda_op_slots(const struct evq_op *op, int32_t slots[EVQ_CUDA_OP_SLOTS])
{
    const bool both = op->kind == EVQ_OP_GEMM || op->kind == EVQ_OP_EMBEDDING ||
                      op->kind == EVQ_OP_LAYER_NORM || op->kind == EVQ_OP_SCORE;
    const bool weight = both || op->kind == EVQ_OP_RMS_NORM || op->kind == EVQ_OP_ATTENTION;

    slots[0] = weight ? op->weight : -1;
    slots[1] = both ? op->bias : -1;
    slots[2] = op->kind == EVQ_OP_EMBEDDING && op->types > 0 ? op->types : -1;
}

/* How many of the first columns of its output an operation fills with new values. */
static int32_t columns_filled(const struct evq_op *op)
{
    switch (op->kind) {
    case EVQ_OP_GEMM:
    case EVQ_OP_EMBEDDING:
    case EVQ_OP_GATE:
    case EVQ_OP_ADD:
    case EVQ_OP_MEAN:
        return op->n;
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        return op->column == 0 ? op->heads * op->n : 0;
    case EVQ_OP_ATTENTION:
        return op->heads * op->n;
    default:
        return 0;
    }
}

/* How many of the first columns of its input an operation reads at most. */
static int32_t columns_read(const struct evq_plan *plan, const struct evq_op *op)
{
    switch (op->kind) {
    case EVQ_OP_EMBEDDING:
        return 0;
    case EVQ_OP_GEMM:
    case EVQ_OP_SCORE:
        return op->k;
    case EVQ_OP_ADD:
    case EVQ_OP_MEAN:
    case EVQ_OP_CROSS_ENTROPY:
    case EVQ_OP_SQUARED_ERROR:
        return op->n;
    case EVQ_OP_GATE:
        return 2 * op->n;
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        return op->column + op->heads * op->n;
    case EVQ_OP_ROPE:
        return op->column + (op->heads - 1) * (op->step != 0 ? op->step : op->n) + op->n;
    case EVQ_OP_ATTENTION:
        return (op->heads + 2 * op->kv_heads) * op->n;
    default:
        return plan->buffer_columns[op->in];
    }
}

static void need(int32_t *needs, int32_t buffer, int32_t columns)
{
    if (buffer > 0 && columns > needs[buffer]) {
        needs[buffer] = columns;
    }
}

/* The buffer that is needed, if only one is; otherwise NO_CUT. */
static int32_t only_one(const struct evq_plan *plan, const int32_t *needs)
{
    int32_t only = NO_CUT;

    for (int32_t b = 1; b < plan->buffer_count; b++) {
        if (needs[b] > 0 && only != NO_CUT) {
            return NO_CUT;
        }
        only = needs[b] > 0 ? b : only;
    }
    return only;
}

/* Finds where the plan can be cut. carries[i]: the buffer that a cut before operation i hands on,
 * or NO_CUT. needs (zeros at first): how many columns of each buffer operation i and later ones
 * read; the loop goes backwards, so it grows from the end. */
static void find_places(const struct evq_plan *plan, int32_t *needs, int32_t *carries)
{
    for (size_t i = plan->op_count; i-- > 0;) {
        const struct evq_op *op = &plan->ops[i];
        if (op->out > 0 && columns_filled(op) >= needs[op->out]) {
            needs[op->out] = 0;
        }
        need(needs, op->in, columns_read(plan, op));
        need(needs, op->residual, op->n);
        carries[i] = i > 0 && op->in != op->out ? only_one(plan, needs) : NO_CUT;
    }
}

struct cutter {
    const struct evq_plan *plan;
    const int32_t *carries;
    size_t *seen;  // For each slot, the number of the part that counted it last.
    size_t number; // The current part's number. Every part that is tried gets a new one.
};

/* How many values of weights operations [first, end) add to the part with this number. A slot that
 * the part reads twice counts once. */
static uint64_t count_values(const struct cutter *cutter, size_t first, size_t end, size_t number)
{
    uint64_t values = 0;

    for (size_t i = first; i < end; i++) {
        int32_t slots[EVQ_CUDA_OP_SLOTS];
        evq_cuda_op_slots(&cutter->plan->ops[i], slots);
        for (int s = 0; s < EVQ_CUDA_OP_SLOTS; s++) {
            if (slots[s] >= 0 && cutter->seen[slots[s]] != number) {
                const struct evq_weight_slot *slot = &cutter->plan->slots[slots[s]];
                cutter->seen[slots[s]] = number;
                values += (uint64_t)slot->rows * (uint64_t)slot->columns;
            }
        }
    }
    return values;
}

/* The place of the next cut after `at`, or the end. */
static size_t next_place(const struct cutter *cutter, size_t at)
{
    do {
        at++;
    } while (at < cutter->plan->op_count && cutter->carries[at] == NO_CUT);
    return at;
}

/* Fills parts one after another with at most `most` values each. The operations between two
 * neighbouring places stay together, even if they have more. parts: NULL, or room for all parts.
 * Returns the number of parts. *ret_largest: the values of the largest part. */
static size_t fill_parts(struct cutter *cutter, uint64_t most, struct evq_cuda_part *parts,
                         uint64_t *ret_largest)
{
    size_t used = 0;
    uint64_t held = 0;

    *ret_largest = 0;
    for (size_t at = 0, end = 0; at < cutter->plan->op_count; at = end) {
        end = next_place(cutter, at);
        uint64_t more = count_values(cutter, at, end, cutter->number);
        if (used == 0 || held + more > most) { // The next part begins, with slots of its own.
            more = count_values(cutter, at, end, ++cutter->number);
            held = 0;
            used++;
            if (parts != NULL) {
                parts[used - 1] = (struct evq_cuda_part){at, end, cutter->carries[at]};
            }
        }
        held += more;
        *ret_largest = held > *ret_largest ? held : *ret_largest;
        if (parts != NULL) {
            parts[used - 1].end = end;
        }
    }
    return used;
}

/* The fewest values that the largest of `count` parts can have. */
static uint64_t find_most(struct cutter *cutter, size_t count)
{
    uint64_t low = 0;
    uint64_t high = INT64_MAX; // A plan has far fewer values.

    while (low < high) {
        const uint64_t most = low + (high - low) / 2;
        uint64_t largest = 0;
        const size_t used = fill_parts(cutter, most, NULL, &largest);
        if (used <= count && largest <= most) {
            high = most;
        } else {
            low = most + 1;
        }
    }
    return high;
}

enum evq_status evq_cuda_cut(const struct evq_plan *plan, size_t count, struct evq_cuda_part *parts,
                             struct evq_error *err)
{
    int32_t *needs = calloc((size_t)plan->buffer_count, sizeof(*needs));
    int32_t *carries = calloc(plan->op_count, sizeof(*carries));
    size_t *seen = calloc(plan->slot_count + 1, sizeof(*seen));
    struct cutter cutter = {.plan = plan, .carries = carries, .seen = seen};
    uint64_t largest = 0;
    enum evq_status status = EVQ_OK;

    if (needs == NULL || carries == NULL || seen == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "cut %zu operations", plan->op_count);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        parts[i] = (struct evq_cuda_part){plan->op_count, plan->op_count, -1};
    }
    find_places(plan, needs, carries);
    (void)fill_parts(&cutter, find_most(&cutter, count), parts, &largest);
out:
    free(needs);
    free(carries);
    free(seen);
    return status;
}
