/*
 * The function table of the CPU backend.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cpu/run.h"
#include "kernels/plan.h"

#define ALIGNMENT 64

static int32_t cpu_probe(struct evq_error *err)
{
    (void)err; // A CPU always exists.
    return 1;
}

static void cpu_close(void *opened)
{
    struct evq_cpu_state *state = opened;

    if (state == NULL) {
        return;
    }
    evq_pool_free(state->pool);
    evq_weights_release(&state->weights, &state->memory);
    evq_tokens_release(&state->tokens, &state->memory);
    evq_rope_release(&state->rope, &state->memory);
    evq_memory_release(&state->memory, &state->shared);
    evq_memory_release(&state->memory, &state->threads);
    evq_schedule_release(&state->schedule);
    free(state);
}

static enum evq_status cpu_open(const struct evq_backend_config *config, void **ret_state,
                                struct evq_error *err)
{
    struct evq_cpu_state *state = calloc(1, sizeof(*state));

    if (state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "CPU backend");
    }
    state->memory.bytes_max = config->memory_bytes_max > 0 ? config->memory_bytes_max : SIZE_MAX;
    const enum evq_status status = evq_pool_new(config->threads, &state->pool, err);
    if (status != EVQ_OK) {
        cpu_close(state);
        return status;
    }
    state->isa = evq_machine_isa();
    state->kernels = evq_kernels_of(state->isa);
    state->weights.panel = state->kernels->panel;
    *ret_state = state;
    return EVQ_OK;
}

static void cpu_caps(void *opened, struct evq_backend_caps *ret_caps)
{
    const struct evq_cpu_state *state = opened;
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    char name[64];

    *ret_caps = (struct evq_backend_caps){.bf16 = state->kernels->round != NULL};
    evq_machine_name(name, sizeof(name));
    (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "%s (%s, %d threads)", name,
                   evq_machine_isa_name(state->isa), (int)evq_pool_threads(state->pool));
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

/* Allocates the activations. Memory is kept if a plan of the same shapes follows. */
static enum evq_status prepare_buffers(struct evq_cpu_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    const size_t line = ALIGNMENT / sizeof(float);
    enum evq_status status = evq_schedule_make(&state->schedule, plan, err);

    if (status != EVQ_OK) {
        return status;
    }
    const size_t scratch = evq_run_scratch_floats(state->kernels, plan);
    state->thread_floats = (state->schedule.thread_floats + scratch + line - 1) / line * line;
    status = evq_memory_resize(&state->memory, &state->threads,
                               state->thread_floats * (size_t)evq_pool_threads(state->pool) *
                                   sizeof(float),
                               "a chunk of activations for each thread", err);
    if (status == EVQ_OK) {
        status = evq_memory_resize(&state->memory, &state->shared,
                                   state->schedule.shared_floats * sizeof(float),
                                   "activations of a batch", err);
    }
    return status;
}

static enum evq_status cpu_prepare(void *opened, const struct evq_plan *plan, struct evq_error *err)
{
    struct evq_cpu_state *state = opened;

    state->plan = NULL;
    enum evq_status status = evq_plan_check(plan, err);
    if (status == EVQ_OK && plan->compute == EVQ_COMPUTE_BF16 && state->kernels->round == NULL) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED,
                               "this processor (%s) does not multiply bf16: compute in fp32",
                               evq_machine_isa_name(state->isa));
    }
    if (status == EVQ_OK) {
        status = evq_weights_prepare(&state->weights, plan, &state->memory, err);
    }
    if (status == EVQ_OK) {
        status = evq_rope_prepare(&state->rope, plan, &state->memory, err);
    }
    if (status == EVQ_OK) {
        status = evq_tokens_prepare(&state->tokens, plan, &state->memory, err);
    }
    if (status == EVQ_OK) {
        status = prepare_buffers(state, plan, err);
    }
    if (status == EVQ_OK) {
        state->plan = plan;
    }
    return status;
}

static enum evq_status cpu_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                               struct evq_error *err)
{
    struct evq_cpu_state *state = opened;
    const int32_t rows_put = state->plan != NULL && slot >= 0 && (size_t)slot < state->weights.count
                                 ? state->weights.items[slot].rows_put
                                 : 0;

    const enum evq_status status = evq_plan_blob_check(state->plan, slot, blob, rows_put, err);
    if (status == EVQ_OK) {
        evq_weights_put(&state->weights.items[slot], state->weights.panel, blob, state->pool);
    }
    return status;
}

static enum evq_status cpu_settle(void *opened, struct evq_error *err)
{
    (void)opened;
    (void)err; // put() has finished when it returns.
    return EVQ_OK;
}

static enum evq_status cpu_catch_up(void *opened, uint32_t most, uint32_t *ret_reading,
                                    struct evq_error *err)
{
    (void)opened;
    (void)most;
    (void)err;
    *ret_reading = 0; // put() has finished when it returns.
    return EVQ_OK;
}

static enum evq_status cpu_exec(void *opened, const struct evq_batch *batch,
                                struct evq_row_result *results, struct evq_error *err)
{
    struct evq_cpu_state *state = opened;

    if (state->plan == NULL) {
        return evq_error_set(err, EVQ_E_BUG, "exec before prepare");
    }
    const enum evq_status status = evq_plan_batch_check(state->plan, batch, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < state->plan->slot_count; i++) {
        const struct evq_weight *weight = &state->weights.items[i];
        if (weight->rows_put < weight->rows) {
            return evq_error_set(err, EVQ_E_BUG, "weight '%s' was never put: %d of %d rows",
                                 state->plan->slots[i].name, (int)weight->rows_put,
                                 (int)weight->rows);
        }
    }
    if (state->plan->length_max > 0) {
        evq_tokens_read(&state->tokens, batch, state->kernels->panel);
    }
    evq_run(state, batch, results);
    state->stats.exec_calls++;
    state->stats.rows += (uint64_t)batch->rows;
    state->stats.flops += evq_plan_flops(state->plan, batch);
    return EVQ_OK;
}

static void cpu_stats(void *opened, struct evq_backend_stats *ret_stats)
{
    const struct evq_cpu_state *state = opened;

    *ret_stats = state->stats;
    ret_stats->memory_bytes = state->memory.bytes;
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
    .catch_up = cpu_catch_up,
    .exec = cpu_exec,
    .stats = cpu_stats,
    .close = cpu_close,
};
