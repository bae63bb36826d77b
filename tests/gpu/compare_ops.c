/*
 * Each operation by itself: a plan that looks tokens up, runs it, and ends in the squared errors to
 * what plain loops in double give, which are next to nothing. The CPU backend runs the same: where
 * it fails too, the test is wrong and not the device.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"
#include "tests/unit/plain_plan.h"

#define TOLERANCES                                                                                 \
    {                                                                                              \
        3e-5, 0.03                                                                                 \
    }                    // Of a row, in fp32 and bf16.
#define ROUNDED_MIN 8    // A norm of two near values is of what was rounded before it.
#define ROUNDED_MAX 2048 // Columns that are copied by a product.
#define TOLD_MAX    5    // Failures of a group that are told in full.

enum {
    IN = 1,
    OUT = 2,
    OTHER = 3,
    ROUNDED = 4,
    BUFFERS = 5,
    VOCABULARY = 211,
    TYPES = 3,
    OPS_MAX = 5,
    SLOTS_MAX = 6
};

static const char *const names[EVQ_OP_COUNT] = {[EVQ_OP_GEMM] = "product",
                                                [EVQ_OP_EMBEDDING] = "embedding",
                                                [EVQ_OP_LAYER_NORM] = "layer norm",
                                                [EVQ_OP_RMS_NORM] = "RMS norm",
                                                [EVQ_OP_ROPE] = "rope",
                                                [EVQ_OP_ATTENTION] = "attention",
                                                [EVQ_OP_MEAN] = "mean",
                                                [EVQ_OP_GATE] = "gate",
                                                [EVQ_OP_ADD] = "sum"};

struct op_case {
    struct evq_op op; // in, out, weight, bias and residual follow from what is below.
    int32_t in, out;  // Columns.
    bool in_place, bias, residual, types;
    int32_t weight_rows, weight_columns; // 0: none.
};

struct made { // A plan of one case.
    struct evq_op ops[OPS_MAX];
    struct evq_weight_slot slots[SLOTS_MAX];
    float *weights[SLOTS_MAX];
    int32_t columns[BUFFERS];
    float frequencies[64];
    struct evq_plan plan;
};

struct tally { // Of a group of cases.
    const struct sides *sides;
    uint64_t seed;
    int cases, faults, refused;
    double worst;
    bool lost; // The device, to this process.
};

static int32_t add_slot(struct made *made, struct tally *tally, const char *name, int32_t rows,
                        int32_t columns, float spread)
{
    const size_t i = made->plan.slot_count++;
    const size_t count = (size_t)rows * (size_t)columns;

    made->slots[i] = (struct evq_weight_slot){name, rows, columns};
    made->weights[i] = lm_alloc(count, sizeof(float));
    for (size_t v = 0; v < count; v++) {
        made->weights[i][v] = lm_random_float(&tally->seed) * spread;
    }
    return (int32_t)i;
}

static void add_lookup(struct made *made, struct tally *tally, int32_t out)
{
    const int32_t table = add_slot(made, tally, "table", VOCABULARY, made->columns[out], 1.7f);

    made->ops[made->plan.op_count++] = (struct evq_op){.kind = EVQ_OP_EMBEDDING,
                                                       .out = out,
                                                       .weight = table,
                                                       .bias = -1,
                                                       .n = made->columns[out],
                                                       .scale = 1.0f};
}

/* The product with the identity, which changes no value: what is read by no loss may be bf16. */
static void add_copy(struct made *made, struct tally *tally, int32_t from)
{
    const int32_t n = made->columns[from];
    const int32_t same = add_slot(made, tally, "same", n, n, 0.0f);

    for (int32_t i = 0; i < n; i++) {
        made->weights[same][(size_t)i * (size_t)n + (size_t)i] = 1.0f;
    }
    made->ops[made->plan.op_count++] = (struct evq_op){.kind = EVQ_OP_GEMM,
                                                       .in = from,
                                                       .out = ROUNDED,
                                                       .weight = same,
                                                       .bias = -1,
                                                       .n = n,
                                                       .k = n};
}

/* rounded: the operation writes a buffer that is bf16 where the plan is; else one that is fp32. */
static void case_make(const struct op_case *wanted, struct tally *tally, bool rounded,
                      struct made *made)
{
    const int32_t out = wanted->in_place ? IN : OUT;
    struct evq_op op = wanted->op;

    *made = (struct made){.columns = {1, wanted->in, wanted->out, wanted->out, wanted->out}};
    for (int i = 0; i < 64; i++) {
        made->frequencies[i] = powf(1e4f, -(float)i / 64.0f);
    }
    if (op.kind != EVQ_OP_EMBEDDING) {
        add_lookup(made, tally, IN);
    }
    if (wanted->residual) {
        add_lookup(made, tally, OTHER);
    }
    op.in = op.kind == EVQ_OP_EMBEDDING ? 0 : IN;
    op.out = out;
    op.residual = wanted->residual ? OTHER : 0;
    op.weight = op.bias = -1;
    op.frequencies = op.kind == EVQ_OP_ROPE ? made->frequencies : NULL;
    if (wanted->weight_rows > 0) {
        op.weight = add_slot(made, tally, "weight", wanted->weight_rows, wanted->weight_columns,
                             wanted->weight_rows > 1 && op.kind == EVQ_OP_GEMM
                                 ? 1.7f / sqrtf((float)wanted->weight_columns)
                                 : 1.0f);
    }
    if (wanted->bias) {
        op.bias = op.kind == EVQ_OP_EMBEDDING ? add_slot(made, tally, "places", 256, op.n, 1.0f)
                                              : add_slot(made, tally, "bias", 1, op.n, 1.0f);
    }
    if (wanted->types) {
        op.types = add_slot(made, tally, "types", TYPES, op.n, 1.0f);
    }
    made->ops[made->plan.op_count++] = op;
    if (rounded) {
        add_copy(made, tally, out);
    }
    made->ops[made->plan.op_count++] = (struct evq_op){.kind = EVQ_OP_SQUARED_ERROR,
                                                       .in = rounded ? ROUNDED : out,
                                                       .out = -1,
                                                       .weight = -1,
                                                       .bias = -1,
                                                       .n = made->columns[out]};
    made->plan.ops = made->ops;
    made->plan.slots = made->slots;
    made->plan.buffer_count = BUFFERS;
    made->plan.buffer_columns = made->columns;
}

/* The largest error of a row; INFINITY where it could not be computed; -1: refused. */
static double error_of(const struct side *side, const struct made *made,
                       const struct evq_batch *batch, struct evq_row_result *results)
{
    const struct evq_op *head = &made->plan.ops[made->plan.op_count - 1];
    struct evq_error err = {0};
    double worst = 0.0;

    for (int32_t i = 0; i < batch->rows; i++) {
        results[i].abs_loss = results[i].loss = INFINITY; // What is not filled fails.
    }
    enum evq_status status = side->ops->prepare(side->state, &made->plan, &err);
    for (size_t i = 0; i < made->plan.slot_count && status == EVQ_OK; i++) {
        const struct evq_weight_blob blob = {
            .values = made->weights[i], .type = EVQ_WEIGHT_F32, .rows = made->slots[i].rows};
        status = side->ops->put(side->state, (int32_t)i, &blob, &err);
    }
    if (status == EVQ_OK) {
        status = side->ops->settle(side->state, &err);
    }
    if (status == EVQ_OK) {
        status = side->ops->exec(side->state, batch, results, &err);
    }
    if (status == EVQ_E_UNSUPPORTED) {
        return -1.0;
    }
    if (status != EVQ_OK) {
        (void)printf("FAIL %s: %s\n", side->ops->name, err.message);
        return INFINITY;
    }
    for (int32_t i = 0; i < batch->rows; i++) {
        worst = compare_worse(compare_row(&results[i], head->n), worst);
    }
    return worst;
}

static void case_fail(struct tally *tally, const struct op_case *wanted, const struct side *side,
                      const struct made *made, const struct evq_batch *batch,
                      const struct evq_row_result *results, double error)
{
    static const double tolerances[] = TOLERANCES;

    if (tally->faults++ >= TOLD_MAX) {
        return;
    }
    (void)printf("FAIL %s n %d k %d heads %d/%d column %d window %d scale %g activation %d%s%s in "
                 "%s%s on %s: a row is wrong by %.3g\n",
                 names[wanted->op.kind], (int)wanted->op.n, (int)wanted->op.k,
                 (int)wanted->op.heads, (int)wanted->op.kv_heads, (int)wanted->op.column,
                 (int)wanted->op.window, (double)wanted->op.scale, (int)wanted->op.activation,
                 wanted->bias ? " bias" : "", wanted->residual ? " residual" : "",
                 made->plan.compute == EVQ_COMPUTE_F32 ? "fp32" : "bf16",
                 made->plan.ops[made->plan.op_count - 1].in == ROUNDED ? " to bf16" : "",
                 side->ops->name, error);
    tally->lost = compare_lost(side);
    if (!tally->lost && !isinf(error)) {
        compare_where(side, &made->plan, batch, results, tolerances[made->plan.compute]);
    }
}

/* In every compute from `first` on. */
static void case_compare(struct tally *tally, const struct op_case *wanted, struct made *made,
                         enum evq_compute first, const struct evq_batch *batch)
{
    static const double tolerances[] = TOLERANCES;
    const struct side *const both[] = {&tally->sides->cpu, &tally->sides->device};
    struct evq_row_result *results = lm_alloc((size_t)batch->rows, sizeof(*results));

    for (int i = 2 * (int)first; i < 2 * EVQ_COMPUTE_COUNT && !tally->lost; i++) {
        const struct side *side = both[i % 2];
        made->plan.compute = (enum evq_compute)(i / 2);
        const double error = error_of(side, made, batch, results);
        if (i % 2 == 1) {
            tally->cases++;
            tally->refused += error < 0.0;
            tally->worst = compare_worse(error, tally->worst);
        }
        if (!(error <= tolerances[i / 2])) {
            case_fail(tally, wanted, side, made, batch, results, error);
        }
    }
    free(results);
}

static void case_run_so(struct tally *tally, const struct op_case *wanted, bool rounded)
{
    static const int32_t lengths[] = {1, 31, 2, 33, 64, 5, 3, 129, 1, 65};
    const int32_t count = tally->sides->small ? 6 : 10;
    struct made made;

    case_make(wanted, tally, rounded, &made);
    struct lm_batch *batch = lm_batch_new(VOCABULARY, lengths, count, 0, ++tally->seed);
    made.plan.rows_max = batch->batch.rows;
    made.plan.length_max = 129;
    const int32_t out = made.plan.ops[made.plan.op_count - 1].in;
    const size_t values = (size_t)batch->batch.rows * (size_t)made.columns[out];
    float *targets = lm_alloc(values, sizeof(*targets));
    int32_t *types = lm_alloc((size_t)batch->batch.rows, sizeof(*types));
    for (int32_t r = 0; r < batch->batch.rows; r++) {
        types[r] = r / 3 % TYPES;
    }
    batch->batch.types = wanted->types && wanted->op.column != 1 ? types : NULL; // NULL: all 0.
    double **plain = plain_run(&made.plan, &batch->batch, made.weights, NULL);
    for (size_t i = 0; i < values; i++) {
        targets[i] = (float)plain[out][i];
    }
    plain_free(plain, BUFFERS);
    batch->batch.targets = targets;
    case_compare(tally, wanted, &made, rounded ? EVQ_COMPUTE_BF16 : EVQ_COMPUTE_F32, &batch->batch);
    for (size_t i = 0; i < made.plan.slot_count; i++) {
        free(made.weights[i]);
    }
    free(targets);
    free(types);
    lm_batch_free(batch);
}

static void case_run(struct tally *tally, const struct op_case *wanted)
{
    for (int rounded = 0; rounded < 2 && !tally->lost; rounded++) {
        lm_doing("%s n %d k %d heads %d/%d window %d", names[wanted->op.kind], (int)wanted->op.n,
                 (int)wanted->op.k, (int)wanted->op.heads, (int)wanted->op.kv_heads,
                 (int)wanted->op.window);
        if (rounded == 0 || (wanted->out >= ROUNDED_MIN && wanted->out <= ROUNDED_MAX)) {
            case_run_so(tally, wanted, rounded == 1);
        }
    }
}

/* ---- the groups ---- */

static void products(struct tally *tally)
{
    static const int32_t shapes[][2] = {{1, 1},    {2, 3},   {33, 31},  {64, 64}, {97, 128},
                                        {257, 40}, {8, 512}, {384, 96}, {130, 67}};
    int turn = 0;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int act = 0; act < EVQ_ACT_COUNT; act++, turn++) {
            case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_GEMM,
                                                     .n = shapes[i][0],
                                                     .k = shapes[i][1],
                                                     .activation = (enum evq_activation)act},
                                              .in = shapes[i][1],
                                              .out = shapes[i][0],
                                              .weight_rows = shapes[i][0],
                                              .weight_columns = shapes[i][1],
                                              .bias = turn % 3 != 0,
                                              .residual = turn % 2 == 0});
        }
    }
}

static void lookups(struct tally *tally)
{
    static const int32_t widths[] = {1, 2, 33, 64, 768};

    for (int i = 0; i < 10; i++) {
        const int32_t n = widths[i / 2];
        case_run(tally,
                 &(struct op_case){
                     .op = {.kind = EVQ_OP_EMBEDDING, .n = n, .scale = i % 3 == 0 ? 1.0f : 5.5f},
                     .in = n,
                     .out = n,
                     .weight_rows = VOCABULARY,
                     .weight_columns = n,
                     .bias = i % 2 == 0});
    }
}

static void norms(struct tally *tally)
{
    static const int32_t widths[] = {1, 2, 31, 64, 96, 768, 1600, 5120};
    static const int32_t heads[][4] = {
        {8, 0, 3, 24}, {64, 64, 2, 320}, {128, 0, 4, 512}, {80, 160, 1, 240}, {12, 24, 5, 100}};

    for (int i = 0; i < 16; i++) {
        const int32_t n = widths[i / 2];
        const bool centred = i % 2 == 0;
        case_run(tally,
                 &(struct op_case){.op = {.kind = centred ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                                          .n = n,
                                          .heads = 1,
                                          .epsilon = 1e-5f},
                                   .in = n,
                                   .out = n,
                                   .in_place = i % 4 > 1,
                                   .weight_rows = 1,
                                   .weight_columns = n,
                                   .bias = centred});
    }
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_RMS_NORM,
                                                 .n = heads[i][0],
                                                 .column = heads[i][1],
                                                 .heads = heads[i][2],
                                                 .epsilon = 1e-6f},
                                          .in = heads[i][3],
                                          .out = heads[i][3],
                                          .in_place = true,
                                          .weight_rows = 1,
                                          .weight_columns = heads[i][0]});
    }
}

static void ropes(struct tally *tally)
{
    static const int32_t heads[][4] = {
        {2, 0, 1, 2}, {8, 8, 3, 40}, {64, 0, 5, 400}, {128, 128, 2, 512}, {96, 0, 3, 288}};

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_ROPE,
                                                 .n = heads[i][0],
                                                 .column = heads[i][1],
                                                 .heads = heads[i][2],
                                                 .scale = i % 2 == 0 ? 1.0f : 1.2f},
                                          .in = heads[i][3],
                                          .out = heads[i][3],
                                          .in_place = true});
    }
}

static void attention(struct tally *tally, int32_t n, const int32_t *heads, int32_t window,
                      float scale)
{
    case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_ATTENTION,
                                             .n = n,
                                             .heads = heads[0],
                                             .kv_heads = heads[1],
                                             .window = window,
                                             .scale = scale},
                                      .in = (heads[0] + 2 * heads[1]) * n,
                                      .out = heads[0] * n});
}

static void attentions(struct tally *tally)
{
    static const int32_t sizes[] = {8, 12, 32, 64, 80, 96, 128, 256};
    static const int32_t heads[][2] = {{1, 1}, {4, 2}, {8, 1}, {5, 5}};
    static const int32_t windows[] = {0, 1, 7, 40, 1000};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t h = 0; h < 4; h++) {
            attention(tally, sizes[i], heads[h], windows[(i + h * 3) % 5],
                      1.0f / sqrtf((float)sizes[i]));
        }
    }
    attention(tally, 64, heads[1], 0, -0.1f); // The smallest product is the largest score.
    attention(tally, 64, heads[1], 0, 0.0f);
}

/* What only some model families use. */
static void options(struct tally *tally)
{
    static const struct op_case cases[] = {
        {.op = {.kind = EVQ_OP_ROPE, .n = 64, .heads = 3, .k = 32, .scale = 1.0f}, .in = 192},
        {.op = {.kind = EVQ_OP_ROPE, .n = 64, .heads = 3, .neighbours = true, .scale = 1.2f},
         .in = 192},
        {.op = {.kind = EVQ_OP_ROPE, .n = 32, .heads = 2, .k = 8, .step = 96, .scale = 1.0f},
         .in = 192},
        {.op = {.kind = EVQ_OP_LAYER_NORM, .n = 24, .heads = 4, .column = 8, .epsilon = 1e-5f},
         .in = 104,
         .weight_rows = 1,
         .weight_columns = 96},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct op_case wanted = cases[i];
        wanted.out = wanted.in;
        wanted.in_place = true;
        case_run(tally, &wanted);
    }
    for (int i = 0; i < 8; i++) {
        const int32_t n = i % 2 == 0 ? 64 : 12;
        const bool mixed = i / 2 % 2 == 1;
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_ATTENTION,
                                                 .n = n,
                                                 .heads = 4,
                                                 .kv_heads = mixed ? 4 : 2,
                                                 .step = mixed ? 3 * n : 0,
                                                 .window = i == 3 ? 7 : 0,
                                                 .cap = i > 3 ? 1.5f : 0.0f,
                                                 .scale = 1.0f / sqrtf((float)n)},
                                          .in = (mixed ? 12 : 8) * n,
                                          .out = 4 * n,
                                          .weight_rows = i % 3 == 0 ? 1 : 0,
                                          .weight_columns = 4});
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_ADD, .n = n, .scale = 0.22f},
                                          .in = n,
                                          .out = n,
                                          .in_place = mixed,
                                          .residual = true});
    }
}

/* The losses of rows with a label, whose logits come from a table: the device against the CPU. */
static void labels(struct tally *tally, int32_t classes, enum evq_compute compute)
{
    static const int32_t lengths[] = {1, 31, 2, 33};
    static const double tolerances[] = TOLERANCES;
    const struct side *const both[] = {&tally->sides->cpu, &tally->sides->device};
    struct lm_batch *batch = lm_batch_new(VOCABULARY, lengths, 4, 0, ++tally->seed);
    struct evq_row_result *results[2];
    struct made made = {.columns = {1, classes}};
    double apart = 0.0;

    add_lookup(&made, tally, IN);
    made.ops[made.plan.op_count++] = (struct evq_op){.kind = EVQ_OP_CROSS_ENTROPY,
                                                     .in = IN,
                                                     .out = -1,
                                                     .weight = -1,
                                                     .bias = -1,
                                                     .n = classes,
                                                     .top_k = 2};
    made.plan =
        (struct evq_plan){made.ops, made.plan.op_count, made.slots,        made.plan.slot_count,
                          2,        made.columns,       batch->batch.rows, 33,
                          compute};
    for (int32_t s = 0; s < 4; s++) { // The last row of each sequence.
        batch->score_rows[s] = batch->starts[s + 1] - 1;
        batch->score_targets[s] = s % classes;
    }
    batch->batch.scores = 4;
    for (int i = 0; i < 2; i++) {
        results[i] = lm_alloc((size_t)batch->batch.rows, sizeof(*results[i]));
        if (error_of(both[i], &made, &batch->batch, results[i]) < 0.0) {
            results[i][0].loss = NAN; // The CPU has no bf16 here: nothing is compared.
        }
    }
    for (int32_t s = 0; s < 4 && !isnan(results[0][0].loss); s++) {
        const struct evq_row_result *cpu = &results[0][s];
        const struct evq_row_result *device = &results[1][s];
        apart = compare_worse(fabs(cpu->loss - device->loss), apart);
        if (cpu->predicted != device->predicted || cpu->correct != device->correct ||
            cpu->in_top_k != device->in_top_k) {
            apart = INFINITY;
        }
    }
    tally->cases++;
    tally->worst = compare_worse(apart, tally->worst);
    if (!(apart <= tolerances[compute])) {
        tally->faults++;
        (void)printf("FAIL labels of %d classes in %s: apart by %.3g\n", (int)classes,
                     compute == EVQ_COMPUTE_F32 ? "fp32" : "bf16", apart);
    }
    for (size_t i = 0; i < made.plan.slot_count; i++) {
        free(made.weights[i]);
    }
    free(results[0]);
    free(results[1]);
    lm_batch_free(batch);
}

/* What only encoders use. */
static void encoders(struct tally *tally)
{
    static const int32_t sizes[] = {12, 32, 64, 96, 128, 256};
    static const int32_t windows[] = {0, 2, 33, 64, 1000};

    for (int i = 0; i < 12; i++) {
        const int32_t n = sizes[i % 6];
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_ATTENTION,
                                                 .n = n,
                                                 .heads = 2,
                                                 .kv_heads = 1 + i / 6,
                                                 .window = windows[i % 5],
                                                 .both = true,
                                                 .scale = 1.0f / sqrtf((float)n)},
                                          .in = (4 + i / 6 * 2) * n,
                                          .out = 2 * n});
    }
    for (int i = 0; i < 6; i++) {
        const int32_t n = i % 2 == 0 ? 40 : 33;
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_MEAN, .n = n}, .in = n, .out = n});
        case_run(tally,
                 &(struct op_case){
                     .op = {.kind = EVQ_OP_EMBEDDING, .n = n, .column = i / 2, .scale = 1.0f},
                     .in = n,
                     .out = n,
                     .weight_rows = VOCABULARY,
                     .weight_columns = n,
                     .bias = true,
                     .types = true});
        labels(tally, i % 2 == 0 ? 2 : 33, EVQ_COMPUTE_F32);
        labels(tally, i % 2 == 0 ? 2 : 33, EVQ_COMPUTE_BF16);
    }
}

static void gates(struct tally *tally)
{
    static const int32_t widths[] = {1, 31, 344};

    for (int i = 0; i < 3 * EVQ_ACT_COUNT; i++) {
        const int32_t n = widths[i % 3];
        case_run(tally, &(struct op_case){.op = {.kind = EVQ_OP_GATE,
                                                 .n = n,
                                                 .activation = (enum evq_activation)(i / 3)},
                                          .in = 2 * n,
                                          .out = n});
    }
}

int compare_ops(const struct sides *sides)
{
    static const struct {
        const char *part, *name;
        void (*run)(struct tally *tally);
    } groups[] = {{"products", "matrix products, bias, activations, residual", products},
                  {"lookups", "embeddings, positions", lookups},
                  {"norms", "layer norms, RMS norms, of rows and heads", norms},
                  {"ropes", "rotary positions", ropes},
                  {"options", "partial rotation, mixed heads, caps, sinks, sums", options},
                  {"attentions", "causal attention, shared heads, windows", attentions},
                  {"encoders", "attention in both directions, means, types, labels", encoders},
                  {"gates", "gated activations", gates}};
    int faults = 0;
    bool lost = false;

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]) && !lost; i++) {
        struct tally tally = {.sides = sides, .seed = sides->seed};
        if (sides->part != NULL && strcmp(sides->part, groups[i].part) != 0) {
            continue;
        }
        groups[i].run(&tally);
        if (tally.faults > TOLD_MAX) {
            (void)printf("     and %d failures more\n", tally.faults - TOLD_MAX);
        }
        compare_tell(groups[i].name, tally.cases, tally.faults, tally.refused, tally.worst);
        faults += tally.faults;
        lost = tally.lost;
    }
    return faults;
}
