/* The CUDA backend with a plan split over several devices of the emulator of tests/gpu/emulator/,
 * where a kernel that reaches the memory of another device ends the program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cuda/state.h"
#include "tests/unit/cuda_model.h"

static const int32_t lengths[] = {3, 22, 1, 0};
static const int32_t three[] = {0, 1, 2};
static const struct shape shapes[] = {
    {4, 2, 32, 131, 20, true, true, EVQ_ACT_SILU}, // Norms of heads and rope in one pass.
    {2, 2, 32, 67, 0, false, false, EVQ_ACT_GELU_TANH},
    {3, 1, 24, 41, 0, true, false, EVQ_ACT_GELU_ERF},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static struct evq_row_result results[SCORES_MAX], wanted[SCORES_MAX];

static struct evq_cuda_state *open_devices(const int32_t *devices, int32_t count)
{
    const struct evq_backend_config config = {.devices = devices, .device_count = count};
    void *state = NULL;

    must(evq_backend_module_v1()->open(&config, &state, &err), &err);
    return state;
}

static void assert_same_bits(const struct model *model, const struct evq_row_result *a,
                             const struct evq_row_result *b)
{
    for (int32_t s = 0; s < model->batch.scores; s++) {
        assert_false(isnan(a[s].loss));
        assert_memory_equal(&a[s].loss, &b[s].loss, sizeof(a[s].loss));
        assert_int_equal(a[s].predicted, b[s].predicted);
    }
}

static size_t weight_bytes(const struct evq_cuda_state *state)
{
    size_t bytes = 0;

    for (size_t i = 0; i < state->weight_count; i++) {
        bytes += state->weights[i].block.bytes + state->weights[i].rounded.bytes;
    }
    return bytes;
}

/* Runs the model on one device, into `wanted`. Returns what its weights take there. */
static size_t run_on_one(struct model *model, enum evq_compute compute)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct evq_cuda_state *state = open_devices(three, 1);

    run(cuda, state, model, compute, wanted);
    const size_t bytes = weight_bytes(state);
    cuda->close(state);
    return bytes;
}

static void several_devices_give_the_bits_of_one(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();

    (void)unused;
    for (size_t i = 0; i < SHAPES * EVQ_COMPUTE_COUNT; i++) {
        const enum evq_compute compute = (enum evq_compute)(i % EVQ_COMPUTE_COUNT);
        struct model *model = model_new(&shapes[i / EVQ_COMPUTE_COUNT], lengths);
        const size_t whole = run_on_one(model, compute);
        for (int32_t count = 2; count <= 3; count++) {
            struct evq_cuda_state *state = open_devices(three, count);
            const size_t copies = emulator_peer_copies();
            run(cuda, state, model, compute, results);
            assert_same_bits(model, results, wanted);
            assert_int_equal(emulator_peer_copies() - copies, count - 1);
            for (const struct evq_cuda_state *at = state; at != NULL; at = at->next) {
                assert_true(weight_bytes(at) > 0 && weight_bytes(at) < whole * 3 / 4);
            }
            // The tied embeddings are on the first and on the last device alone.
            assert_int_equal(state->weights[0].rows, model->slots[0].rows);
            for (const struct evq_cuda_state *at = state->next; at != NULL; at = at->next) {
                assert_int_equal(at->weights[0].rows, at->next == NULL ? model->slots[0].rows : 0);
            }
            cuda->close(state);
        }
        model_free(model);
    }
    assert_int_equal(emulator_blocks_held(), 0);
}

static void one_device_may_be_named_twice(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    static const int32_t twice[] = {0, 0};
    struct model *model = model_new(&shapes[0], lengths);
    struct evq_cuda_state *state = open_devices(twice, 2);

    (void)unused;
    (void)run_on_one(model, EVQ_COMPUTE_BF16);
    run(cuda, state, model, EVQ_COMPUTE_BF16, results);
    assert_same_bits(model, results, wanted);
    cuda->close(state);
    model_free(model);
}

static void second_checkpoint_allocates_nothing(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *first = model_new(&shapes[0], lengths);
    struct model *second = model_new(&shapes[0], lengths);
    struct evq_cuda_state *state = open_devices(three, 3);
    struct evq_backend_stats before;
    struct evq_backend_stats after;

    (void)unused;
    run(cuda, state, first, EVQ_COMPUTE_BF16, results);
    const size_t allocations = emulator_allocations();
    cuda->stats(state, &before);
    assert_int_equal(before.memory_bytes,
                     state->memory + state->next->memory + state->next->next->memory);
    (void)run_on_one(second, EVQ_COMPUTE_BF16);
    const size_t between = emulator_allocations();
    run(cuda, state, second, EVQ_COMPUTE_BF16, results);
    assert_same_bits(second, results, wanted);
    cuda->stats(state, &after);
    assert_true(between > allocations);
    assert_int_equal(emulator_allocations(), between);
    assert_int_equal(after.memory_bytes, before.memory_bytes);
    assert_int_equal(after.exec_calls, 2);
    assert_int_equal(after.rows, 2 * first->batch.rows);
    cuda->close(state);
    model_free(first);
    model_free(second);
}

static void assert_nothing_held(const struct evq_cuda_state *state)
{
    for (; state != NULL; state = state->next) {
        assert_int_equal(state->memory, 0);
    }
}

/* The evaluator halves its batches then, and all devices must be able to. */
static void memory_that_runs_out_on_one_device_is_given_back_by_all(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&shapes[0], lengths);

    (void)unused;
    (void)run_on_one(model, EVQ_COMPUTE_BF16);
    for (int device = 0; device < 3; device++) {
        char name[32];
        struct evq_cuda_state *state = open_devices(three, 3);
        run(cuda, state, model, EVQ_COMPUTE_BF16, results);
        struct evq_cuda_state *lacks = device == 0   ? state
                                       : device == 1 ? state->next
                                                     : state->next->next;
        const size_t enough = lacks->memory;
        cuda->close(state);
        state = open_devices(three, 3);
        emulator_memory_of(device, enough);
        model->plan.rows_max = 8192;
        assert_int_equal(cuda->prepare(state, &model->plan, &err), EVQ_E_NOMEM);
        (void)snprintf(name, sizeof(name), "GPU %d of 3: ", device + 1);
        assert_non_null(strstr(err.message, name));
        assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_BUG);
        assert_nothing_held(state);
        model->plan.rows_max = model->batch.rows + 3;
        run(cuda, state, model, EVQ_COMPUTE_BF16, results);
        assert_same_bits(model, results, wanted);
        cuda->close(state);
        emulator_memory((size_t)4 << 30);
    }
    assert_int_equal(emulator_blocks_held(), 0);
    model_free(model);
}

/* exec() lacks memory on the second device alone: with fewer rows, the weights are still there. */
static void batch_without_memory_on_one_device_runs_with_fewer_rows(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&shapes[1], lengths);
    struct evq_cuda_state *state = open_devices(three, 2);

    (void)unused;
    (void)run_on_one(model, EVQ_COMPUTE_BF16);
    assert_int_equal(setenv("EMULATOR_REFUSE_EPILOGUES", "1", 1), 0); // Products want room, late.
    model->plan.rows_max = 4096;
    must(cuda->prepare(state, &model->plan, &err), &err);
    put_all(cuda, state, model);
    state->next->memory_max = state->next->memory;
    assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_NOMEM);
    assert_non_null(strstr(err.message, "GPU 2 of 2: "));
    model->plan.rows_max = 1024;
    must(cuda->prepare(state, &model->plan, &err), &err);
    must(cuda->exec(state, &model->batch, results, &err), &err);
    assert_int_equal(unsetenv("EMULATOR_REFUSE_EPILOGUES"), 0);
    cuda->close(state);
    model_free(model);
}

static void tell(void *listener)
{
    (*(int *)listener)++;
}

static void listener_hears_of_every_device(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&shapes[0], lengths);
    int told[2] = {0, 0};

    (void)unused;
    for (int32_t count = 1; count <= 2; count++) {
        struct evq_cuda_state *state = open_devices(three, count);
        run(cuda, state, model, EVQ_COMPUTE_F32, results);
        model->batch.tell = tell;
        model->batch.listener = &told[count - 1];
        must(cuda->exec(state, &model->batch, results, &err), &err);
        model->batch.tell = NULL;
        cuda->close(state);
    }
    assert_true(told[0] > 10 && told[1] >= told[0]);
    model_free(model);
}

/* An exec() that fails has work on its way on all devices, and has waited for it. */
static void batch_may_change_when_exec_has_failed(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&shapes[0], lengths);
    struct evq_cuda_state *state = open_devices(three, 2);

    (void)unused;
    run(cuda, state, model, EVQ_COMPUTE_BF16, wanted);
    state->next->device = 7; // There is no such device: the second part fails.
    assert_int_equal(cuda->exec(state, &model->batch, results, &err), EVQ_E_DEVICE);
    assert_non_null(strstr(err.message, "GPU 2 of 2: choose the GPU"));
    for (int32_t r = 0; r < model->batch.rows; r++) {
        model->tokens[r] = -1 - model->tokens[r];
    }
    for (int32_t r = 0; r < model->batch.rows; r++) {
        model->tokens[r] = -1 - model->tokens[r];
    }
    state->next->device = 1;
    must(cuda->exec(state, &model->batch, results, &err), &err);
    assert_same_bits(model, results, wanted);
    cuda->close(state);
    model_free(model);
}

static void missing_device_is_named(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    static const int32_t missing[] = {0, 5};
    const struct evq_backend_config config = {.devices = missing, .device_count = 2};
    const struct evq_backend_config many = {.devices = missing, .device_count = 65};
    void *opened = NULL;
    struct evq_backend_caps caps;

    (void)unused;
    assert_int_equal(cuda->open(&config, &opened, &err), EVQ_E_DEVICE);
    assert_non_null(strstr(err.message, "GPU 2 of 2: choose the GPU"));
    assert_int_equal(cuda->open(&many, &opened, &err), EVQ_E_INVALID);
    assert_null(opened);
    opened = open_devices(three, 3);
    cuda->caps(opened, &caps);
    assert_string_equal(caps.device, "3 x emulator");
    assert_true(caps.memory_bytes == (size_t)12 << 30);
    cuda->close(opened);
}

/* A perceptron of so many layers, each `width` wide; a classifier's loss last. */
static void perceptron(struct model *model, int32_t layers, int32_t width)
{
    *model = (struct model){.columns = {width, width, width}};
    model->plan = (struct evq_plan){.ops = model->ops,
                                    .slots = model->slots,
                                    .buffer_count = 3,
                                    .buffer_columns = model->columns,
                                    .rows_max = 16};
    for (int32_t i = 0; i < layers; i++) {
        add_gemm(model, i == 0 ? 0 : 1 + (i - 1) % 2, 1 + i % 2, width, width, true, 0,
                 EVQ_ACT_RELU);
    }
    add(model, (struct evq_op){.kind = EVQ_OP_CROSS_ENTROPY,
                               .in = 1 + (layers - 1) % 2,
                               .out = -1,
                               .weight = -1,
                               .bias = -1,
                               .n = width});
}

static void perceptrons_are_split_where_they_have_layers(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    static const int32_t labels[] = {0, 5, 2, 7, 1};
    float inputs[5 * 8];

    (void)unused;
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        inputs[i] = random_value(1.0f);
    }
    for (int32_t layers = 1; layers <= 4; layers++) {
        struct model *model = calloc(1, sizeof(*model));
        assert_non_null(model);
        perceptron(model, layers, 8);
        model->batch = (struct evq_batch){.rows = 5, .inputs = inputs, .labels = labels};
        (void)run_on_one(model, EVQ_COMPUTE_F32);
        struct evq_cuda_state *state = open_devices(three, 3);
        run(cuda, state, model, EVQ_COMPUTE_F32, results);
        assert_memory_equal(results, wanted, 5 * sizeof(results[0]));
        int used = 0;
        for (const struct evq_cuda_state *at = state; at != NULL; at = at->next) {
            used += at->part.first < at->part.end;
            assert_int_equal(at->memory > 0, at->part.first < at->part.end);
        }
        // One layer is all on the first device; of four, two are together.
        assert_int_equal(used, layers < 4 ? layers : 2);
        cuda->close(state);
        model_free(model);
    }
}

/* The parts are in order, and no cut makes the largest of two smaller. */
static void cuts_balance_the_weights(void **unused)
{
    (void)unused;
    for (int32_t layers = 1; layers <= 30; layers++) {
        struct model *model = calloc(1, sizeof(*model));
        struct evq_cuda_part parts[4];
        assert_non_null(model);
        perceptron(model, layers, 4);
        for (size_t count = 1; count <= 4; count++) {
            int32_t most = 0;
            size_t at = 0;
            must(evq_cuda_cut(&model->plan, count, parts, &err), &err);
            for (size_t p = 0; p < count; p++) {
                int32_t products = 0;
                assert_int_equal(parts[p].first, at);
                assert_true(parts[p].end >= at);
                assert_true((p == 0 || parts[p].first == parts[p].end) == (parts[p].taken == -1));
                for (at = parts[p].first; at < parts[p].end; at++) {
                    products += model->ops[at].kind == EVQ_OP_GEMM;
                }
                most = products > most ? products : most;
            }
            assert_int_equal(at, model->plan.op_count);
            assert_int_equal(most, (layers + (int32_t)count - 1) / (int32_t)count);
        }
        model_free(model);
    }
}

/* Norms of heads and rope are one pass in bf16. Here nothing but their buffer is needed, so that a
 * cut could come between them. */
static void cuts_leave_operations_in_place_together(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    enum { QKV_OP = 1, ATTENTION_OP = 5, SCORE_OP = 6 };
    struct model *model = model_new(&shapes[0], lengths);
    const int32_t width = model->columns[ATTENDED];
    struct evq_cuda_part parts[8];

    (void)unused;
    memmove(model->ops + QKV_OP, model->ops + QKV_OP + 1, 5 * sizeof(model->ops[0]));
    model->ops[QKV_OP].in = STREAM; // Without the norm before it; what follows ends the plan.
    model->ops[SCORE_OP] = (struct evq_op){.kind = EVQ_OP_SCORE,
                                           .in = ATTENDED,
                                           .out = -1,
                                           .weight = slot(model, shapes[0].vocabulary, width, 0.2f),
                                           .bias = -1,
                                           .n = shapes[0].vocabulary,
                                           .k = width};
    model->plan.op_count = SCORE_OP + 1;
    must(evq_cuda_cut(&model->plan, 8, parts, &err), &err);
    assert_true(parts[1].first < model->plan.op_count);
    for (size_t p = 1; p < 8 && parts[p].first < model->plan.op_count; p++) {
        assert_true(parts[p].first == QKV_OP || parts[p].first >= ATTENTION_OP);
    }
    (void)run_on_one(model, EVQ_COMPUTE_BF16);
    struct evq_cuda_state *state = open_devices(three, 3);
    run(cuda, state, model, EVQ_COMPUTE_BF16, results);
    assert_same_bits(model, results, wanted);
    cuda->close(state);
    model_free(model);
}

/* What a process says that gives the second device the first one's memory for a slot that both
 * have, or for the first device's slot. The process must end. */
static void end_of(struct model *model, size_t to, size_t from, char *said, size_t room)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    int ends[2];
    int status = 0;

    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct evq_cuda_state *state = open_devices(three, 2);
        if (dup2(ends[1], STDERR_FILENO) >= 0) {
            run(cuda, state, model, EVQ_COMPUTE_F32, results);
            state->next->weights[to].block = state->weights[from].block;
            (void)!cuda->exec(state, &model->batch, results, NULL);
        }
        _exit(0);
    }
    assert_int_equal(close(ends[1]), 0);
    size_t length = 0;
    for (ssize_t got = 1; got > 0; length += got > 0 ? (size_t)got : 0) {
        got = read(ends[0], said + length, room - 1 - length);
    }
    said[length] = '\0';
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void memory_of_another_device_ends_the_program(void **unused)
{
    struct model *model = model_new(&shapes[1], lengths);
    char said[1024];

    (void)unused;
    end_of(model, 0, 0, said, sizeof(said)); // A product reads the tied embeddings.
    assert_non_null(strstr(said, "that are not those of device 1"));
#if defined(__SANITIZE_THREAD__) // Only then kernels tell what they read: here the last norm.
    end_of(model, model->plan.slot_count - 3, 2, said, sizeof(said));
    assert_non_null(strstr(said, "work of device 1 reads memory of device 0"));
#endif
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_devices_give_the_bits_of_one),
        cmocka_unit_test(one_device_may_be_named_twice),
        cmocka_unit_test(second_checkpoint_allocates_nothing),
        cmocka_unit_test(memory_that_runs_out_on_one_device_is_given_back_by_all),
        cmocka_unit_test(batch_without_memory_on_one_device_runs_with_fewer_rows),
        cmocka_unit_test(listener_hears_of_every_device),
        cmocka_unit_test(batch_may_change_when_exec_has_failed),
        cmocka_unit_test(missing_device_is_named),
        cmocka_unit_test(perceptrons_are_split_where_they_have_layers),
        cmocka_unit_test(cuts_balance_the_weights),
        cmocka_unit_test(cuts_leave_operations_in_place_together),
        cmocka_unit_test(memory_of_another_device_ends_the_program),
    };

    emulator_devices(3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
