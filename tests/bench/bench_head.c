/*
 * What the scoring head costs beside its matrix product alone, and the memory it works in: 1024
 * rows of the GPT-2 124M and Qwen3-0.6B shapes, in chunks as the backend takes them, one thread, by
 * the time that the processor gave. bench_head [rounds]; the two alternate.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cpu/schedule.h"
#include "kernels/cpu/score.h"

#define ROWS 1024

static double seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *must_have(void *memory)
{
    if (memory == NULL) {
        (void)fprintf(stderr, "bench_head: out of memory\n");
        exit(1);
    }
    return memory;
}

static void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_head: %s\n", err->message);
        exit(1);
    }
}

/* The same product, tile by tile, without looking at the logits. */
static void product_alone(const struct evq_score *score)
{
    const int32_t tile = score->kernels->panel * 16;
    const size_t stride = (size_t)tile + EVQ_KERNELS_PAD;
    struct evq_gemm gemm = {.rows = score->rows,
                            .k = score->k,
                            .in = score->in,
                            .in_stride = score->in_stride,
                            .out = score->scratch,
                            .out_stride = stride,
                            .scratch = score->scratch + stride * (size_t)score->rows};

    for (int32_t column = 0; column < score->weight->rows; column += tile) {
        const int32_t left = score->weight->rows - column;
        gemm.n = left < tile ? left : tile;
        gemm.panels = (const float *)score->weight->block.data + (size_t)column * (size_t)score->k;
        score->kernels->gemm(&gemm);
    }
}

static double run(struct evq_score *score, const float *in, void (*what)(const struct evq_score *))
{
    const double start = seconds_now();

    for (int32_t first = 0; first < ROWS; first += EVQ_SCHEDULE_CHUNK) {
        score->in = in + (size_t)first * score->in_stride;
        what(score);
    }
    return seconds_now() - start;
}

static void bench(const char *name, int32_t vocabulary, int32_t width, int rounds)
{
    const struct evq_kernels *kernels = evq_kernels_of(evq_machine_isa());
    const struct evq_weight_slot slot = {"head", vocabulary, width};
    const struct evq_op op = {.kind = EVQ_OP_SCORE};
    const struct evq_plan plan = {.ops = &op, .op_count = 1, .slots = &slot, .slot_count = 1};
    struct evq_weights weights = {.panel = kernels->panel};
    struct evq_memory memory = {.bytes_max = SIZE_MAX};
    struct evq_pool *pool = NULL;
    struct evq_error err = {0};
    const size_t stride = (size_t)width + EVQ_KERNELS_PAD;
    const size_t floats = evq_score_scratch_floats(kernels, EVQ_SCHEDULE_CHUNK, width);
    const size_t count = (size_t)vocabulary * (size_t)width;
    float *values = must_have(malloc(count * sizeof(*values)));
    float *in = must_have(calloc(ROWS * stride, sizeof(*in)));
    struct evq_row_result results[EVQ_SCHEDULE_CHUNK];
    int32_t first[EVQ_SCHEDULE_CHUNK + 1];
    int32_t targets[EVQ_SCHEDULE_CHUNK];
    double head = 1e30;
    double alone = 1e30;

    for (size_t i = 0; i < count; i++) {
        values[i] = (float)(i * 2654435761u % 1000u) * 1e-3f - 0.5f;
    }
    for (size_t i = 0; i < ROWS * stride; i++) {
        in[i] = (float)(i * 2654435761u % 997u) * 1e-3f - 0.5f;
    }
    for (int32_t i = 0; i <= EVQ_SCHEDULE_CHUNK; i++) {
        first[i] = i;
        targets[i < EVQ_SCHEDULE_CHUNK ? i : 0] = i * 31 % vocabulary;
    }
    must(evq_pool_new(1, &pool, &err), &err);
    must(evq_weights_prepare(&weights, &plan, &memory, &err), &err);
    const struct evq_weight_blob blob = {.values = values, .rows = vocabulary};
    evq_weights_put(&weights.items[0], kernels->panel, &blob, pool);
    struct evq_score score = {.kernels = kernels,
                              .in_stride = stride,
                              .rows = EVQ_SCHEDULE_CHUNK,
                              .k = width,
                              .weight = &weights.items[0],
                              .first = first,
                              .targets = targets,
                              .results = results,
                              .scratch = must_have(aligned_alloc(64, (floats + 16) / 16 * 64))};
    for (int i = 0; i < rounds; i++) {
        const double one = run(&score, in, evq_score_run);
        const double other = run(&score, in, product_alone);
        head = one < head ? one : head;
        alone = other < alone ? other : alone;
    }
    (void)printf(
        "%-6s %d rows x %d, width %d: head %.1f ms, its product alone %.1f ms: %.3f times; "
        "%.0f KB of scratch a thread, the batch's logits would be %.0f MB\n",
        name, ROWS, (int)vocabulary, (int)width, head * 1e3, alone * 1e3, head / alone,
        (double)(floats * sizeof(float)) * 1e-3, 4e-6 * ROWS * vocabulary);
    evq_weights_release(&weights, &memory);
    evq_pool_free(pool);
    free(score.scratch);
    free(in);
    free(values);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 5;

    bench("gpt2", 50257, 768, rounds);
    bench("qwen3", 151936, 1024, rounds);
    return 0;
}
