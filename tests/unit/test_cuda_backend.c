/* The CUDA backend on the emulator of tests/gpu/emulator/: whole language models against the CPU
 * backend, and the self-check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/cuda_model.h"
#include "worker/loader/selfcheck.h"

static const int32_t lengths[] = {1, 70, 2, 33, 129, 5, 0};
static const int32_t lengths_short[] = {3, 40, 1, 17, 0};
static const int32_t lengths_many[] = {130, 2, 65, 1, 147, 33, 0}; // 128 to 384 rows of products.

static const struct shape shapes[] = {
    {2, 2, 64, 300, 0, false, false, EVQ_ACT_GELU_TANH},
    {3, 3, 32, 67, 0, false, false, EVQ_ACT_GELU_ERF},
    {4, 2, 32, 131, 50, true, true, EVQ_ACT_SILU},
    {2, 1, 128, 259, 0, true, true, EVQ_ACT_SILU},
    {2, 1, 80, 64, 31, true, false, EVQ_ACT_GELU_TANH},
    {1, 1, 96, 50, 0, false, false, EVQ_ACT_RELU},
    {1, 1, 256, 40, 0, true, false, EVQ_ACT_GELU_QUICK},
    {3, 1, 24, 41, 20, true, true, EVQ_ACT_SILU}, // No tiles.
};
#if defined(__SANITIZE_ADDRESS__)
enum { STEP = 3 }; // Each takes long there.
#else
enum { STEP = 1 };
#endif
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static struct evq_row_result results[SCORES_MAX], wanted[SCORES_MAX], others[SCORES_MAX];

static void selfcheck_passes(void **unused)
{
    static const int32_t devices[] = {0, 1, 2};

    (void)unused;
    emulator_devices(3);
    must(evq_selfcheck(evq_backend_module_v1(), devices, 3, &err), &err);
    assert_true(emulator_peer_copies() > 0);
    emulator_devices(1);
}

/* A model of shapes[i], run there and here, into results and wanted. model_free(). */
static struct model *beside_the_cpu(size_t i, void *device, void *cpu, enum evq_compute compute,
                                    double *bias, double *off)
{
    struct model *model = model_new(&shapes[i], i % 2 == 0 ? lengths : lengths_short);

    run(&evq_backend_cpu, cpu, model, EVQ_COMPUTE_F32, wanted);
    run(evq_backend_module_v1(), device, model, compute, results);
    compare(model, results, wanted, bias, off);
    return model;
}

static void language_models_equal_the_cpu_in_fp32(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    void *device = open_backend(cuda);
    void *cpu = open_backend(&evq_backend_cpu);

    (void)unused;
    for (size_t i = 0; i < SHAPES; i += STEP) {
        double bias = 0.0;
        double off = 0.0;
        struct model *model = beside_the_cpu(i, device, cpu, EVQ_COMPUTE_F32, &bias, &off);
        for (int32_t s = 0; s < model->batch.scores; s++) {
            check_near(results[s].loss, wanted[s].loss, 2e-5, "loss");
            assert_int_equal(results[s].predicted, wanted[s].predicted);
            assert_int_equal(results[s].correct, wanted[s].correct);
        }
        assert_true(fabs(bias) < 2e-6);
        model_free(model);
    }
    cuda->close(device);
    evq_backend_cpu.close(cpu);
}

static void language_models_stay_near_the_cpu_in_bf16(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    void *device = open_backend(cuda);
    void *cpu = open_backend(&evq_backend_cpu);

    (void)unused;
    for (size_t i = 0; i < SHAPES; i += STEP) {
        double bias = 0.0;
        double off = 0.0;
        struct model *model = beside_the_cpu(i, device, cpu, EVQ_COMPUTE_BF16, &bias, &off);
        print_message("heads of %d: mean NLL %.1e from the CPU's in fp32, each %.1e\n",
                      (int)shapes[i].size, bias, off);
        assert_true(off < 0.03);
        assert_true(off > 1e-5); // It did round.
        assert_true(fabs(bias) < 4e-3);
        // Where cuBLASLt fuses nothing, kernels do it.
        assert_int_equal(setenv("EMULATOR_REFUSE_EPILOGUES", "1", 1), 0);
        void *apart = open_backend(cuda);
        run(cuda, apart, model, EVQ_COMPUTE_BF16, others);
        cuda->close(apart);
        assert_int_equal(unsetenv("EMULATOR_REFUSE_EPILOGUES"), 0);
        compare(model, others, wanted, &bias, &off);
        assert_true(off < 0.03);
        model_free(model);
    }
    cuda->close(device);
    evq_backend_cpu.close(cpu);
}

/* The model's sequences from `first` up to `end`, by themselves, have the bits in `results`. */
static void check_part(void *device, const struct model *model, int32_t first, int32_t end)
{
    const int32_t begin = model->starts[first];
    const int32_t rows = model->starts[end] - begin;
    int32_t starts[16], score_rows[SCORES_MAX];
    int32_t score = 0;

    while (model->score_rows[score] < begin) {
        score++;
    }
    struct evq_batch part = {.tokens = model->tokens + begin,
                             .starts = starts,
                             .score_rows = score_rows,
                             .score_targets = model->score_targets + score,
                             .sequences = end - first,
                             .rows = rows};
    for (int32_t s = first; s <= end; s++) {
        starts[s - first] = model->starts[s] - begin;
    }
    for (int32_t s = score; s < model->batch.scores && model->score_rows[s] < begin + rows; s++) {
        score_rows[part.scores++] = model->score_rows[s] - begin;
    }
    must(evq_backend_module_v1()->exec(device, &part, others, &err), &err);
    for (int32_t s = 0; s < part.scores; s++) {
        assert_memory_equal(&others[s].loss, &results[score + s].loss, sizeof(others[s].loss));
    }
}

/* Alone, in a batch, in its halves, on one device or two; also where cuBLASLt fuses nothing. */
static void sequences_have_the_same_bits_in_any_batch_in_bf16(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        struct model *model = model_new(&shapes[i / 2 * 2], lengths_many);
        const int32_t count = model->batch.sequences;
        if (i % 2 == 1) {
            assert_int_equal(setenv("EMULATOR_REFUSE_EPILOGUES", "1", 1), 0);
        }
        void *device = open_backend(cuda);
        void *second = open_backend(cuda);
        run(cuda, second, model, EVQ_COMPUTE_BF16, others);
        run(cuda, device, model, EVQ_COMPUTE_BF16, results);
        check_part(device, model, 0, count / 2);
        check_part(second, model, count / 2, count);
        for (int32_t s = 0; s < count; s++) {
            check_part(device, model, s, s + 1);
        }
        cuda->close(second);
        cuda->close(device);
        assert_int_equal(unsetenv("EMULATOR_REFUSE_EPILOGUES"), 0);
        model_free(model);
    }
}

struct told {
    struct evq_row_result *last;
    int32_t times, before; // The last result was there.
};

static void count_told(void *listener)
{
    struct told *told = listener;

    told->times++;
    told->before += !isnan(told->last->loss);
}

/* Launches return at once: what is told must be what the device did. */
static void batch_tells_of_its_steps(void **unused)
{
    const struct evq_backend_ops *cuda = evq_backend_module_v1();
    struct model *model = model_new(&shapes[3], lengths_short);
    struct told told = {.last = &results[model->batch.scores - 1]};
    void *device = open_backend(cuda);

    (void)unused;
    run(cuda, device, model, EVQ_COMPUTE_F32, results);
    model->batch.tell = count_told;
    model->batch.listener = &told;
    memset(results, 0xff, sizeof(results));
    must(cuda->exec(device, &model->batch, results, &err), &err);
    assert_int_equal(told.times, model->plan.op_count);
    assert_int_equal(told.before, 0);
    cuda->close(device);
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selfcheck_passes),
        cmocka_unit_test(language_models_equal_the_cpu_in_fp32),
        cmocka_unit_test(language_models_stay_near_the_cpu_in_bf16),
        cmocka_unit_test(sequences_have_the_same_bits_in_any_batch_in_bf16),
        cmocka_unit_test(batch_tells_of_its_steps),
    };

    print_message("seed %llu\n", (unsigned long long)random_state);
    if (setenv("NVIDIA_TF32_OVERRIDE", "1", 1) != 0) { // As trainings set it; fp32 stays fp32.
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
