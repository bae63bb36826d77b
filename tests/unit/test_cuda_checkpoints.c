/* What the CUDA backend keeps, frees and refuses from one checkpoint to the next, on the emulator
 * of tests/gpu/emulator/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/state.h"
#include "tests/unit/cuda_model.h"

static const int32_t lengths[] = {3, 22, 1, 0};
static const struct shape gated = {4, 2, 32, 131, 20, true, true, EVQ_ACT_SILU};
static const struct shape wide = {2, 2, 80, 607, 0, true, false, EVQ_ACT_SILU};
static struct evq_row_result results[SCORES_MAX], wanted[SCORES_MAX];
static const struct shape plain = {2, 2, 32, 67, 0, false, false, EVQ_ACT_GELU_ERF};

static void assert_same_bits(const struct model *model, const struct evq_row_result *a,
                             const struct evq_row_result *b)
{
    for (int32_t s = 0; s < model->batch.scores; s++) {
        assert_false(isnan(a[s].loss));
        assert_memory_equal(&a[s].loss, &b[s].loss, sizeof(a[s].loss));
        assert_int_equal(a[s].predicted, b[s].predicted);
    }
}

static void second_checkpoint_allocates_nothing(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();

    (void)unused;
    for (int compute = 0; compute < EVQ_COMPUTE_COUNT; compute++) {
        struct evq_cuda_state *state = open_backend(cuda);
        struct model *first = model_new(&gated, lengths);
        struct model *second = model_new(&gated, lengths);
        run(cuda, state, first, (enum evq_compute)compute, wanted);
        const size_t allocations = emulator_allocations();
        const uint64_t lookups = state->products.lookups;
        const size_t memory = state->memory;
        run(cuda, state, second, (enum evq_compute)compute, results);
        assert_int_equal(emulator_allocations(), allocations);
        assert_int_equal(state->products.lookups, lookups);
        assert_int_equal(state->memory, memory);
        assert_true(results[0].loss != wanted[0].loss); // Other weights, not what was there.
        assert_true(compute == EVQ_COMPUTE_F32 || lookups > 0);
        run(cuda, state, first, (enum evq_compute)compute, results);
        assert_same_bits(first, results, wanted);
        cuda->close(state);
        model_free(first);
        model_free(second);
    }
    assert_int_equal(emulator_blocks_held(), 0);
}

static void plans_of_other_kinds_take_turns(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *models[] = {model_new(&gated, lengths), model_new(&plain, lengths)};
    void *state = open_backend(cuda);

    (void)unused;
    for (int turn = 0; turn < 5; turn++) {
        struct model *model = models[turn % 2];
        const enum evq_compute compute = turn / 2 % 2 == 0 ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32;
        void *fresh = open_backend(cuda);
        run(cuda, fresh, model, compute, wanted);
        cuda->close(fresh);
        run(cuda, state, model, compute, results);
        assert_same_bits(model, results, wanted);
    }
    cuda->close(state);
    model_free(models[0]);
    model_free(models[1]);
    assert_int_equal(emulator_blocks_held(), 0);
}

/* The blob of rows [first, first + rows) of a slot, its values in another form. */
static void put_form(void *state, const struct model *model, int32_t slot, int32_t first,
                     int32_t rows, bool short_values, bool transposed)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    const size_t columns = (size_t)model->slots[slot].columns;
    const float *from = model->weights[slot] + (size_t)first * columns;
    float *floats = malloc((size_t)rows * columns * sizeof(*floats));
    uint16_t *shorts = malloc((size_t)rows * columns * sizeof(*shorts));

    assert_true(floats != NULL && shorts != NULL);
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            const size_t to = transposed ? c * (size_t)rows + r : r * columns + c;
            floats[to] = from[r * columns + c];
            shorts[to] = to_bf16(floats[to]);
        }
    }
    const struct evq_weight_blob blob = {.values = short_values ? (const void *)shorts : floats,
                                         .type = short_values ? EVQ_WEIGHT_BF16 : EVQ_WEIGHT_F32,
                                         .first_row = first,
                                         .rows = rows,
                                         .transposed = transposed};
    must(cuda->put(state, slot, &blob, &err), &err);
    must(cuda->settle(state, &err), &err); // Only now may the values go.
    free(floats);
    free(shorts);
}

static void weights_come_in_any_form(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();

    (void)unused;
    for (int turn = 0; turn < 4; turn++) {
        struct model *model = model_new(turn < 2 ? &gated : &plain, lengths);
        void *state = open_backend(cuda);
        const enum evq_compute compute = turn % 2 == 0 ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32;
        run(cuda, state, model, compute, wanted);
        cuda->close(state);
        state = open_backend(cuda);
        must(cuda->prepare(state, &model->plan, &err), &err);
        for (size_t i = 0; i < model->plan.slot_count; i++) {
            const int32_t rows = model->slots[i].rows;
            const int32_t part = rows > 4 ? rows / 3 : rows;
            for (int32_t first = 0; first < rows; first += part) {
                put_form(state, model, (int32_t)i, first, rows - first < part ? rows - first : part,
                         (turn + (int)i) % 2 == 0, (turn / 2 + (int)i) % 2 == 0);
            }
        }
        must(cuda->exec(state, &model->batch, results, &err), &err);
        assert_same_bits(model, results, wanted);
        cuda->close(state);
        model_free(model);
    }
}

/* An exec() that fails has copies on their way, and has waited for them: the emulator finds what
 * the host writes too early. */
static void batch_may_change_when_exec_has_failed(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&gated, lengths);
    void *state = open_backend(cuda);

    (void)unused;
    run(cuda, state, model, EVQ_COMPUTE_BF16, wanted);
    emulator_fail(cudaErrorInvalidValue); // The first launch is told.
    assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_DEVICE);
    for (int32_t r = 0; r < model->batch.rows; r++) {
        model->tokens[r] = -1 - model->tokens[r];
    }
    for (int32_t r = 0; r < model->batch.rows; r++) {
        model->tokens[r] = -1 - model->tokens[r];
    }
    must(cuda->exec(state, &model->batch, results, &err), &err);
    assert_same_bits(model, results, wanted);
    cuda->close(state);
    model_free(model);
}

/* Where nothing decides which thread runs on first, nothing may depend on it. */
static void order_of_threads_changes_no_bit(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&gated, lengths);
    void *state = open_backend(cuda);

    (void)unused;
    emulator_order(EMULATOR_FORWARD, 1);
    run(cuda, state, model, EVQ_COMPUTE_BF16, wanted);
    for (uint64_t turn = 0; turn < 3; turn++) {
        emulator_order(turn == 0 ? EMULATOR_BACKWARD : EMULATOR_RANDOM,
                       fixture_random(&random_state));
        run(cuda, state, model, EVQ_COMPUTE_BF16, results);
        assert_same_bits(model, results, wanted);
    }
    emulator_order(EMULATOR_FORWARD, 1);
    cuda->close(state);
    model_free(model);
}

static void nan_weights_give_nan_losses(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&plain, lengths);
    void *state = open_backend(cuda);

    (void)unused;
    for (int turn = 0; turn < 6; turn++) {
        // The vocabulary's last row, the first norm's scale, the projection behind it.
        const size_t at = turn / 2 == 0 ? 0 : turn / 2 == 1 ? 2 : 4;
        const size_t count = (size_t)model->slots[at].rows * (size_t)model->slots[at].columns;
        float *weight = &model->weights[at][count - 1];
        const float before = *weight;
        *weight = NAN;
        run(cuda, state, model, turn % 2 == 0 ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32, results);
        for (int32_t s = 0; s < model->batch.scores; s++) {
            assert_true(isnan(results[s].loss));
            assert_int_equal(results[s].predicted, -1);
            assert_false(results[s].correct);
        }
        *weight = before;
    }
    cuda->close(state);
    model_free(model);
}

static void memory_that_runs_out_is_a_status(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&gated, lengths);
    void *state = open_backend(cuda);

    (void)unused;
    run(cuda, state, model, EVQ_COMPUTE_BF16, wanted);
    struct evq_backend_stats stats;
    cuda->stats(state, &stats);
    cuda->close(state);
    for (size_t part = 1; part < 8; part += 2) {
        state = open_backend(cuda);
        emulator_memory(stats.memory_bytes * part / 8);
        assert_int_equal(cuda->prepare(state, &model->plan, &err), EVQ_E_NOMEM);
        assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_BUG);
        emulator_memory((size_t)4 << 30);
        run(cuda, state, model, EVQ_COMPUTE_BF16, results);
        assert_same_bits(model, results, wanted);
        cuda->close(state);
    }
    assert_int_equal(emulator_blocks_held(), 0);
    model_free(model);
}

/* A loader asks for less then, and goes on: what failed is not found again by the next launch. */
static void pinned_memory_that_runs_out_is_forgotten(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&plain, lengths);
    void *state = open_backend(cuda);
    void *host = NULL;

    (void)unused;
    assert_int_equal(cuda->alloc(state, (size_t)5 << 30, &host, &err), EVQ_E_NOMEM);
    assert_null(host);
    run(cuda, state, model, EVQ_COMPUTE_F32, results);
    cuda->close(state);
    model_free(model);
}

/* Each allocation of a plan fails once; the next attempt misses nothing of it. */
static void any_allocation_may_fail_once(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&plain, lengths);
    size_t limit = 0;
    int failed = 0;

    (void)unused;
    struct evq_cuda_state *state = open_backend(cuda);
    run(cuda, state, model, EVQ_COMPUTE_BF16, wanted);
    cuda->close(state);
    for (;; failed++) {
        size_t bytes = 0;
        state = open_backend(cuda);
        state->memory_max = limit;
        const enum evq_status status = cuda->prepare(state, &model->plan, &err);
        if (status == EVQ_OK) {
            break;
        }
        assert_int_equal(status, EVQ_E_NOMEM);
        assert_int_equal(sscanf(err.message, "%zu bytes", &bytes), 1);
        limit += bytes; // The next time another one fails.
        state->memory_max = SIZE_MAX;
        run(cuda, state, model, EVQ_COMPUTE_BF16, results);
        assert_same_bits(model, results, wanted);
        cuda->close(state);
    }
    assert_true(failed > 20);
    cuda->close(state);
    model_free(model);
}

/* What prepares, runs and holds the model with batches of so many rows; and that much memory. */
static size_t memory_for(struct model *model, enum evq_compute compute, int32_t rows_max)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct evq_cuda_state *state = open_backend(cuda);

    model->plan.rows_max = rows_max;
    run(cuda, state, model, compute, wanted);
    const size_t bytes = state->memory;
    cuda->close(state);
    return bytes;
}

/* What did not fit is not in the way of what would. */
static void smaller_batches_take_the_memory_of_larger_ones(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&gated, lengths);

    (void)unused;
    for (int compute = 0; compute < EVQ_COMPUTE_COUNT; compute++) {
        struct evq_cuda_state *state = open_backend(cuda);
        emulator_memory(memory_for(model, (enum evq_compute)compute, 1024));
        for (model->plan.rows_max = 8192; model->plan.rows_max > 1024; model->plan.rows_max /= 2) {
            assert_int_equal(cuda->prepare(state, &model->plan, &err), EVQ_E_NOMEM);
            assert_non_null(strstr(err.message, "memory"));
            assert_int_equal(state->memory, 0); // Others may need it.
        }
        run(cuda, state, model, (enum evq_compute)compute, results);
        assert_same_bits(model, results, wanted);
        cuda->close(state);
        emulator_memory((size_t)4 << 30);
    }
    model_free(model);
}

/* As the evaluator does: half the rows, with the weights that are there. */
static void batch_without_memory_runs_with_fewer_rows(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&plain, lengths);

    (void)unused;
    assert_int_equal(setenv("EMULATOR_REFUSE_EPILOGUES", "1", 1), 0); // Products want room, late.
    (void)memory_for(model, EVQ_COMPUTE_BF16, 2048);
    struct evq_cuda_state *state = open_backend(cuda);
    model->plan.rows_max = 4096;
    must(cuda->prepare(state, &model->plan, &err), &err);
    put_all(cuda, state, model);
    state->memory_max = state->memory;
    assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_NOMEM);
    model->plan.rows_max = 2048;
    must(cuda->prepare(state, &model->plan, &err), &err);
    must(cuda->exec(state, &model->batch, results, &err), &err);
    assert_same_bits(model, results, wanted);
    cuda->close(state);
    assert_int_equal(unsetenv("EMULATOR_REFUSE_EPILOGUES"), 0);
    model_free(model);
}

/* A kernel that finds no room to be loaded makes batches smaller, as anything does that finds none,
 * whether cuBLAS says so or the runtime. */
static void kernel_without_memory_runs_with_fewer_rows(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&gated, lengths);
    const size_t kernel = (size_t)64 << 10;

    (void)unused;
    for (int turn = 0; turn < 2 * EVQ_COMPUTE_COUNT; turn++) {
        const enum evq_compute compute = (enum evq_compute)(turn / 2);
        (void)memory_for(model, compute, 1024);
        struct evq_cuda_state *state = open_backend(cuda);
        model->plan.rows_max = 8192;
        must(cuda->prepare(state, &model->plan, &err), &err);
        put_all(cuda, state, model);
        emulator_memory(state->memory + kernel / 2);
        if (turn % 2 == 0) {
            emulator_kernel(kernel);
        } else {
            emulator_fail(cudaErrorMemoryAllocation);
        }
        const size_t before = state->memory;
        assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_NOMEM);
        model->plan.rows_max = 1024;
        must(cuda->prepare(state, &model->plan, &err), &err);
        assert_true(state->memory < before);
        must(cuda->exec(state, &model->batch, results, &err), &err);
        assert_same_bits(model, results, wanted);
        cuda->close(state);
        emulator_kernel(0);
        emulator_memory((size_t)4 << 30);
    }
    model_free(model);
}

/* The same of the kernel that converts weights: what is prepared next gives memory back. */
static void kernel_without_memory_ends_a_put(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&gated, lengths);
    const struct evq_weight_blob blob = {
        .values = model->weights[0], .type = EVQ_WEIGHT_F32, .rows = model->slots[0].rows};
    struct evq_cuda_state *state = open_backend(cuda);

    (void)unused;
    (void)memory_for(model, EVQ_COMPUTE_BF16, 1024);
    model->plan.rows_max = 8192;
    must(cuda->prepare(state, &model->plan, &err), &err);
    const size_t before = state->memory;
    emulator_fail(cudaErrorMemoryAllocation);
    assert_int_equal(cuda->put(state, 0, &blob, &err), EVQ_E_NOMEM);
    model->plan.rows_max = 1024;
    run(cuda, state, model, EVQ_COMPUTE_BF16, results);
    assert_same_bits(model, results, wanted);
    assert_true(state->memory < before);
    cuda->close(state);
    model_free(model);
}

/* Prepares and loads; once more where loading found no memory, as the evaluator does. */
static void load_in_little_memory(void *state, const struct model *model)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    enum evq_status status = EVQ_E_NOMEM;

    for (int tries = 0; tries < 2 && status == EVQ_E_NOMEM; tries++) {
        must(cuda->prepare(state, &model->plan, &err), &err);
        status = EVQ_OK;
        for (size_t i = 0; i < model->plan.slot_count && status == EVQ_OK; i++) {
            const struct evq_weight_blob blob = {
                .values = model->weights[i], .type = EVQ_WEIGHT_F32, .rows = model->slots[i].rows};
            status = cuda->put(state, (int32_t)i, &blob, &err);
        }
    }
    must(status, &err);
    must(cuda->settle(state, &err), &err);
}

/* Weights of two models never need to be there together. */
static void models_take_turns_in_the_memory_of_one(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *models[] = {model_new(&gated, lengths), model_new(&wide, lengths)};

    (void)unused;
    for (int compute = 0; compute < EVQ_COMPUTE_COUNT; compute++) {
        struct evq_cuda_state *state = open_backend(cuda);
        state->memory_max = 0;
        for (int i = 0; i < 2; i++) {
            const size_t bytes = memory_for(models[i], (enum evq_compute)compute, 64);
            state->memory_max = bytes > state->memory_max ? bytes : state->memory_max;
        }
        for (int turn = 0; turn < 4; turn++) {
            (void)memory_for(models[turn % 2], (enum evq_compute)compute, 64);
            load_in_little_memory(state, models[turn % 2]);
            must(cuda->exec(state, &models[turn % 2]->batch, results, &err), &err);
            assert_same_bits(models[turn % 2], results, wanted);
        }
        cuda->close(state);
    }
    model_free(models[0]);
    model_free(models[1]);
    assert_int_equal(emulator_blocks_held(), 0);
}

static void what_bf16_does_not_do_is_refused(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&plain, lengths);
    void *state = open_backend(cuda);
    struct evq_plan *plan = &model->plan;

    (void)unused;
    plan->compute = EVQ_COMPUTE_BF16;
    model->ops[0].bias = model->ops[0].weight; // Positions that are the vocabulary.
    model->slots[0].rows = plan->length_max = plan->rows_max = 67;
    assert_int_equal(cuda->prepare(state, plan, &err), EVQ_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "both a matrix and something else"));
    cuda->close(state);
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_checkpoint_allocates_nothing),
        cmocka_unit_test(plans_of_other_kinds_take_turns),
        cmocka_unit_test(weights_come_in_any_form),
        cmocka_unit_test(batch_may_change_when_exec_has_failed),
        cmocka_unit_test(order_of_threads_changes_no_bit),
        cmocka_unit_test(nan_weights_give_nan_losses),
        cmocka_unit_test(memory_that_runs_out_is_a_status),
        cmocka_unit_test(pinned_memory_that_runs_out_is_forgotten),
        cmocka_unit_test(any_allocation_may_fail_once),
        cmocka_unit_test(smaller_batches_take_the_memory_of_larger_ones),
        cmocka_unit_test(batch_without_memory_runs_with_fewer_rows),
        cmocka_unit_test(kernel_without_memory_runs_with_fewer_rows),
        cmocka_unit_test(kernel_without_memory_ends_a_put),
        cmocka_unit_test(models_take_turns_in_the_memory_of_one),
        cmocka_unit_test(what_bf16_does_not_do_is_refused),
    };

    print_message("seed %llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
