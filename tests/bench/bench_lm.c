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
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "tests/bench/openblas.h"
#include "tests/bench/peak.h"

#define OPS_MAX    1024
#define SLOTS_MAX  1024
#define ROUNDS_MAX 1000

struct shape {
    const char *name;
    int32_t layers, width, heads, kv_heads, size, hidden, vocabulary, positions;
    bool llama; // RMS norms of q and k too, rope, gates.
};

static const struct shape shapes[] = {
    {"gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024, false},
    {"qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 4096, true},
};

struct bench {
    const struct shape *shape;
    struct evq_weight_slot slots[SLOTS_MAX];
    struct evq_op ops[OPS_MAX];
    float frequencies[64];
    struct evq_plan plan;
    struct evq_batch batch;
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

static void *must_have(void *memory)
{
    if (memory == NULL) {
        (void)fprintf(stderr, "bench_lm: out of memory\n");
        exit(1);
    }
    return memory;
}

static void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_lm: %s\n", err->message);
        exit(1);
    }
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static int32_t slot(struct bench *bench, int32_t rows, int32_t columns)
{
    const size_t i = bench->plan.slot_count++;

    bench->slots[i] = (struct evq_weight_slot){"weight", rows, columns};
    return (int32_t)i;
}

static void add(struct bench *bench, struct evq_op op)
{
    bench->ops[bench->plan.op_count++] = op;
}

static void add_gemm(struct bench *bench, int32_t in, int32_t out, int32_t residual, int32_t n,
                     int32_t k, enum evq_activation activation)
{
    const int32_t weight = slot(bench, n, k);

    add(bench, (struct evq_op){.kind = EVQ_OP_GEMM,
                               .in = in,
                               .out = out,
                               .residual = residual,
                               .weight = weight,
                               .bias = bench->shape->llama ? -1 : slot(bench, 1, n),
                               .n = n,
                               .k = k,
                               .activation = activation});
}

static void add_norm(struct bench *bench)
{
    const struct shape *shape = bench->shape;
    const int32_t weight = slot(bench, 1, shape->width);

    add(bench, (struct evq_op){.kind = shape->llama ? EVQ_OP_RMS_NORM : EVQ_OP_LAYER_NORM,
                               .in = 1,
                               .out = 2,
                               .weight = weight,
                               .bias = shape->llama ? -1 : slot(bench, 1, shape->width),
                               .n = shape->width,
                               .heads = 1,
                               .epsilon = 1e-5f});
}

static void add_heads_turned(struct bench *bench)
{
    const struct shape *shape = bench->shape;
    const int32_t column = shape->heads * shape->size;
    struct evq_op op = {.kind = EVQ_OP_RMS_NORM,
                        .in = 3,
                        .out = 3,
                        .weight = slot(bench, 1, shape->size),
                        .bias = -1,
                        .n = shape->size,
                        .heads = shape->heads,
                        .epsilon = 1e-6f};

    add(bench, op);
    op.weight = slot(bench, 1, shape->size);
    op.column = column;
    op.heads = shape->kv_heads;
    add(bench, op);
    op = (struct evq_op){.kind = EVQ_OP_ROPE,
                         .in = 3,
                         .out = 3,
                         .weight = -1,
                         .bias = -1,
                         .n = shape->size,
                         .heads = shape->heads + shape->kv_heads,
                         .scale = 1.0f,
                         .frequencies = bench->frequencies};
    add(bench, op);
}

static void add_layer(struct bench *bench)
{
    const struct shape *shape = bench->shape;
    const int32_t joined = (shape->heads + 2 * shape->kv_heads) * shape->size;

    add_norm(bench);
    add_gemm(bench, 2, 3, 0, joined, shape->width, EVQ_ACT_NONE);
    if (shape->llama) {
        add_heads_turned(bench);
    }
    add(bench, (struct evq_op){.kind = EVQ_OP_ATTENTION,
                               .in = 3,
                               .out = 4,
                               .weight = -1,
                               .bias = -1,
                               .n = shape->size,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .scale = 1.0f / sqrtf((float)shape->size)});
    add_gemm(bench, 4, 1, 1, shape->width, shape->heads * shape->size, EVQ_ACT_NONE);
    add_norm(bench);
    add_gemm(bench, 2, 5, 0, shape->llama ? 2 * shape->hidden : shape->hidden, shape->width,
             shape->llama ? EVQ_ACT_NONE : EVQ_ACT_GELU_TANH);
    if (shape->llama) {
        add(bench, (struct evq_op){.kind = EVQ_OP_GATE,
                                   .in = 5,
                                   .out = 6,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = shape->hidden,
                                   .activation = EVQ_ACT_SILU});
    }
    add_gemm(bench, shape->llama ? 6 : 5, 1, 1, shape->width, shape->hidden, EVQ_ACT_NONE);
}

static void make_plan(struct bench *bench, int32_t *columns)
{
    const struct shape *shape = bench->shape;
    const int32_t table = slot(bench, shape->vocabulary, shape->width);

    columns[0] = 1;
    columns[1] = columns[2] = shape->width;
    columns[3] = (shape->heads + 2 * shape->kv_heads) * shape->size;
    columns[4] = shape->heads * shape->size;
    columns[5] = shape->llama ? 2 * shape->hidden : shape->hidden;
    columns[6] = shape->hidden;
    bench->plan.buffer_count = 7;
    bench->plan.buffer_columns = columns;
    for (int32_t i = 0; i < shape->size / 2; i++) {
        bench->frequencies[i] = powf(1e6f, -2.0f * (float)i / (float)shape->size);
    }
    add(bench,
        (struct evq_op){.kind = EVQ_OP_EMBEDDING,
                        .out = 1,
                        .weight = table,
                        .bias = shape->llama ? -1 : slot(bench, shape->positions, shape->width),
                        .n = shape->width,
                        .scale = 1.0f});
    for (int32_t i = 0; i < shape->layers; i++) {
        add_layer(bench);
    }
    add_norm(bench);
    add(bench, (struct evq_op){.kind = EVQ_OP_SCORE,
                               .in = 2,
                               .out = -1,
                               .weight = table,
                               .bias = -1,
                               .n = shape->vocabulary,
                               .k = shape->width});
    bench->plan.ops = bench->ops;
    bench->plan.slots = bench->slots;
}

static void put_weights(struct bench *bench)
{
    struct evq_error err = {0};
    uint32_t random = 20261121;
    double spent = 0.0;
    size_t bytes = 0;

    for (size_t i = 0; i < bench->plan.slot_count; i++) {
        const struct evq_weight_slot *s = &bench->slots[i];
        const size_t count = (size_t)s->rows * (size_t)s->columns;
        float *values = must_have(malloc(count * sizeof(*values)));
        for (size_t v = 0; v < count; v++) {
            values[v] = ((float)next_random(&random) / (float)(1 << 23) - 1.0f) * 0.05f;
            values[v] += s->rows == 1 ? 0.5f : 0.0f;
        }
        const struct evq_weight_blob blob = {
            .values = values, .type = EVQ_WEIGHT_F32, .rows = s->rows};
        const double start = seconds_now(bench);
        must(evq_backend_cpu.put(bench->state, (int32_t)i, &blob, &err), &err);
        spent += seconds_now(bench) - start;
        bytes += count * sizeof(float);
        free(values);
    }
    (void)printf("weights: %.0f MB put at %.2f GB/s\n", (double)bytes * 1e-6,
                 (double)bytes / spent * 1e-9);
}

static void make_batch(struct bench *bench, int32_t sequences, int32_t length, int32_t stride)
{
    const int32_t rows = sequences * length;
    int32_t *tokens = must_have(calloc((size_t)rows, sizeof(*tokens)));
    int32_t *starts = must_have(calloc((size_t)sequences + 1, sizeof(*starts)));
    int32_t *score_rows = must_have(calloc((size_t)rows, sizeof(*score_rows)));
    int32_t *targets = must_have(calloc((size_t)rows, sizeof(*targets)));
    uint32_t random = 7;
    int32_t scores = 0;

    for (int32_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)(next_random(&random) % (uint32_t)bench->shape->vocabulary);
        targets[i] = (int32_t)(next_random(&random) % (uint32_t)bench->shape->vocabulary);
        if (i % stride == 0) {
            score_rows[scores++] = i;
        }
    }
    for (int32_t i = 0; i <= sequences; i++) {
        starts[i] = i * length;
    }
    bench->results = must_have(calloc((size_t)rows, sizeof(*bench->results)));
    bench->batch = (struct evq_batch){.rows = rows,
                                      .tokens = tokens,
                                      .starts = starts,
                                      .sequences = sequences,
                                      .score_rows = score_rows,
                                      .score_targets = targets,
                                      .scores = scores};
}

static double run_model(struct bench *bench)
{
    struct evq_error err = {0};
    const double start = seconds_now(bench);

    must(evq_backend_cpu.exec(bench->state, &bench->batch, bench->results, &err), &err);
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
        in = must_have(calloc(most, sizeof(float)));
        weight = must_have(calloc(most, sizeof(float)));
        out = must_have(calloc(most, sizeof(float)));
        for (size_t i = 0; i < most; i++) {
            in[i] = weight[i] = 0.5f;
        }
    }
    int products = 0;
    for (size_t i = 0; i < bench->plan.op_count && products < 4; i++) {
        const struct evq_op *op = &bench->ops[i];
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
    const bool bf16 = bench->plan.compute == EVQ_COMPUTE_BF16;
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
    for (int32_t s = 0; s < bench->batch.scores; s++) {
        loss += bench->results[s].loss / bench->batch.scores;
    }
    const double each = flops / bench->batch.rows * 1e-9;
    const double model_median = median(model, rounds);
    const double blas_median = median(blas, rounds);
    const double peak_median = median(peak, rounds);
    const double best = model[rounds - 1];
    (void)printf("%s %s, %d x %d, %d scored, %.1f MFLOP a token, %s, memory %.0f MB, mean loss "
                 "%.6f\n",
                 bench->shape->name, bf16 ? "bf16" : "f32", (int)bench->batch.sequences,
                 (int)(bench->batch.rows / bench->batch.sequences), (int)bench->batch.scores,
                 each * 1e3, caps.device, (double)stats.memory_bytes * 1e-6, loss);
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
    int32_t columns[7];
    struct evq_error err = {0};
    const char *blas = getenv("EVQ_BENCH_BLAS");
    const char *clock = getenv("EVQ_BENCH_CLOCK");

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (argc < 2 ? i == 0 : strcmp(argv[1], shapes[i].name) == 0) {
            bench.shape = &shapes[i];
        }
    }
    const int32_t sequences = number(argc, argv, 3, 1);
    const int32_t length = number(argc, argv, 4, 1024);
    const int32_t threads = number(argc, argv, 5, 0);
    const int32_t rounds = number(argc, argv, 6, 5);
    const int32_t stride = number(argc, argv, 7, 1);
    if (bench.shape == NULL || sequences < 1 || length < 1 || threads < 0 || rounds < 1 ||
        rounds > ROUNDS_MAX || stride < 1 || length > bench.shape->positions) {
        (void)fprintf(stderr, "usage: bench_lm [gpt2 | qwen3 [f32 | bf16 [sequences [length "
                              "[threads [rounds [stride]]]]]]]\n");
        return 2;
    }
    bench.plan.compute =
        argc > 2 && strcmp(argv[2], "bf16") == 0 ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32;
    bench.plan.rows_max = sequences * length;
    bench.plan.length_max = length;
    bench.threads = threads > 0 ? threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    bench.processor_time = clock != NULL && strcmp(clock, "cpu") == 0;
    make_plan(&bench, columns);
    make_batch(&bench, sequences, length, stride);
    const struct evq_backend_config config = {.threads = threads};
    must(evq_backend_cpu.open(&config, &bench.state, &err), &err);
    must(evq_backend_cpu.prepare(bench.state, &bench.plan, &err), &err);
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
    return 0;
}
