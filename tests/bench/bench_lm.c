/*
 * How fast the CPU backend evaluates language models of the GPT-2 124M and Qwen3-0.6B shapes, with
 * seeded random weights: tokens a second, GFLOP/s, and which fraction that is of the processor's
 * own peak and of OpenBLAS (SkylakeX kernels where it has AVX-512) on the model's products. The
 * three alternate; best and median of the rounds.
 *
 *   bench_lm [gpt2 | qwen3 [f32 | bf16 [sequences [length [threads [rounds [stride]]]]]]]
 *
 * Every stride-th token is scored. EVQ_BENCH_BLAS=0: without OpenBLAS. EVQ_BENCH_CLOCK=cpu: by the
 * time that the processor gave, for a machine that others use too; with one thread, because those
 * of OpenBLAS spin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/openblas.h"
#include "tests/bench/peak.h"
#include "tests/gpu/lm_plan.h"

#define ROUNDS_MAX 1000

struct bench {
    struct lm *lm;
    struct lm_batch *batch;
    void *state;
    struct evq_row_result *results;
    int threads;
    bool processor_time;
    openblas_sgemm_fn sgemm;
};

static double seconds_now(const struct bench *bench)
{
    struct timespec now;

    (void)clock_gettime(bench->processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return ((double)now.tv_sec + (double)now.tv_nsec * 1e-9) /
           (bench->processor_time ? bench->threads : 1);
}

static void put_weights(struct bench *bench)
{
    struct evq_error err = {0};
    double spent = 0.0;
    size_t bytes = 0;

    for (size_t i = 0; i < bench->lm->plan.slot_count; i++) {
        const struct evq_weight_slot *slot = &bench->lm->slots[i];
        float *values = lm_weight(bench->lm, i, 20261121);
        const struct evq_weight_blob blob = {
            .values = values, .type = EVQ_WEIGHT_F32, .rows = slot->rows};
        const double start = seconds_now(bench);
        lm_must(evq_backend_cpu.put(bench->state, (int32_t)i, &blob, &err), &err);
        spent += seconds_now(bench) - start;
        bytes += (size_t)slot->rows * (size_t)slot->columns * sizeof(float);
        free(values);
    }
    (void)printf("weights: %.0f MB put at %.2f GB/s\n", (double)bytes * 1e-6,
                 (double)bytes / spent * 1e-9);
}

static void make_batch(struct bench *bench, int32_t sequences, int32_t length, int32_t stride)
{
    int32_t *lengths = lm_alloc((size_t)sequences, sizeof(*lengths));
    int32_t scores = 0;

    for (int32_t i = 0; i < sequences; i++) {
        lengths[i] = length;
    }
    bench->batch = lm_batch_new(bench->lm->shape->vocabulary, lengths, sequences, 100, 7);
    for (int32_t i = 0; i < bench->batch->batch.scores; i += stride) {
        bench->batch->score_rows[scores] = bench->batch->score_rows[i];
        bench->batch->score_targets[scores++] = bench->batch->score_targets[i];
    }
    bench->batch->batch.scores = scores;
    bench->results = lm_alloc((size_t)bench->batch->batch.rows, sizeof(*bench->results));
    free(lengths);
}

static double run_model(struct bench *bench)
{
    struct evq_error err = {0};
    const double start = seconds_now(bench);

    lm_must(evq_backend_cpu.exec(bench->state, &bench->batch->batch, bench->results, &err), &err);
    return seconds_now(bench) - start;
}

/* GFLOP/s of OpenBLAS on one layer's products of 1024 rows. */
static double run_blas(struct bench *bench)
{
    enum { ROWS = 1024 };
    static float *in, *weight, *out;
    double flops = 0.0;
    double spent = 0.0;

    if (bench->sgemm == NULL) {
        return 0.0;
    }
    if (in == NULL) {
        const size_t most = (size_t)8192 * 8192;
        in = lm_alloc(most, sizeof(float));
        weight = lm_alloc(most, sizeof(float));
        out = lm_alloc(most, sizeof(float));
        for (size_t i = 0; i < most; i++) {
            in[i] = weight[i] = 0.5f;
        }
    }
    int products = 0;
    for (size_t i = 0; i < bench->lm->plan.op_count && products < 4; i++) {
        const struct evq_op *op = &bench->lm->ops[i];
        if (op->kind == EVQ_OP_GEMM) {
            const double start = seconds_now(bench);
            bench->sgemm(OPENBLAS_ROW_MAJOR, OPENBLAS_NO_TRANS, OPENBLAS_TRANS, ROWS, op->n, op->k,
                         1.0f, in, op->k, weight, op->k, 0.0f, out, op->n);
            spent += seconds_now(bench) - start;
            flops += 2.0 * ROWS * op->n * op->k;
            products++;
        }
    }
    return flops / spent * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

static void report(struct bench *bench, int rounds)
{
    static double model[ROUNDS_MAX], blas[ROUNDS_MAX], peak[ROUNDS_MAX];
    struct evq_backend_stats stats;
    struct evq_backend_caps caps;
    const bool bf16 = bench->lm->plan.compute == EVQ_COMPUTE_BF16;
    double loss = 0.0;

    (void)run_model(bench); // Pages in.
    evq_backend_cpu.stats(bench->state, &stats);
    evq_backend_cpu.caps(bench->state, &caps);
    const double flops = (double)stats.flops / (double)stats.exec_calls;
    for (int i = 0; i < rounds; i++) {
        peak[i] = peak_measure(bench->threads, bf16, bench->processor_time);
        model[i] = flops / run_model(bench) * 1e-9;
        blas[i] = run_blas(bench);
    }
    for (int32_t s = 0; s < bench->batch->batch.scores; s++) {
        loss += bench->results[s].loss / bench->batch->batch.scores;
    }
    const double each = flops / bench->batch->batch.rows * 1e-9;
    const double model_median = median(model, rounds);
    const double blas_median = median(blas, rounds);
    const double peak_median = median(peak, rounds);
    const double best = model[rounds - 1];
    (void)printf("%s %s, %d x %d, %d scored, %.1f MFLOP a token, %s, memory %.0f MB, mean loss "
                 "%.6f\n",
                 bench->lm->shape->name, bf16 ? "bf16" : "f32", (int)bench->batch->batch.sequences,
                 (int)(bench->batch->batch.rows / bench->batch->batch.sequences),
                 (int)bench->batch->batch.scores, each * 1e3, caps.device,
                 (double)stats.memory_bytes * 1e-6, loss);
    (void)printf("  model  median %8.1f GFLOP/s %9.1f tok/s   best %8.1f GFLOP/s %9.1f tok/s\n",
                 model_median, model_median / each, best, best / each);
    (void)printf("  peak   median %8.1f GFLOP/s   best %8.1f: the model reaches %.1f%% of it "
                 "(best of best)\n",
                 peak_median, peak[rounds - 1], 100.0 * best / peak[rounds - 1]);
    if (bench->sgemm != NULL) {
        (void)printf("  sgemm  median %8.1f GFLOP/s   best %8.1f: the model reaches %.1f%% of it "
                     "(medians %.1f%%)\n",
                     blas_median, blas[rounds - 1], 100.0 * best / blas[rounds - 1],
                     100.0 * model_median / blas_median);
    }
}

static int32_t number(int argc, char **argv, int at, int32_t otherwise)
{
    return argc > at ? (int32_t)strtol(argv[at], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    const struct lm_shape *shape = NULL;
    struct evq_error err = {0};
    const char *blas = getenv("EVQ_BENCH_BLAS");
    const char *clock = getenv("EVQ_BENCH_CLOCK");

    for (size_t i = 0; i < lm_large_count; i++) { // The first whose name begins so.
        const char *name = argc > 1 ? argv[1] : "gpt2";
        if (shape == NULL && strncmp(lm_large[i].name, name, strlen(name)) == 0) {
            shape = &lm_large[i];
        }
    }
    const int32_t sequences = number(argc, argv, 3, 1);
    const int32_t length = number(argc, argv, 4, 1024);
    const int32_t threads = number(argc, argv, 5, 0);
    const int32_t rounds = number(argc, argv, 6, 5);
    const int32_t stride = number(argc, argv, 7, 1);
    if (shape == NULL || sequences < 1 || length < 1 || threads < 0 || rounds < 1 ||
        rounds > ROUNDS_MAX || stride < 1 || (shape->positions > 0 && length > shape->positions)) {
        (void)fprintf(stderr, "usage: bench_lm [gpt2 | qwen3 [f32 | bf16 [sequences [length "
                              "[threads [rounds [stride]]]]]]]\n");
        return 2;
    }
    const enum evq_compute compute =
        argc > 2 && strcmp(argv[2], "bf16") == 0 ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32;
    bench.lm = lm_new(shape, compute, sequences * length, length);
    bench.threads = threads > 0 ? threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    bench.processor_time = clock != NULL && strcmp(clock, "cpu") == 0;
    make_batch(&bench, sequences, length, stride);
    const struct evq_backend_config config = {.threads = threads};
    lm_must(evq_backend_cpu.open(&config, &bench.state, &err), &err);
    lm_must(evq_backend_cpu.prepare(bench.state, &bench.lm->plan, &err), &err);
    put_weights(&bench);
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f");
#else
    const bool avx512 = false;
#endif
    bench.sgemm =
        blas != NULL && strcmp(blas, "0") == 0 ? NULL : openblas_load(avx512, bench.threads);
    report(&bench, rounds);
    evq_backend_cpu.close(bench.state);
    lm_batch_free(bench.batch);
    lm_free(bench.lm);
    free(bench.results);
    return 0;
}
