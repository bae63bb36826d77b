/*
 * How fast the CUDA module evaluates language models, with random weights: tokens a second, how
 * fast the weights came to the device, and what the kinds of operations cost. bench [--device N]
 * [--shape NAME] [--rows N] [--length N] [--compute bf16|fp32] [--parts 0|1]
 *         [--seconds S] [--copy GB/S] [--gemm TFLOP/S]
 * Without --shape all large ones. --copy, --gemm: what gpu_rates found, for the fractions. Each
 * measurement takes S seconds (2) and at least three rounds. A round is timed by the host's clock
 * around exec(), which waits for the device, so it includes the copies in and out: this is what a
 * job waits for.
 * exit 0: done; 1: a failure, or losses that are no numbers; 2: usage; 77: no GPU here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/lm_plan.h"
#include "worker/loader/backend.h"

#define EXIT_SKIPPED 77
#define BLOCK_BYTES  ((size_t)64 << 20)
#define ROUNDS_MAX   4096
#define ROUNDS_LEAST 3

struct bench {
    const struct evq_backend_ops *ops;
    void *state;
    const char *shape;
    int32_t device, rows, length;
    enum evq_compute compute;
    bool parts;
    double seconds;    // Of one measurement.
    double copy, gemm; // 0: unknown.
    uint16_t *h_block; // Random bf16 numbers in the backend's host memory.
};

static const struct bar { // On one H200.
    const char *shape;
    double tokens, of_gemm;
} bars[] = {{"gpt2-124m", 1.2e6, 0.50},
            {"gpt2-1.5b", 135e3, 0.0},
            {"qwen3-0.6b", 260e3, 0.0},
            {"qwen3-1.7b", 120e3, 0.0},
            {"llama-3-8b", 35e3, 0.75}};
static const double OF_COPY = 0.80; // Weights to the device, of the rate of a pinned copy.

static double seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); // Cannot fail for this clock.
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void block_make(struct bench *bench)
{
    struct evq_error err = {0};
    void *host = NULL;
    uint64_t random = 20261121;

    lm_must(bench->ops->alloc(bench->state, BLOCK_BYTES, &host, &err), &err);
    bench->h_block = host;
    for (size_t i = 0; i < BLOCK_BYTES / 2; i++) {
        const float value = lm_random_float(&random) * 0.05f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        bench->h_block[i] = (uint16_t)(bits >> 16);
    }
}

/* All weights out of the block, in the pieces that a loader makes. Returns GB/s. */
static double weights_put(const struct bench *bench, const struct lm *lm)
{
    struct evq_error err = {0};
    double bytes = 0.0;
    const double start = seconds_now();

    for (size_t i = 0; i < lm->plan.slot_count; i++) {
        const struct evq_weight_slot *slot = &lm->slots[i];
        const size_t row_bytes = (size_t)slot->columns * 2;
        const int32_t step = (int32_t)(((size_t)4 << 20) / row_bytes) + 1;
        const size_t places = BLOCK_BYTES / ((size_t)step * row_bytes);
        for (int32_t first = 0, piece = 0; first < slot->rows; first += step, piece++) {
            const int32_t rows = slot->rows - first < step ? slot->rows - first : step;
            const size_t at = (size_t)piece % places * (size_t)step * row_bytes;
            const struct evq_weight_blob blob = {.values = (const uint8_t *)bench->h_block + at,
                                                 .type = EVQ_WEIGHT_BF16,
                                                 .first_row = first,
                                                 .rows = rows};
            lm_must(bench->ops->put(bench->state, (int32_t)i, &blob, &err), &err);
            bytes += (double)rows * (double)row_bytes;
        }
    }
    lm_must(bench->ops->settle(bench->state, &err), &err);
    return bytes / (seconds_now() - start) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* GB/s, the median of at least three times all weights. */
static double weights_rate(const struct bench *bench, const struct lm *lm)
{
    static double rates[ROUNDS_MAX];
    int rounds = 0;
    const double start = seconds_now();

    while (rounds < ROUNDS_LEAST ||
           (rounds < ROUNDS_MAX && seconds_now() - start < bench->seconds)) {
        rates[rounds++] = weights_put(bench, lm);
    }
    qsort(rates, (size_t)rounds, sizeof(*rates), compare);
    return rates[rounds / 2];
}

/* Smaller batches until they fit. */
static struct lm *prepare(const struct bench *bench, const struct lm_shape *shape, int32_t *rows,
                          int32_t length)
{
    struct evq_error err = {0};

    for (;;) {
        struct lm *lm = lm_new(shape, bench->compute, *rows, length);
        const enum evq_status status = bench->ops->prepare(bench->state, &lm->plan, &err);
        if (status == EVQ_OK) {
            return lm;
        }
        lm_free(lm);
        if (status == EVQ_E_NOMEM && *rows / 2 >= length) {
            *rows /= 2;
        } else {
            lm_must(status, &err);
        }
    }
}

/* bar 0: none. */
static void part_print(const char *what, double part, double bar)
{
    (void)printf(" (%.0f%% %s", 100.0 * part, what);
    if (bar > 0.0) {
        (void)printf(", bar %.0f%%: %s", 100.0 * bar, part >= bar ? "reached" : "missed");
    }
    (void)printf(")");
}

static void tell(const struct bench *bench, const struct lm *lm, int32_t rows, int32_t length,
                 double median, double best, double flops, double put_rate, double loss)
{
    const double tokens = rows / median;
    const double tflops = flops / median * 1e-12;
    const struct bar *bar = NULL;

    for (size_t i = 0; i < sizeof(bars) / sizeof(bars[0]); i++) {
        const bool its = strcmp(bars[i].shape, lm->shape->name) == 0;
        bar = its && lm->plan.compute == EVQ_COMPUTE_BF16 ? &bars[i] : bar;
    }
    (void)printf("%-11s %-4s %6d x %4d: median %10.0f tokens/s (best %10.0f)  %7.1f TFLOP/s",
                 lm->shape->name, lm->plan.compute == EVQ_COMPUTE_BF16 ? "bf16" : "fp32",
                 (int)(rows / length), (int)length, tokens, rows / best, tflops);
    if (bench->gemm > 0.0 && lm->plan.compute == EVQ_COMPUTE_BF16) {
        part_print("of cuBLAS's", tflops / bench->gemm, bar != NULL ? bar->of_gemm : 0.0);
    }
    (void)printf("  weights %.1f GB/s", put_rate);
    if (bench->copy > 0.0) {
        part_print("of the copy", put_rate / bench->copy, OF_COPY);
    }
    if (bar != NULL) {
        (void)printf("  bar %.0f: %s", bar->tokens, tokens >= bar->tokens ? "reached" : "missed");
    }
    (void)printf("  mean loss %.4f\n", loss);
    (void)printf("json {\"bench\": \"%s\", \"compute\": \"%s\", \"rows\": %d, \"length\": %d, "
                 "\"tokens_s\": %.1f, \"tokens_s_best\": %.1f, \"tflop_s\": %.3f, "
                 "\"weights_gb_s\": %.3f, \"bar_tokens_s\": %.0f}\n",
                 lm->shape->name, lm->plan.compute == EVQ_COMPUTE_BF16 ? "bf16" : "fp32", (int)rows,
                 (int)length, tokens, rows / best, tflops, put_rate,
                 bar != NULL ? bar->tokens : 0.0);
}

/* Seconds of one exec() of the batch, the median; *ret_best: the fastest. */
static double batch_time(const struct bench *bench, const struct evq_batch *batch,
                         struct evq_row_result *results, double *ret_best)
{
    static double spent[ROUNDS_MAX];
    int rounds = 0;
    struct evq_error err = {0};

    lm_must(bench->ops->exec(bench->state, batch, results, &err), &err); // It loads the kernels.
    const double start = seconds_now();
    while (rounds < ROUNDS_LEAST ||
           (rounds < ROUNDS_MAX && seconds_now() - start < bench->seconds)) {
        const double began = seconds_now();
        lm_must(bench->ops->exec(bench->state, batch, results, &err), &err);
        spent[rounds++] = seconds_now() - began;
    }
    qsort(spent, (size_t)rounds, sizeof(*spent), compare);
    *ret_best = spent[0];
    return spent[rounds / 2];
}

/* What the operations of a kind cost: the time of the batch less the time of a plan without them.
 * Of SCORE one row is left. */
static double part_time(const struct bench *bench, const struct lm *lm,
                        const struct evq_batch *batch, enum evq_op_kind kind, double whole,
                        struct evq_row_result *results)
{
    struct evq_op *ops = lm_alloc(lm->plan.op_count, sizeof(*ops));
    struct evq_plan plan = lm->plan;
    struct evq_batch rest = *batch;
    struct evq_error err = {0};
    double best = 0.0;

    plan.ops = ops;
    plan.op_count = 0; // The slots stay, so weights_put() can name them as before.
    for (size_t i = 0; i < lm->plan.op_count; i++) {
        if (lm->ops[i].kind != kind || kind == EVQ_OP_SCORE) {
            ops[plan.op_count++] = lm->ops[i];
        }
    }
    rest.scores = kind == EVQ_OP_SCORE ? 1 : batch->scores;
    lm_must(bench->ops->prepare(bench->state, &plan, &err), &err);
    (void)weights_put(bench, lm); // Slots that change their use lose their values.
    const double without = batch_time(bench, &rest, results, &best);
    free(ops);
    return plan.op_count == lm->plan.op_count && kind != EVQ_OP_SCORE ? 0.0 : whole - without;
}

static void parts_tell(const struct bench *bench, const struct lm *lm,
                       const struct evq_batch *batch, double whole, struct evq_row_result *results)
{
    static const struct {
        enum evq_op_kind kind;
        const char *name;
    } kinds[] = {{EVQ_OP_GEMM, "products"},      {EVQ_OP_ATTENTION, "attention"},
                 {EVQ_OP_SCORE, "logits"},       {EVQ_OP_LAYER_NORM, "layer norms"},
                 {EVQ_OP_RMS_NORM, "RMS norms"}, {EVQ_OP_ROPE, "rope"},
                 {EVQ_OP_GATE, "gates"}};
    double rest = whole;

    (void)printf("%-11s milliseconds of a batch of %d rows: %.2f", lm->shape->name,
                 (int)batch->rows, whole * 1e3);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const double part = part_time(bench, lm, batch, kinds[i].kind, whole, results);
        if (part != 0.0) {
            (void)printf(", %s %.2f", kinds[i].name, part * 1e3);
            rest -= part;
        }
    }
    (void)printf(", the rest %.2f\n", rest * 1e3);
}

/* False: the losses are no numbers. */
static bool shape_run(const struct bench *bench, const struct lm_shape *shape)
{
    const int32_t length = bench->length > 0      ? bench->length
                           : shape->positions > 0 ? shape->positions
                                                  : 2048;
    int32_t rows = bench->rows;
    double best = 0.0;
    double loss = 0.0;
    struct evq_backend_stats before;
    struct evq_backend_stats after;
    struct evq_error err = {0};

    lm_doing("%s", shape->name);
    struct lm *lm = prepare(bench, shape, &rows, length);
    const int32_t sequences = rows / length;
    int32_t *lengths = lm_alloc((size_t)sequences, sizeof(*lengths));
    for (int32_t i = 0; i < sequences; i++) {
        lengths[i] = length;
    }
    struct lm_batch *batch = lm_batch_new(shape->vocabulary, lengths, sequences, 100, 7);
    const int32_t scores = batch->batch.scores;
    struct evq_row_result *results = lm_alloc((size_t)scores, sizeof(*results));
    (void)weights_put(bench, lm); // Kernels are loaded with their first use.
    const double put_rate = weights_rate(bench, lm);
    bench->ops->stats(bench->state, &before);
    lm_must(bench->ops->exec(bench->state, &batch->batch, results, &err), &err);
    bench->ops->stats(bench->state, &after);
    const double median = batch_time(bench, &batch->batch, results, &best);
    for (int32_t i = 0; i < scores; i++) {
        loss += results[i].loss / scores;
    }
    tell(bench, lm, batch->batch.rows, length, median, best, (double)(after.flops - before.flops),
         put_rate, loss);
    if (!isfinite(loss)) {
        (void)printf("FAIL %s: the mean loss is no number\n", shape->name);
    }
    if (bench->parts) {
        parts_tell(bench, lm, &batch->batch, median, results);
    }
    free(results);
    lm_batch_free(batch);
    free(lengths);
    lm_free(lm);
    return isfinite(loss);
}

static bool options_read(int argc, char **argv, struct bench *bench)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--shape") == 0) {
            bench->shape = value;
        } else if (strcmp(argv[i], "--device") == 0) {
            bench->device = (int32_t)strtol(value, NULL, 10);
        } else if (strcmp(argv[i], "--rows") == 0) {
            bench->rows = (int32_t)strtol(value, NULL, 10);
        } else if (strcmp(argv[i], "--length") == 0) {
            bench->length = (int32_t)strtol(value, NULL, 10);
        } else if (strcmp(argv[i], "--compute") == 0) {
            bench->compute = strcmp(value, "fp32") == 0 ? EVQ_COMPUTE_F32 : EVQ_COMPUTE_BF16;
        } else if (strcmp(argv[i], "--parts") == 0) {
            bench->parts = strcmp(value, "1") == 0;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            bench->seconds = strtod(value, NULL);
        } else if (strcmp(argv[i], "--copy") == 0) {
            bench->copy = strtod(value, NULL);
        } else if (strcmp(argv[i], "--gemm") == 0) {
            bench->gemm = strtod(value, NULL);
        } else {
            return false;
        }
    }
    return argc % 2 == 1 && bench->seconds > 0.0 && bench->rows >= 1 && bench->length >= 0 &&
           bench->length <= bench->rows;
}

static bool shapes_run(const struct bench *bench, bool *ret_found)
{
    bool good = true;

    *ret_found = bench->shape == NULL;
    for (size_t i = 0; i < lm_large_count; i++) {
        if (bench->shape == NULL || strcmp(bench->shape, lm_large[i].name) == 0) {
            good = shape_run(bench, &lm_large[i]) && good;
            *ret_found = true;
        }
    }
    for (size_t i = 0; i < lm_small_count && bench->shape != NULL; i++) {
        if (strcmp(bench->shape, lm_small[i].name) == 0) {
            good = shape_run(bench, &lm_small[i]) && good;
            *ret_found = true;
        }
    }
    return good;
}

int main(int argc, char **argv)
{
    struct bench bench = {.rows = 32768, .compute = EVQ_COMPUTE_BF16, .seconds = 2.0};
    struct evq_backend cuda;
    struct evq_error err = {0};
    char note[512];
    bool found = false;

    if (!options_read(argc, argv, &bench)) {
        (void)fprintf(stderr, "usage: bench [--device N] [--shape NAME] [--rows N] [--length N] "
                              "[--compute bf16|fp32] [--parts 0|1] [--seconds S] [--copy GB/S] "
                              "[--gemm TFLOP/S]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); // What was measured stays if a kernel hangs or crashes.
    lm_watch();
    evq_backend_find(bench.device, &cuda, note, sizeof(note)); // gpu_compare judges the numbers.
    if (cuda.module == NULL) {
        (void)printf("no device: %s\n", note);
        return EXIT_SKIPPED;
    }
    const struct evq_backend_config config = {.device = bench.device};
    bench.ops = cuda.ops;
    lm_must(bench.ops->open(&config, &bench.state, &err), &err);
    block_make(&bench);
    const bool good = shapes_run(&bench, &found);
    if (!found) {
        (void)fprintf(stderr, "bench: there is no shape '%s'\n", bench.shape);
    }
    bench.ops->free(bench.state, bench.h_block);
    bench.ops->close(bench.state);
    evq_backend_unload(&cuda);
    return !found ? 2 : good ? 0 : 1;
}
