#include "kernels/cpu/schedule.h"

#include <stdlib.h>

#include "kernels/cpu/kernels.h"

static void cut(struct evq_schedule *schedule, const struct evq_plan *plan)
{
    for (size_t i = 0; i < plan->op_count; i++) {
        const enum evq_op_kind kind = plan->ops[i].kind;
        struct evq_segment *last =
            schedule->segment_count > 0 ? &schedule->segments[schedule->segment_count - 1] : NULL;
        const bool alone =
            kind == EVQ_OP_ATTENTION || kind == EVQ_OP_EXPERTS || kind == EVQ_OP_MEAN;
        const bool head = kind == EVQ_OP_SCORE || kind == EVQ_OP_CROSS_ENTROPY;
        if (last == NULL || last->alone || alone) {
            last = &schedule->segments[schedule->segment_count++];
            *last = (struct evq_segment){.first = i, .alone = alone};
        }
        last->end = i + 1;
        last->scores = last->scores || (head && plan->length_max > 0);
    }
}

static void reads(struct evq_schedule *schedule, const size_t *written, size_t segment,
                  int32_t buffer)
{
    // Segments are counted from 1, so 0 means "not written yet".
    if (written[buffer] != segment) {
        schedule->buffers[buffer].shared = true;
    }
}

static bool adds(enum evq_op_kind kind)
{
    return kind == EVQ_OP_GEMM || kind == EVQ_OP_ADD || kind == EVQ_OP_EXPERTS;
}

/* Marks a buffer as shared if an operation reads what another segment wrote. */
static void share(struct evq_schedule *schedule, const struct evq_plan *plan, size_t *written)
{
    for (size_t s = 0; s < schedule->segment_count; s++) {
        const struct evq_segment *segment = &schedule->segments[s];
        for (size_t i = segment->first; i < segment->end; i++) {
            const struct evq_op *op = &plan->ops[i];
            if (op->kind != EVQ_OP_EMBEDDING && op->in != 0) {
                reads(schedule, written, s + 1, op->in);
            }
            if (adds(op->kind) && op->residual != 0) {
                reads(schedule, written, s + 1, op->residual);
            }
            if (op->kind == EVQ_OP_EXPERTS) {
                reads(schedule, written, s + 1, op->routes);
            }
            if (op->out >= 0) {
                written[op->out] = s + 1;
                schedule->buffers[op->out].shared |= segment->alone;
            }
        }
    }
}

static void place(struct evq_schedule *schedule, const struct evq_plan *plan)
{
    for (int32_t i = 0; i < plan->buffer_count; i++) {
        struct evq_schedule_buffer *buffer = &schedule->buffers[i];
        // Rows have room behind their columns and an odd number of cache lines, so that consecutive
        // rows use different parts of the cache.
        const size_t lines = ((size_t)plan->buffer_columns[i] + EVQ_KERNELS_PAD + 15) / 16;
        buffer->stride = (lines | 1) * 16;
        buffer->at = schedule->thread_floats;
        schedule->thread_floats += buffer->stride * EVQ_SCHEDULE_CHUNK;
        if (buffer->shared) {
            buffer->shared_at = schedule->shared_floats;
            schedule->shared_floats += buffer->stride * (size_t)plan->rows_max;
        }
    }
}

enum evq_status evq_schedule_make(struct evq_schedule *schedule, const struct evq_plan *plan,
                                  struct evq_error *err)
{
    size_t *written = calloc((size_t)plan->buffer_count, sizeof(*written));

    evq_schedule_release(schedule);
    schedule->segments = calloc(plan->op_count + 1, sizeof(*schedule->segments));
    schedule->buffers = calloc((size_t)plan->buffer_count, sizeof(*schedule->buffers));
    if (written == NULL || schedule->segments == NULL || schedule->buffers == NULL) {
        free(written);
        evq_schedule_release(schedule);
        return evq_error_set(err, EVQ_E_NOMEM, "a plan of %zu operations", plan->op_count);
    }
    cut(schedule, plan);
    share(schedule, plan, written);
    place(schedule, plan);
    free(written);
    return EVQ_OK;
}

void evq_schedule_release(struct evq_schedule *schedule)
{
    free(schedule->segments);
    free(schedule->buffers);
    *schedule = (struct evq_schedule){0};
}
