/*
 * Language models of every family, with random weights put in every way that checkpoints ask for,
 * on the device and on the CPU backend: the mean loss, each loss, the predictions; what stays from
 * one checkpoint to the next; NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"

#define EACH(exact) ((exact) ? 1e-4 : 0.25) // A loss may be apart, of one and itself.
#define ENOUGH      7000 // Losses whose mean is held to the bar of bf16; that of fewer varies more.

static const int32_t lengths[] = {1, 31, 2, 33, 64, 5, 3, 129, 1, 65};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), LONGEST = 129 };

static const struct way { // How weights come.
    const char *name;
    enum evq_weight_type type;
    bool parts, transposed; // Matrices only; transposed: none that is looked up.
} ways[] = {
    {"fp32", EVQ_WEIGHT_F32, false, false},
    {"fp32 in parts", EVQ_WEIGHT_F32, true, false},
    {"fp32 transposed", EVQ_WEIGHT_F32, false, true},
    {"fp16", EVQ_WEIGHT_F16, false, false},
    {"fp16 transposed", EVQ_WEIGHT_F16, false, true},
    {"bf16", EVQ_WEIGHT_BF16, false, false},
    {"bf16 in parts", EVQ_WEIGHT_BF16, true, false},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* Values that both types hold: both sides are given the same bits. */
static uint16_t to_half(float value, enum evq_weight_type type)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (type == EVQ_WEIGHT_BF16) {
        return (uint16_t)(bits >> 16);
    }
    const int32_t exponent = (int32_t)(bits >> 23 & 0xff) - 127 + 15;
    if (exponent < 1) {
        return (uint16_t)(bits >> 16 & 0x8000);
    }
    return (uint16_t)((bits >> 16 & 0x8000) | ((uint32_t)exponent << 10) | (bits >> 13 & 0x3ff));
}

/* The slot's values as they lie in memory. */
static void *values_make(const struct lm *lm, size_t slot, uint64_t seed, const struct way *way,
                         bool transposed)
{
    const size_t rows = (size_t)lm->slots[slot].rows;
    const size_t columns = (size_t)lm->slots[slot].columns;
    float *values = lm_weight(lm, slot, seed);

    if (transposed) {
        float *turned = lm_alloc(rows * columns, sizeof(*turned));
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < columns; c++) {
                turned[c * rows + r] = values[r * columns + c];
            }
        }
        free(values);
        values = turned;
    }
    if (way->type == EVQ_WEIGHT_F32 || rows == 1) {
        return values;
    }
    uint16_t *halves = lm_alloc(rows * columns, sizeof(*halves));
    for (size_t i = 0; i < rows * columns; i++) {
        halves[i] = to_half(values[i], way->type);
    }
    free(values);
    return halves;
}

static bool is_looked_up(const struct lm *lm, size_t slot)
{
    for (size_t i = 0; i < lm->plan.op_count; i++) {
        const struct evq_op *op = &lm->ops[i];
        if ((op->kind == EVQ_OP_EMBEDDING &&
             (op->weight == (int32_t)slot || op->bias == (int32_t)slot)) ||
            (op->kind == EVQ_OP_SCORE && op->weight == (int32_t)slot)) {
            return true;
        }
    }
    return false;
}

static void slot_put(const struct side *side, const struct lm *lm, size_t slot, uint64_t seed,
                     const struct way *way)
{
    const int32_t rows = lm->slots[slot].rows;
    const bool transposed = way->transposed && rows > 1 && !is_looked_up(lm, slot);
    const enum evq_weight_type type = rows > 1 ? way->type : EVQ_WEIGHT_F32;
    const size_t row_bytes =
        (size_t)lm->slots[slot].columns * (type == EVQ_WEIGHT_F32 ? sizeof(float) : 2);
    uint8_t *values = values_make(lm, slot, seed, way, transposed);
    struct evq_error err = {0};

    for (int32_t first = 0, step = 7; first < rows; first += step, step *= 3) {
        step = way->parts && step < rows - first ? step : rows - first;
        const struct evq_weight_blob blob = {.values = values + (size_t)first * row_bytes,
                                             .type = type,
                                             .first_row = first,
                                             .rows = step,
                                             .transposed = transposed};
        lm_must(side->ops->put(side->state, (int32_t)slot, &blob, &err), &err);
    }
    lm_must(side->ops->settle(side->state, &err), &err);
    free(values);
}

/* False: the backend refuses the plan. */
static bool model_run(const struct side *side, const struct lm *lm, uint64_t seed,
                      const struct way *way, const struct evq_batch *batch,
                      struct evq_row_result *results)
{
    struct evq_error err = {0};

    lm_doing("model %s, weights %s, in %s on %s", lm->shape->name,
             way != NULL ? way->name : "as they were",
             lm->plan.compute == EVQ_COMPUTE_F32 ? "fp32" : "bf16", side->ops->name);
    const enum evq_status status = side->ops->prepare(side->state, &lm->plan, &err);
    if (status == EVQ_E_UNSUPPORTED) {
        return false;
    }
    lm_must(status, &err);
    for (size_t i = 0; i < lm->plan.slot_count && way != NULL; i++) {
        slot_put(side, lm, i, seed, way);
    }
    for (int32_t i = 0; i < batch->scores; i++) {
        results[i] = (struct evq_row_result){.loss = NAN, .predicted = -2}; // What is not filled.
    }
    lm_must(side->ops->exec(side->state, batch, results, &err), &err);
    return true;
}

static double mean_loss(const struct evq_row_result *results, int32_t count)
{
    double sum = 0.0;

    for (int32_t i = 0; i < count; i++) {
        sum += results[i].loss;
    }
    return sum / count;
}

/* *ret_apart: of the means. */
static bool agree(const struct evq_row_result *cpu, const struct evq_row_result *device,
                  int32_t count, bool exact, double *ret_apart)
{
    const double each = EACH(exact);
    const double fewer = count < ENOUGH ? sqrt((double)ENOUGH / count) : 1.0;
    int32_t other = 0;
    bool good = true;

    for (int32_t i = 0; i < count; i++) {
        good = good && fabs(cpu[i].loss - device[i].loss) <= each * (1.0 + fabs(cpu[i].loss));
        other += cpu[i].predicted != device[i].predicted || cpu[i].correct != device[i].correct;
    }
    *ret_apart = fabs(mean_loss(cpu, count) - mean_loss(device, count));
    // Of two near logits the other may be the largest.
    return good && *ret_apart <= (exact ? 1e-5 : 1e-3 * fewer) &&
           other <= count / (exact ? 100 : 20);
}

struct work {
    const struct sides *sides;
    const struct lm_shape *shape;
    struct lm_batch *batch;
    struct evq_row_result *cpu, *device;
    int cases, faults, refused;
    double worst[EVQ_COMPUTE_COUNT];
};

static void fail(struct work *work, const char *way, enum evq_compute compute, double apart)
{
    (void)printf("FAIL %s, weights %s, in %s: mean loss apart by %.3g\n", work->shape->name, way,
                 compute == EVQ_COMPUTE_F32 ? "fp32" : "bf16", apart);
    work->faults++;
}

/* ---- for a third opinion: tests/gpu/torch_check.py ---- */

static void dump_losses(FILE *file, const char *name, const struct evq_row_result *results,
                        int32_t count)
{
    (void)fprintf(file, ",\n \"%s\": [", name);
    for (int32_t i = 0; i < count; i++) {
        (void)fprintf(file, "%s%.17g", i > 0 ? ", " : "", results[i].loss);
    }
    (void)fprintf(file, "]");
}

static void dump_integers(FILE *file, const char *name, const int32_t *values, int32_t count)
{
    (void)fprintf(file, ",\n \"%s\": [", name);
    for (int32_t i = 0; i < count; i++) {
        (void)fprintf(file, "%s%d", i > 0 ? ", " : "", (int)values[i]);
    }
    (void)fprintf(file, "]");
}

static FILE *dump_open(const struct work *work, const char *end)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s.%s", work->sides->dump, work->shape->name, end);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        (void)fprintf(stderr, "FAIL cannot write '%s'\n", path);
        exit(1);
    }
    return file;
}

static const char *const KINDS[EVQ_OP_COUNT] = { // Those that lm_plan.c makes.
    [EVQ_OP_GEMM] = "gemm",
    [EVQ_OP_EMBEDDING] = "embedding",
    [EVQ_OP_LAYER_NORM] = "layer_norm",
    [EVQ_OP_RMS_NORM] = "rms_norm",
    [EVQ_OP_ROPE] = "rope",
    [EVQ_OP_ATTENTION] = "attention",
    [EVQ_OP_GATE] = "gate",
    [EVQ_OP_SCORE] = "score"};
static const char *const ACTIVATIONS[EVQ_ACT_COUNT] = {[EVQ_ACT_NONE] = "none",
                                                       [EVQ_ACT_GELU_ERF] = "gelu_erf",
                                                       [EVQ_ACT_GELU_TANH] = "gelu_tanh",
                                                       [EVQ_ACT_SILU] = "silu"};

static void dump_ops(FILE *file, const struct lm *lm)
{
    for (size_t i = 0; i < lm->plan.op_count; i++) {
        const struct evq_op *op = &lm->ops[i];
        (void)fprintf(
            file,
            "%s\n  {\"kind\": \"%s\", \"in\": %d, \"out\": %d, \"residual\": %d, \"weight\": "
            "%d, \"bias\": %d, \"n\": %d, \"k\": %d, \"column\": %d, \"heads\": %d, "
            "\"kv_heads\": %d, \"window\": %d, \"activation\": \"%s\", \"scale\": %.9g, "
            "\"epsilon\": %.9g}",
            i > 0 ? "," : "", KINDS[op->kind], (int)op->in, (int)op->out, (int)op->residual,
            (int)op->weight, (int)op->bias, (int)op->n, (int)op->k, (int)op->column, (int)op->heads,
            (int)op->kv_heads, (int)op->window, ACTIVATIONS[op->activation], (double)op->scale,
            (double)op->epsilon);
    }
}

static void dump(const struct work *work, const struct lm *lm, bool bf16,
                 const struct evq_row_result *f32, const struct evq_row_result *half)
{
    const struct evq_batch *batch = &work->batch->batch;
    FILE *values = dump_open(work, "bin");
    FILE *file = dump_open(work, "json");

    (void)fprintf(file, "{\"ops\": [");
    dump_ops(file, lm);
    (void)fprintf(file, "],\n \"slots\": [");
    for (size_t i = 0; i < lm->plan.slot_count; i++) {
        const size_t count = (size_t)lm->slots[i].rows * (size_t)lm->slots[i].columns;
        float *weight = lm_weight(lm, i, work->sides->seed);
        (void)fwrite(weight, sizeof(*weight), count, values);
        free(weight);
        (void)fprintf(file, "%s[%d, %d]", i > 0 ? ", " : "", (int)lm->slots[i].rows,
                      (int)lm->slots[i].columns);
    }
    (void)fprintf(file, "],\n \"frequencies\": [");
    for (int32_t i = 0; i < work->shape->size / 2; i++) {
        (void)fprintf(file, "%s%.9g", i > 0 ? ", " : "", (double)lm->frequencies[i]);
    }
    (void)fprintf(file, "]");
    dump_integers(file, "columns", lm->columns, lm->plan.buffer_count);
    dump_integers(file, "tokens", batch->tokens, batch->rows);
    dump_integers(file, "starts", batch->starts, batch->sequences + 1);
    dump_integers(file, "score_rows", batch->score_rows, batch->scores);
    dump_integers(file, "score_targets", batch->score_targets, batch->scores);
    dump_losses(file, "cpu", work->cpu, batch->scores);
    dump_losses(file, "fp32", f32, batch->scores);
    if (bf16) {
        dump_losses(file, "bf16", half, batch->scores);
    }
    (void)fprintf(file, "}\n");
    if (fclose(values) != 0 || fclose(file) != 0) {
        (void)fprintf(stderr, "FAIL cannot write to '%s'\n", work->sides->dump);
        exit(1);
    }
}

/* ---- one model ---- */

/* The same plan again: no new memory, the weights still there. */
static void again(struct work *work, const struct lm *lm, enum evq_compute compute)
{
    const struct side *side = &work->sides->device;
    const int32_t scores = work->batch->batch.scores;
    struct evq_row_result *second = lm_alloc((size_t)scores, sizeof(*second));
    struct evq_backend_stats before;
    struct evq_backend_stats after;
    double apart = 0.0;

    side->ops->stats(side->state, &before);
    (void)model_run(side, lm, 0, NULL, &work->batch->batch, second);
    side->ops->stats(side->state, &after);
    apart = fabs(mean_loss(work->device, scores) - mean_loss(second, scores));
    if (!(apart <= 1e-9) || before.memory_bytes != after.memory_bytes) {
        fail(work, "kept from the plan before", compute, apart);
    }
    free(second);
    work->cases++;
}

/* One NaN among the weights of the embedding: it is seen, not turned into a number. */
static void broken(struct work *work, const struct lm *lm, enum evq_compute compute)
{
    const struct side *side = &work->sides->device;
    const struct evq_batch *batch = &work->batch->batch;
    float *values = lm_weight(lm, 0, work->sides->seed);
    struct evq_error err = {0};
    bool good = true;

    values[(size_t)batch->tokens[0] * (size_t)lm->slots[0].columns] = NAN;
    const struct evq_weight_blob blob = {
        .values = values, .type = EVQ_WEIGHT_F32, .rows = lm->slots[0].rows};
    lm_must(side->ops->put(side->state, 0, &blob, &err), &err);
    lm_must(side->ops->settle(side->state, &err), &err);
    lm_must(side->ops->exec(side->state, batch, work->device, &err), &err);
    for (int32_t i = 0; i < batch->scores && lm->shape->tied; i++) {
        good = good && isnan(work->device[i].loss) && work->device[i].predicted == -1;
    }
    if (!good) {
        fail(work, "with a NaN", compute, NAN);
    }
    free(values);
    work->cases++;
}

static void model_compare(struct work *work)
{
    const struct sides *sides = work->sides;
    const struct evq_batch *batch = &work->batch->batch;
    struct evq_row_result *f32 = lm_alloc((size_t)batch->scores, sizeof(*f32));
    struct lm *exact = lm_new(work->shape, EVQ_COMPUTE_F32, batch->rows, LONGEST);
    bool bf16 = false;
    const int most = sides->small ? 1 : WAYS;

    for (int way = most - 1; way >= 0; way--) { // Plain fp32 last: it is what is dumped.
        (void)model_run(&sides->cpu, exact, sides->seed, &ways[way], batch, work->cpu);
        for (int compute = 0; compute < EVQ_COMPUTE_COUNT; compute++) {
            struct lm *lm = lm_new(work->shape, (enum evq_compute)compute, batch->rows, LONGEST);
            double apart = 0.0;
            work->cases++;
            bf16 = model_run(&sides->device, lm, sides->seed, &ways[way], batch, work->device);
            if (!bf16) {
                work->refused++;
            } else if (!agree(work->cpu, work->device, batch->scores, compute == 0, &apart)) {
                fail(work, ways[way].name, (enum evq_compute)compute, apart);
                compare_losses(work->cpu, work->device, batch->scores, EACH(compute == 0));
            }
            work->worst[compute] = compare_worse(apart, work->worst[compute]);
            if (compute == EVQ_COMPUTE_F32) {
                memcpy(f32, work->device, (size_t)batch->scores * sizeof(*f32));
            }
            if (bf16 && way == 0) {
                again(work, lm, (enum evq_compute)compute);
            }
            if (way == 0 && compute == EVQ_COMPUTE_BF16 && sides->dump != NULL) {
                dump(work, exact, bf16, f32, work->device);
            }
            if (bf16 && way == 0) {
                broken(work, lm, (enum evq_compute)compute);
            }
            lm_free(lm);
        }
    }
    lm_free(exact);
    free(f32);
}

int compare_models(const struct sides *sides)
{
    const int32_t count = sides->repeats * LENGTHS;
    int32_t *repeated = lm_alloc((size_t)count, sizeof(*repeated));
    int faults = 0;

    for (int32_t i = 0; i < count; i++) {
        repeated[i] = lengths[i % LENGTHS];
    }
    for (size_t i = 0; i < lm_small_count; i++) {
        struct work work = {.sides = sides, .shape = &lm_small[i]};
        char group[96];
        if (sides->small &&
            (strncmp(lm_small[i].name, "heads-", 6) == 0 || lm_small[i].vocabulary > 10000)) {
            continue; // Heads of these sizes are among the operations.
        }
        work.batch = lm_batch_new(lm_small[i].vocabulary, repeated, count, 90, sides->seed + i);
        work.cpu = lm_alloc((size_t)work.batch->batch.scores, sizeof(*work.cpu));
        work.device = lm_alloc((size_t)work.batch->batch.scores, sizeof(*work.device));
        model_compare(&work);
        (void)snprintf(group, sizeof(group), "model %s, %d tokens, mean loss (bf16: %.2g)",
                       lm_small[i].name, (int)work.batch->batch.rows, work.worst[EVQ_COMPUTE_BF16]);
        compare_tell(group, work.cases, work.faults, work.refused, work.worst[EVQ_COMPUTE_F32]);
        faults += work.faults;
        free(work.cpu);
        free(work.device);
        lm_batch_free(work.batch);
    }
    free(repeated);
    return faults;
}
