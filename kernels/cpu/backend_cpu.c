/*
 * The CPU backend. A batch is cut into chunks of rows, and one thread takes a chunk through the
 * whole plan: its activations stay in its own cache and no operation waits for another thread.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pool.h"
#include "kernels/plan.h"

#define ALIGNMENT 64
// Always computed in full: a row's bits must not depend on how many stand beside it.
#define CHUNK_ROWS 256

static_assert(CHUNK_ROWS % EVQ_GEMM_ROWS_STEP == 0, "chunks are what the matrix product takes");

struct weight {
    float *data;
    size_t floats;
    int32_t rows, columns;
    bool matrix; // Read by a matrix product: kept in the form that evq_gemm_pack() gives.
    bool filled;
};

struct cpu_state {
    struct evq_pool *pool;
    struct evq_gemm gemm;
    const struct evq_plan *plan;
    struct weight *weights;
    size_t weight_count;
    float *scratch; // One chunk of every buffer for each thread.
    size_t scratch_floats;
    size_t thread_floats;
    size_t *buffer_at; // Offset of each buffer within its thread's part.
    size_t memory_max;
    size_t memory;
    uint64_t row_flops;
    struct evq_backend_stats stats;
};

static int32_t cpu_probe(struct evq_error *err)
{
    (void)err; // There always is a CPU.
    return 1;
}

static void cpu_close(void *opened)
{
    struct cpu_state *state = opened;

    if (state == NULL) {
        return;
    }
    evq_pool_free(state->pool);
    for (size_t i = 0; i < state->weight_count; i++) {
        free(state->weights[i].data);
    }
    free(state->weights);
    free(state->buffer_at);
    free(state->scratch);
    free(state);
}

static enum evq_status cpu_open(const struct evq_backend_config *config, void **ret_state,
                                struct evq_error *err)
{
    struct cpu_state *state = calloc(1, sizeof(*state));

    if (state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "CPU backend");
    }
    state->memory_max = config->memory_bytes_max > 0 ? config->memory_bytes_max : SIZE_MAX;
    const enum evq_status status = evq_pool_new(config->threads, &state->pool, err);
    if (status != EVQ_OK) {
        cpu_close(state);
        return status;
    }
    evq_gemm_open(&state->gemm);
    *ret_state = state;
    return EVQ_OK;
}

static void cpu_caps(void *opened, struct evq_backend_caps *ret_caps)
{
    const struct cpu_state *state = opened;
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    char name[64];

    *ret_caps = (struct evq_backend_caps){0};
    evq_machine_name(name, sizeof(name));
    (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "%s (%s, %s, %d threads)", name,
                   evq_machine_isa_name(state->gemm.isa), state->gemm.name,
                   (int)evq_pool_threads(state->pool));
    ret_caps->memory_bytes = pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes : 0;
}

static enum evq_status cpu_alloc(void *opened, size_t bytes, void **ret_host, struct evq_error *err)
{
    void *host = NULL;

    (void)opened;
    if (posix_memalign(&host, ALIGNMENT, bytes > 0 ? bytes : 1) != 0) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes of host memory", bytes);
    }
    *ret_host = host;
    return EVQ_OK;
}

static void cpu_free(void *opened, void *host)
{
    (void)opened;
    free(host);
}

/* Replaces *data unless it already holds that many floats. */
static enum evq_status resize(struct cpu_state *state, float **data, size_t *floats, size_t wanted,
                              const char *what, struct evq_error *err)
{
    void *fresh = NULL;

    if (*floats == wanted) {
        return EVQ_OK;
    }
    free(*data);
    *data = NULL;
    state->memory -= *floats * sizeof(float);
    *floats = 0;
    if (wanted > SIZE_MAX / sizeof(float) ||
        wanted * sizeof(float) > state->memory_max - state->memory ||
        posix_memalign(&fresh, ALIGNMENT, wanted * sizeof(float)) != 0) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu values of '%s' do not fit in memory", wanted,
                             what);
    }
    *data = fresh;
    *floats = wanted;
    state->memory += wanted * sizeof(float);
    return EVQ_OK;
}

static bool is_matrix(const struct evq_plan *plan, int32_t slot)
{
    for (size_t i = 0; i < plan->op_count; i++) {
        if (plan->ops[i].kind == EVQ_OP_GEMM && plan->ops[i].weight == slot) {
            return true;
        }
    }
    return false;
}

static enum evq_status prepare_weights(struct cpu_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (state->weight_count > plan->slot_count) {
        struct weight *last = &state->weights[--state->weight_count];
        state->memory -= last->floats * sizeof(float);
        free(last->data);
        *last = (struct weight){0};
    }
    struct weight *grown =
        realloc(state->weights, (plan->slot_count > 0 ? plan->slot_count : 1) * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu weights", plan->slot_count);
    }
    state->weights = grown;
    for (; state->weight_count < plan->slot_count; state->weight_count++) {
        state->weights[state->weight_count] = (struct weight){0};
    }
    for (size_t i = 0; i < plan->slot_count && status == EVQ_OK; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        struct weight *weight = &state->weights[i];
        const bool matrix = is_matrix(plan, (int32_t)i);
        if (weight->rows == slot->rows && weight->columns == slot->columns &&
            weight->matrix == matrix && weight->data != NULL) {
            continue; // Keeps its values too.
        }
        const size_t floats = matrix
                                  ? evq_gemm_weight_floats(&state->gemm, slot->rows, slot->columns)
                                  : (size_t)slot->columns;
        weight->filled = false;
        weight->matrix = matrix;
        weight->rows = slot->rows;
        weight->columns = slot->columns;
        status = resize(state, &weight->data, &weight->floats, floats, slot->name, err);
    }
    return status;
}

static enum evq_status prepare_buffers(struct cpu_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    size_t *offsets = calloc((size_t)plan->buffer_count, sizeof(*offsets));
    size_t floats = 0;

    if (offsets == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%d buffers", (int)plan->buffer_count);
    }
    for (int32_t i = 0; i < plan->buffer_count; i++) {
        const size_t line = ALIGNMENT / sizeof(float);
        offsets[i] = floats;
        floats += ((size_t)plan->buffer_columns[i] + line - 1) / line * line * CHUNK_ROWS;
    }
    free(state->buffer_at);
    state->buffer_at = offsets;
    state->thread_floats = floats;
    return resize(state, &state->scratch, &state->scratch_floats,
                  floats * (size_t)evq_pool_threads(state->pool), "activation buffers", err);
}

static enum evq_status cpu_prepare(void *opened, const struct evq_plan *plan, struct evq_error *err)
{
    struct cpu_state *state = opened;

    state->plan = NULL;
    enum evq_status status = evq_plan_check(plan, err);
    if (status == EVQ_OK) {
        status = evq_plan_check_samples(plan, err);
    }
    if (status == EVQ_OK) {
        status = prepare_weights(state, plan, err);
    }
    if (status == EVQ_OK) {
        status = prepare_buffers(state, plan, err);
    }
    if (status == EVQ_OK) {
        state->plan = plan;
        state->row_flops = evq_plan_row_flops(plan);
    }
    return status;
}

static enum evq_status cpu_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                               struct evq_error *err)
{
    struct cpu_state *state = opened;

    const enum evq_status status = evq_plan_blob_check(state->plan, slot, blob, err);
    if (status != EVQ_OK) {
        return status;
    }
    struct weight *weight = &state->weights[slot];
    if (weight->matrix) {
        evq_gemm_pack(&state->gemm, blob->values, weight->rows, weight->columns, weight->data);
    } else {
        memcpy(weight->data, blob->values, weight->floats * sizeof(float));
    }
    weight->filled = true;
    return EVQ_OK;
}

static enum evq_status cpu_settle(void *opened, struct evq_error *err)
{
    (void)opened;
    (void)err; // put() is done when it returns.
    return EVQ_OK;
}

struct chunk_run {
    const struct cpu_state *state;
    const struct evq_batch *batch;
    struct evq_row_result *results;
};

static const float *weight_of(const struct cpu_state *state, int32_t slot)
{
    return slot < 0 ? NULL : state->weights[slot].data;
}

/* The rows of one chunk as every operation sees them: CHUNK_ROWS of them, zeros past the end of the
 * batch. */
static const float *chunk_inputs(const struct chunk_run *run, int32_t first, int32_t rows,
                                 float *padded)
{
    const size_t columns = (size_t)run->state->plan->buffer_columns[0];
    const float *inputs = run->batch->inputs + (size_t)first * columns;

    if (rows == CHUNK_ROWS) {
        return inputs;
    }
    memcpy(padded, inputs, (size_t)rows * columns * sizeof(float));
    memset(padded + (size_t)rows * columns, 0,
           (size_t)(CHUNK_ROWS - rows) * columns * sizeof(float));
    return padded;
}

static void run_chunk(void *context, int32_t part, int32_t thread)
{
    const struct chunk_run *run = context;
    const struct cpu_state *state = run->state;
    const struct evq_batch *batch = run->batch;
    const int32_t first = part * CHUNK_ROWS;
    const int32_t rows = batch->rows - first < CHUNK_ROWS ? batch->rows - first : CHUNK_ROWS;
    float *buffers = state->scratch + (size_t)thread * state->thread_floats;
    const float *inputs = chunk_inputs(run, first, rows, buffers + state->buffer_at[0]);

    for (size_t i = 0; i < state->plan->op_count; i++) {
        const struct evq_op *op = &state->plan->ops[i];
        const float *in = op->in == 0 ? inputs : buffers + state->buffer_at[op->in];
        float *out = op->out < 0 ? NULL : buffers + state->buffer_at[op->out];
        const float *weight = weight_of(state, op->weight);
        const float *bias = weight_of(state, op->bias);
        switch (op->kind) {
        case EVQ_OP_GEMM:
            evq_gemm_run(&state->gemm, CHUNK_ROWS, op->n, op->k, in, weight, out);
            evq_ops_bias_activate(out, rows, op->n, bias, op->activation);
            break;
        case EVQ_OP_SCALE_SHIFT:
            evq_ops_scale_shift(in, CHUNK_ROWS, op->n, weight, bias, op->scale, op->shift, out);
            evq_ops_bias_activate(out, rows, op->n, NULL, op->activation);
            break;
        case EVQ_OP_CROSS_ENTROPY:
            evq_ops_cross_entropy(in, rows, op->n, batch->labels + first, op->top_k,
                                  run->results + first);
            break;
        case EVQ_OP_SQUARED_ERROR:
            evq_ops_squared_error(in, rows, op->n, batch->targets + (size_t)first * (size_t)op->n,
                                  run->results + first);
            break;
        default:
            break; // prepare() refused it.
        }
    }
}

static enum evq_status cpu_exec(void *opened, const struct evq_batch *batch,
                                struct evq_row_result *results, struct evq_error *err)
{
    struct cpu_state *state = opened;

    if (state->plan == NULL) {
        return evq_error_set(err, EVQ_E_BUG, "exec before prepare");
    }
    const enum evq_status status = evq_plan_batch_check(state->plan, batch, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < state->plan->slot_count; i++) {
        if (!state->weights[i].filled) {
            return evq_error_set(err, EVQ_E_BUG, "weight '%s' was never put",
                                 state->plan->slots[i].name);
        }
    }
    struct chunk_run run = {.state = state, .batch = batch, .results = results};
    const int32_t chunks = batch->rows / CHUNK_ROWS + (batch->rows % CHUNK_ROWS != 0);
    evq_pool_run(state->pool, run_chunk, &run, chunks);
    state->stats.exec_calls++;
    state->stats.rows += (uint64_t)batch->rows;
    state->stats.flops += state->row_flops * (uint64_t)batch->rows;
    return EVQ_OK;
}

static void cpu_stats(void *opened, struct evq_backend_stats *ret_stats)
{
    const struct cpu_state *state = opened;

    *ret_stats = state->stats;
    ret_stats->memory_bytes = state->memory;
}

const struct evq_backend_ops evq_backend_cpu = {
    .abi_version = EVQ_BACKEND_ABI,
    .name = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .caps = cpu_caps,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .prepare = cpu_prepare,
    .put = cpu_put,
    .settle = cpu_settle,
    .exec = cpu_exec,
    .stats = cpu_stats,
    .close = cpu_close,
};
