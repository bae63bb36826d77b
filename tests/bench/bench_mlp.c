/*
 * How fast the CPU backend runs an MLP: samples a second and GFLOP/s of the MNIST shape and of one
 * square product. bench_mlp [threads [rows [repeats]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/backend.h"

#define LAYERS_MAX 8

static double seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static float *fill(size_t count)
{
    float *values = malloc(count * sizeof(*values));

    if (values == NULL) {
        (void)fprintf(stderr, "bench_mlp: out of memory\n");
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)(i * 2654435761u % 1000u) * 0.001f - 0.5f;
    }
    return values;
}

static void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_mlp: %s\n", err->message);
        exit(1);
    }
}

static void bench(const char *name, const int32_t *widths, int32_t layers, int32_t threads,
                  int32_t rows, int32_t repeats)
{
    const struct evq_backend_ops *cpu = &evq_backend_cpu;
    const struct evq_backend_config config = {.threads = threads};
    struct evq_weight_slot slots[2 * LAYERS_MAX];
    struct evq_op ops[LAYERS_MAX + 1];
    struct evq_error err = {0};
    void *state = NULL;

    for (int32_t i = 0; i < layers; i++) {
        slots[2 * i] = (struct evq_weight_slot){"w", widths[i + 1], widths[i]};
        slots[2 * i + 1] = (struct evq_weight_slot){"b", 1, widths[i + 1]};
        ops[i] = (struct evq_op){.kind = EVQ_OP_GEMM,
                                 .in = i,
                                 .out = i + 1,
                                 .weight = 2 * i,
                                 .bias = 2 * i + 1,
                                 .n = widths[i + 1],
                                 .k = widths[i],
                                 .activation = i + 1 < layers ? EVQ_ACT_RELU : EVQ_ACT_NONE};
    }
    const int32_t classes = widths[layers];
    ops[layers] = (struct evq_op){.kind = EVQ_OP_CROSS_ENTROPY,
                                  .in = layers,
                                  .out = -1,
                                  .weight = -1,
                                  .bias = -1,
                                  .n = classes};
    const struct evq_plan plan = {
        ops, (size_t)layers + 1, slots, 2 * (size_t)layers, layers + 1, widths, rows,
        0,   EVQ_COMPUTE_F32};
    float *inputs = fill((size_t)rows * (size_t)widths[0]);
    int32_t *labels = calloc((size_t)rows, sizeof(*labels));
    struct evq_row_result *results = calloc((size_t)rows, sizeof(*results));
    must(labels != NULL && results != NULL ? EVQ_OK : EVQ_E_NOMEM, &err);

    must(cpu->open(&config, &state, &err), &err);
    must(cpu->prepare(state, &plan, &err), &err);
    for (size_t i = 0; i < plan.slot_count; i++) {
        float *values = fill((size_t)slots[i].rows * (size_t)slots[i].columns);
        const struct evq_weight_blob blob = {
            .values = values, .type = EVQ_WEIGHT_F32, .rows = slots[i].rows};
        must(cpu->put(state, (int32_t)i, &blob, &err), &err);
        free(values);
    }
    const struct evq_batch batch = {.rows = rows, .inputs = inputs, .labels = labels};
    must(cpu->exec(state, &batch, results, &err), &err); // Pages in.
    double best = 1e30;
    for (int32_t i = 0; i < repeats; i++) {
        const double start = seconds_now();
        must(cpu->exec(state, &batch, results, &err), &err);
        const double spent = seconds_now() - start;
        best = spent < best ? spent : best;
    }
    struct evq_backend_caps caps;
    struct evq_backend_stats stats;
    cpu->caps(state, &caps);
    cpu->stats(state, &stats);
    const double flops = (double)stats.flops / (double)stats.exec_calls;
    (void)printf("%-24s rows %6d  best of %d: %9.0f samples/s %8.1f GFLOP/s  %s\n", name, (int)rows,
                 (int)repeats, rows / best, flops / best * 1e-9, caps.device);
    cpu->close(state);
    free(results);
    free(labels);
    free(inputs);
}

int main(int argc, char **argv)
{
    const int32_t threads = argc > 1 ? (int32_t)strtol(argv[1], NULL, 10) : 0;
    const int32_t rows = argc > 2 ? (int32_t)strtol(argv[2], NULL, 10) : 8192;
    const int32_t repeats = argc > 3 ? (int32_t)strtol(argv[3], NULL, 10) : 5;
    const int32_t mnist[] = {784, 512, 128, 32, 10};
    const int32_t square[] = {1024, 1024, 1024};

    if (threads < 0 || rows < 1 || repeats < 1) {
        (void)fprintf(stderr, "usage: bench_mlp [threads [rows [repeats]]]\n");
        return 2;
    }
    bench("mnist 784-512-128-32-10", mnist, 4, threads, rows, repeats);
    bench("square 1024-1024-1024", square, 2, threads, rows, repeats);
    return 0;
}
