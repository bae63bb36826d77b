#include "kernels/cpu/run.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/experts.h"
#include "kernels/cpu/losses.h"
#include "kernels/cpu/mean.h"
#include "kernels/cpu/score.h"

#define ROWS_LEAST 8 // Fewest rows of a chunk; this is a tile of the matrix product.

struct segment_run {
    struct evq_cpu_state *state;
    const struct evq_batch *batch;
    struct evq_row_result *results;
    const struct evq_segment *segment;
    int32_t rows;  // Rows of the batch, or scored rows.
    int32_t chunk; // Rows of each part except the last.
};

/* One chunk on one thread. */
struct chunk {
    const struct segment_run *run;
    int32_t first, rows;
    float *buffers; // The buffers of the thread.
    float *scratch;
    int32_t positions[EVQ_SCHEDULE_CHUNK], lengths[EVQ_SCHEDULE_CHUNK];
};

static size_t scratch_of(const struct evq_kernels *kernels, const struct evq_op *op)
{
    switch (op->kind) {
    case EVQ_OP_GEMM: // Scratch for the sums, then for the rounded rows.
        return kernels->gemm_scratch_floats(EVQ_SCHEDULE_CHUNK) +
               evq_kernels_rounded_stride(op->k) * EVQ_SCHEDULE_CHUNK;
    case EVQ_OP_SCORE:
        return evq_score_scratch_floats(kernels, EVQ_SCHEDULE_CHUNK, op->k);
    case EVQ_OP_ATTENTION:
        return kernels->attention_scratch_floats(op->n);
    case EVQ_OP_EXPERTS:
        return evq_experts_scratch_floats(kernels, op);
    default:
        return 0;
    }
}

size_t evq_run_scratch_floats(const struct evq_kernels *kernels, const struct evq_plan *plan)
{
    size_t most = 0;

    for (size_t i = 0; i < plan->op_count; i++) {
        const size_t wanted = scratch_of(kernels, &plan->ops[i]);
        most = wanted > most ? wanted : most;
    }
    return most;
}

static const float *vector_of(const struct evq_cpu_state *state, int32_t slot)
{
    return slot < 0 ? NULL : state->weights.items[slot].block.data;
}

/* The first row of the chunk in a buffer. A segment of scored rows works on copies. */
static float *rows_of(const struct chunk *chunk, int32_t buffer)
{
    const struct segment_run *run = chunk->run;
    const struct evq_schedule_buffer *place = &run->state->schedule.buffers[buffer];

    if (place->shared && !run->segment->scores) {
        return (float *)run->state->shared.data + place->shared_at +
               (size_t)chunk->first * place->stride;
    }
    return chunk->buffers + place->at;
}

/* Copies the caller's inputs, because rows need spare room at their end. */
static void copy_inputs(const struct chunk *chunk)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const size_t columns = (size_t)state->plan->buffer_columns[0];

    if (chunk->run->batch->inputs == NULL) {
        return;
    }
    for (int32_t r = 0; r < chunk->rows; r++) {
        const size_t row = chunk->run->segment->scores
                               ? (size_t)state->tokens.scored_rows[chunk->first + r]
                               : (size_t)(chunk->first + r);
        memcpy(rows_of(chunk, 0) + (size_t)r * state->schedule.buffers[0].stride,
               chunk->run->batch->inputs + row * columns, columns * sizeof(float));
    }
}

/* Finds the position of each row of the chunk in the batch. A segment of scored rows copies what is
 * kept for all rows. */
static void gather(struct chunk *chunk)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const int32_t *scored = state->tokens.scored_rows;

    copy_inputs(chunk);
    for (int32_t r = 0; r < chunk->rows && state->plan->length_max > 0; r++) {
        const int32_t row =
            chunk->run->segment->scores ? scored[chunk->first + r] : chunk->first + r;
        chunk->positions[r] = state->tokens.positions[row];
        chunk->lengths[r] = state->tokens.lengths[row];
    }
    for (int32_t b = 1; b < state->plan->buffer_count && chunk->run->segment->scores; b++) {
        const struct evq_schedule_buffer *place = &state->schedule.buffers[b];
        const float *kept = (const float *)state->shared.data + place->shared_at;
        for (int32_t r = 0; r < chunk->rows && place->shared; r++) {
            memcpy(chunk->buffers + place->at + (size_t)r * place->stride,
                   kept + (size_t)scored[chunk->first + r] * place->stride,
                   (size_t)state->plan->buffer_columns[b] * sizeof(float));
        }
    }
}

static void run_gemm(const struct chunk *chunk, const struct evq_op *op)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const struct evq_kernels *kernels = state->kernels;
    const struct evq_schedule_buffer *buffers = state->schedule.buffers;
    const struct evq_weight *weight = &state->weights.items[op->weight];
    struct evq_gemm gemm = {
        .rows = chunk->rows,
        .n = op->n,
        .k = op->k,
        .pairs = weight->form == EVQ_WEIGHT_PANELS_BF16,
        .in = rows_of(chunk, op->in),
        .in_stride = buffers[op->in].stride,
        .panels = weight->block.data,
        .bias = vector_of(state, op->bias),
        .activation = op->activation,
        .residual = op->residual != 0 ? rows_of(chunk, op->residual) : NULL,
        .residual_stride = buffers[op->residual].stride,
        .out = rows_of(chunk, op->out),
        .out_stride = buffers[op->out].stride,
        .scratch = chunk->scratch,
    };

    if (gemm.pairs) {
        float *rounded = chunk->scratch + kernels->gemm_scratch_floats(EVQ_SCHEDULE_CHUNK);
        kernels->round(gemm.in, gemm.in_stride, chunk->rows, op->k, rounded,
                       evq_kernels_rounded_stride(op->k));
        gemm.in = rounded;
        gemm.in_stride = evq_kernels_rounded_stride(op->k);
    }
    kernels->gemm(&gemm);
}

static void run_embedding(const struct chunk *chunk, const struct evq_op *op)
{
    const struct segment_run *run = chunk->run;
    const struct evq_cpu_state *state = run->state;
    const struct evq_weight *table = &state->weights.items[op->weight];
    const float *places = vector_of(state, op->bias);
    const float *types = op->types != 0 ? vector_of(state, op->types) : NULL;
    float *out = rows_of(chunk, op->out);

    for (int32_t r = 0; r < chunk->rows; r++) {
        const int32_t row =
            run->segment->scores ? state->tokens.scored_rows[chunk->first + r] : chunk->first + r;
        evq_weights_row(table, state->kernels->panel, run->batch->tokens[row], out);
        const float *place =
            places != NULL ? places + (size_t)(chunk->positions[r] + op->column) * (size_t)op->n
                           : NULL;
        const int32_t type = run->batch->types != NULL ? run->batch->types[row] : 0;
        for (int32_t c = 0; c < op->n; c++) {
            out[c] = out[c] * op->scale + (place != NULL ? place[c] : 0.0f) +
                     (types != NULL ? types[(size_t)type * (size_t)op->n + (size_t)c] : 0.0f);
        }
        out += state->schedule.buffers[op->out].stride;
    }
}

static void run_score(const struct chunk *chunk, const struct evq_op *op)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const struct evq_score score = {
        .kernels = state->kernels,
        .in = rows_of(chunk, op->in),
        .in_stride = state->schedule.buffers[op->in].stride,
        .rows = chunk->rows,
        .k = op->k,
        .weight = &state->weights.items[op->weight],
        .bias = vector_of(state, op->bias),
        .scale = op->scale,
        .cap = op->cap,
        .first = state->tokens.scored_first + chunk->first,
        .targets = chunk->run->batch->score_targets,
        .results = chunk->run->results,
        .scratch = chunk->scratch,
    };

    evq_score_run(&score);
}

static void run_norm(const struct chunk *chunk, const struct evq_op *op)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const struct evq_schedule_buffer *buffers = state->schedule.buffers;
    const float *in = rows_of(chunk, op->in);
    float *out = rows_of(chunk, op->out);
    const size_t in_stride = buffers[op->in].stride;
    const size_t out_stride = buffers[op->out].stride;

    // Distance between the weights of two heads.
    const size_t apart = state->plan->slots[op->weight].columns > op->n ? (size_t)op->n : 0;

    if (op->kind == EVQ_OP_RMS_NORM && apart == 0) {
        state->kernels->rms_norm(in + op->column, in_stride, chunk->rows, op->heads, op->n,
                                 vector_of(state, op->weight), op->epsilon, out + op->column,
                                 out_stride);
        return;
    }
    for (int32_t h = 0; h < op->heads; h++) {
        const size_t at = (size_t)op->column + (size_t)h * (size_t)op->n;
        const float *weight = vector_of(state, op->weight) + (size_t)h * apart;
        if (op->kind == EVQ_OP_LAYER_NORM) {
            state->kernels->layer_norm(in + at, in_stride, chunk->rows, op->n, weight,
                                       vector_of(state, op->bias), op->epsilon, out + at,
                                       out_stride);
        } else {
            state->kernels->rms_norm(in + at, in_stride, chunk->rows, 1, op->n, weight, op->epsilon,
                                     out + at, out_stride);
        }
    }
}

static void run_rope(const struct chunk *chunk, size_t number)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const struct evq_op *op = &state->plan->ops[number];
    const struct evq_rope_table *table = &state->rope.tables[state->rope.of_op[number]];
    int32_t lines[EVQ_SCHEDULE_CHUNK];
    const struct evq_turn turn = {.heads = op->heads,
                                  .step = op->step != 0 ? op->step : op->n,
                                  .n = table->n,
                                  .neighbours = op->neighbours,
                                  .table = table->block.data,
                                  .lines = lines};

    for (int32_t r = 0; r < chunk->rows; r++) {
        lines[r] = evq_rope_line(op, chunk->positions[r], chunk->lengths[r]);
    }
    state->kernels->rope(rows_of(chunk, op->in) + op->column,
                         state->schedule.buffers[op->in].stride, chunk->rows, &turn);
}

static void run_head(const struct chunk *chunk, const struct evq_op *op)
{
    const struct segment_run *run = chunk->run;
    const float *in = rows_of(chunk, op->in);
    const size_t stride = run->state->schedule.buffers[op->in].stride;
    struct evq_row_result *results = run->results + chunk->first;

    if (op->kind == EVQ_OP_CROSS_ENTROPY) {
        const int32_t *labels =
            run->segment->scores ? run->batch->score_targets : run->batch->labels;
        evq_losses_cross_entropy(in, stride, chunk->rows, op->n, labels + chunk->first, op->top_k,
                                 results);
    } else {
        evq_losses_squared_error(in, stride, chunk->rows, op->n,
                                 run->batch->targets + (size_t)chunk->first * (size_t)op->n,
                                 results);
    }
}

static void run_op(const struct chunk *chunk, size_t number)
{
    const struct evq_cpu_state *state = chunk->run->state;
    const struct evq_kernels *kernels = state->kernels;
    const struct evq_op *op = &state->plan->ops[number];
    const size_t in_stride = state->schedule.buffers[op->in].stride;

    switch (op->kind) {
    case EVQ_OP_GEMM:
        run_gemm(chunk, op);
        break;
    case EVQ_OP_EMBEDDING:
        run_embedding(chunk, op);
        break;
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        run_norm(chunk, op);
        break;
    case EVQ_OP_ROPE:
        run_rope(chunk, number);
        break;
    case EVQ_OP_GATE:
        kernels->gate(rows_of(chunk, op->in), in_stride, chunk->rows, op->n, op->activation,
                      rows_of(chunk, op->out), state->schedule.buffers[op->out].stride);
        break;
    case EVQ_OP_ADD:
        kernels->add(rows_of(chunk, op->in), in_stride, chunk->rows, op->n, op->scale,
                     rows_of(chunk, op->residual), state->schedule.buffers[op->residual].stride,
                     rows_of(chunk, op->out), state->schedule.buffers[op->out].stride);
        break;
    case EVQ_OP_ROUTE:
        evq_experts_route(op, rows_of(chunk, op->in), in_stride, chunk->rows,
                          rows_of(chunk, op->out), state->schedule.buffers[op->out].stride);
        break;
    case EVQ_OP_SCORE:
        run_score(chunk, op);
        break;
    default:
        run_head(chunk, op);
        break;
    }
}

static float *thread_buffers(const struct evq_cpu_state *state, int32_t thread)
{
    return (float *)state->threads.data + (size_t)thread * state->thread_floats;
}

/* Only the caller's own parts are reported. That is enough, because the caller takes parts as long
 * as there are any. */
static void part_done(const struct segment_run *run, int32_t thread)
{
    if (thread == 0 && run->batch->tell != NULL) {
        run->batch->tell(run->batch->listener);
    }
}

static void run_chunk(void *context, int32_t part, int32_t thread)
{
    const struct segment_run *run = context;
    const int32_t first = part * run->chunk;
    struct chunk chunk = {
        .run = run,
        .first = first,
        .rows = run->rows - first < run->chunk ? run->rows - first : run->chunk,
        .buffers = thread_buffers(run->state, thread),
    };

    chunk.scratch = chunk.buffers + run->state->schedule.thread_floats;
    gather(&chunk);
    for (size_t i = run->segment->first; i < run->segment->end; i++) {
        run_op(&chunk, i);
    }
    part_done(run, thread);
}

/* Computes one block of queries of one head. Blocks of a head follow one another, the longest
 * first, so that its keys stay in the cache and the threads finish together. */
static void run_attention_part(void *context, int32_t part, int32_t thread)
{
    const struct segment_run *run = context;
    const struct evq_cpu_state *state = run->state;
    const struct evq_op *op = &state->plan->ops[run->segment->first];
    const int32_t blocks = state->tokens.block_count;
    const int32_t head = part / blocks;
    const struct evq_query_block *block = &state->tokens.blocks[blocks - 1 - part % blocks];
    const struct evq_schedule_buffer *in = &state->schedule.buffers[op->in];
    const struct evq_schedule_buffer *out = &state->schedule.buffers[op->out];
    const float *row =
        (const float *)state->shared.data + in->shared_at + (size_t)block->row * in->stride;
    const size_t n = (size_t)op->n;
    const bool mixed = op->step > op->n; // Keys and values stand behind the queries of their head.
    const float *queries = row + (size_t)head * (mixed ? (size_t)op->step : n);
    const float *keys =
        mixed ? queries + n
              : row + (size_t)op->heads * n + (size_t)(head / (op->heads / op->kv_heads)) * n;
    const struct evq_attention attention = {
        .q = queries,
        .k = keys,
        .v = keys + (mixed ? n : (size_t)op->kv_heads * n),
        .in_stride = in->stride,
        .size = op->n,
        .first = block->first,
        .count = block->count,
        .length = state->tokens.lengths[block->row],
        .both = op->both,
        .window = op->window,
        .scale = op->scale,
        .cap = op->cap,
        .sink = op->weight >= 0 ? vector_of(state, op->weight)[head] : -INFINITY,
        .pairs = state->plan->compute == EVQ_COMPUTE_BF16,
        .out = (float *)state->shared.data + out->shared_at + (size_t)block->row * out->stride +
               (size_t)head * (size_t)op->n,
        .out_stride = out->stride,
        .scratch = thread_buffers(state, thread) + state->schedule.thread_floats,
    };

    state->kernels->attention(&attention);
    part_done(run, thread);
}

/* The row of a buffer that is kept for all rows. */
static float *shared_row(const struct evq_cpu_state *state, int32_t buffer, int32_t row)
{
    const struct evq_schedule_buffer *place = &state->schedule.buffers[buffer];

    return (float *)state->shared.data + place->shared_at + (size_t)row * place->stride;
}

static void run_experts_part(void *context, int32_t part, int32_t thread)
{
    const struct segment_run *run = context;
    const struct evq_cpu_state *state = run->state;
    const struct evq_op *op = &state->plan->ops[run->segment->first];
    const struct evq_schedule_buffer *buffers = state->schedule.buffers;
    const int32_t first = part * run->chunk;
    const struct evq_experts experts = {
        .kernels = state->kernels,
        .op = op,
        .weights = state->weights.items,
        .rows = run->rows - first < run->chunk ? run->rows - first : run->chunk,
        .in = shared_row(state, op->in, first),
        .routes = shared_row(state, op->routes, first),
        .residual = shared_row(state, op->residual, first),
        .in_stride = buffers[op->in].stride,
        .routes_stride = buffers[op->routes].stride,
        .residual_stride = buffers[op->residual].stride,
        .out = shared_row(state, op->out, first),
        .out_stride = buffers[op->out].stride,
        .scratch = thread_buffers(state, thread) + state->schedule.thread_floats,
    };

    evq_experts_run(&experts);
    part_done(run, thread);
}

/* Computes the mean of one sequence. */
static void run_mean_part(void *context, int32_t part, int32_t thread)
{
    const struct segment_run *run = context;
    const struct evq_cpu_state *state = run->state;
    const struct evq_op *op = &state->plan->ops[run->segment->first];
    const struct evq_schedule_buffer *buffers = state->schedule.buffers;
    const int32_t start = run->batch->starts[part];

    evq_mean_rows(shared_row(state, op->in, start), buffers[op->in].stride,
                  run->batch->starts[part + 1] - start, op->n, shared_row(state, op->out, start),
                  buffers[op->out].stride);
    part_done(run, thread);
}

/* There are as many chunks as threads, or a multiple of that, so that all threads finish together.
 */
static int32_t chunk_rows(const struct evq_cpu_state *state, int32_t rows, int32_t most)
{
    const int64_t threads = evq_pool_threads(state->pool);
    const int64_t least = ((int64_t)rows + most - 1) / most;
    const int64_t parts = (least + threads - 1) / threads * threads;
    const int64_t chunk = ((int64_t)rows + parts - 1) / parts;

    return (int32_t)((chunk + ROWS_LEAST - 1) / ROWS_LEAST * ROWS_LEAST);
}

void evq_run(struct evq_cpu_state *state, const struct evq_batch *batch,
             struct evq_row_result *results)
{
    for (size_t i = 0; i < state->schedule.segment_count; i++) {
        struct segment_run run = {.state = state,
                                  .batch = batch,
                                  .results = results,
                                  .segment = &state->schedule.segments[i]};
        const struct evq_op *op = &state->plan->ops[run.segment->first];
        const bool experts = op->kind == EVQ_OP_EXPERTS;
        if (op->kind == EVQ_OP_ATTENTION) {
            evq_pool_run(state->pool, run_attention_part, &run,
                         op->heads * state->tokens.block_count);
        } else if (op->kind == EVQ_OP_MEAN) {
            evq_pool_run(state->pool, run_mean_part, &run, batch->sequences);
        } else {
            const int32_t most = experts ? EVQ_EXPERTS_ROWS : EVQ_SCHEDULE_CHUNK;
            run.rows = run.segment->scores ? state->tokens.scored_count : batch->rows;
            run.chunk = run.rows > 0 ? chunk_rows(state, run.rows, most) : 1;
            evq_pool_run(state->pool, experts ? run_experts_part : run_chunk, &run,
                         (run.rows + run.chunk - 1) / run.chunk);
        }
        part_done(&run, 0);
    }
}
