#include "worker/loader/selfcheck.h"

#include <math.h>
#include <stdlib.h>

#define SEED       20261121u
#define ROWS       93
#define LENGTH     85
#define VALUES_MAX 4096 // Values of the largest weight.
#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))

// HEAD is a width for which a GPU computes attention in tiles.
enum { WIDTH = 24, HEAD = 32, HIDDEN = 40, VOCABULARY = 67, CLASSES = 11, TYPES = 2 };

static const float frequencies[HEAD / 2] = {1.0f,   0.75f,  0.5f,   0.4f,  0.25f, 0.2f,
                                            0.15f,  0.1f,   0.06f,  0.03f, 0.02f, 0.01f,
                                            0.008f, 0.005f, 0.003f, 0.001f};

static const struct evq_weight_slot token_slots[] = {
    {"embedding", VOCABULARY, WIDTH}, {"positions", LENGTH, WIDTH}, {"norm", 1, WIDTH},
    {"norm bias", 1, WIDTH},          {"qkv", 4 * HEAD, WIDTH},     {"qkv bias", 1, 4 * HEAD},
    {"query norm", 1, HEAD},          {"output", WIDTH, 2 * HEAD},  {"gates", 2 * HIDDEN, WIDTH},
    {"down", WIDTH, HIDDEN},          {"key norm", 1, HEAD},
};
static const int32_t token_columns[] = {1, WIDTH, WIDTH, 4 * HEAD, 2 * HEAD, 2 * HIDDEN, HIDDEN};

/* Two query heads share one key head, and each is normed, as in real models; a device may fuse the
 * norm with the rotation. The window is shorter than the longest sequence. */
static const struct evq_op token_ops[] = {
    {.kind = EVQ_OP_EMBEDDING, .out = 1, .weight = 0, .bias = 1, .n = WIDTH, .scale = 1.5f},
    {.kind = EVQ_OP_LAYER_NORM,
     .in = 1,
     .out = 2,
     .weight = 2,
     .bias = 3,
     .n = WIDTH,
     .heads = 1,
     .epsilon = 1e-5f},
    {.kind = EVQ_OP_GEMM, .in = 2, .out = 3, .weight = 4, .bias = 5, .n = 4 * HEAD, .k = WIDTH},
    {.kind = EVQ_OP_RMS_NORM,
     .in = 3,
     .out = 3,
     .weight = 6,
     .bias = -1,
     .n = HEAD,
     .heads = 2,
     .epsilon = 1e-6f},
    {.kind = EVQ_OP_RMS_NORM,
     .in = 3,
     .out = 3,
     .weight = 10,
     .bias = -1,
     .n = HEAD,
     .column = 2 * HEAD,
     .heads = 1,
     .epsilon = 1e-3f},
    {.kind = EVQ_OP_ROPE,
     .in = 3,
     .out = 3,
     .weight = -1,
     .bias = -1,
     .n = HEAD,
     .heads = 3,
     .scale = 1.0f,
     .frequencies = frequencies},
    {.kind = EVQ_OP_ATTENTION,
     .in = 3,
     .out = 4,
     .weight = -1,
     .bias = -1,
     .n = HEAD,
     .heads = 2,
     .kv_heads = 1,
     .window = 60,
     .scale = 0.18f},
    {.kind = EVQ_OP_GEMM,
     .in = 4,
     .out = 1,
     .residual = 1,
     .weight = 7,
     .bias = -1,
     .n = WIDTH,
     .k = 2 * HEAD},
    {.kind = EVQ_OP_RMS_NORM,
     .in = 1,
     .out = 2,
     .weight = 2,
     .bias = -1,
     .n = WIDTH,
     .heads = 1,
     .epsilon = 1e-6f},
    {.kind = EVQ_OP_GEMM, .in = 2, .out = 5, .weight = 8, .bias = -1, .n = 2 * HIDDEN, .k = WIDTH},
    {.kind = EVQ_OP_GATE,
     .in = 5,
     .out = 6,
     .weight = -1,
     .bias = -1,
     .n = HIDDEN,
     .activation = EVQ_ACT_SILU},
    {.kind = EVQ_OP_GEMM,
     .in = 6,
     .out = 1,
     .residual = 1,
     .weight = 9,
     .bias = 3,
     .n = WIDTH,
     .k = HIDDEN,
     .activation = EVQ_ACT_GELU_TANH},
    {.kind = EVQ_OP_SCORE,
     .in = 1,
     .out = -1,
     .weight = 0,
     .bias = -1,
     .n = VOCABULARY,
     .k = WIDTH},
};

static const struct evq_weight_slot encoder_slots[] = {
    {"embedding", VOCABULARY, WIDTH}, {"positions", LENGTH + 1, WIDTH}, {"types", TYPES, WIDTH},
    {"qkv", 4 * HEAD, WIDTH},         {"qkv bias", 1, 4 * HEAD},        {"output", WIDTH, 2 * HEAD},
    {"classes", CLASSES, WIDTH},
};
static const int32_t encoder_columns[] = {1, WIDTH, 4 * HEAD, 2 * HEAD, WIDTH, WIDTH, CLASSES};

/* Queries see keys in both directions. Every row has a label. */
static const struct evq_op encoder_ops[] = {
    {.kind = EVQ_OP_EMBEDDING,
     .out = 1,
     .weight = 0,
     .bias = 1,
     .types = 2,
     .n = WIDTH,
     .column = 1,
     .scale = 1.0f},
    {.kind = EVQ_OP_GEMM, .in = 1, .out = 2, .weight = 3, .bias = 4, .n = 4 * HEAD, .k = WIDTH},
    {.kind = EVQ_OP_ATTENTION,
     .in = 2,
     .out = 3,
     .weight = -1,
     .bias = -1,
     .n = HEAD,
     .heads = 2,
     .kv_heads = 1,
     .window = 40,
     .both = true,
     .scale = 0.18f},
    {.kind = EVQ_OP_GEMM,
     .in = 3,
     .out = 4,
     .weight = 5,
     .bias = -1,
     .n = WIDTH,
     .k = 2 * HEAD,
     .activation = EVQ_ACT_TANH},
    {.kind = EVQ_OP_MEAN, .in = 4, .out = 5, .weight = -1, .bias = -1, .n = WIDTH},
    {.kind = EVQ_OP_ADD,
     .in = 4,
     .out = 5,
     .residual = 5,
     .weight = -1,
     .bias = -1,
     .n = WIDTH,
     .scale = 0.5f},
    {.kind = EVQ_OP_GEMM, .in = 5, .out = 6, .weight = 6, .bias = -1, .n = CLASSES, .k = WIDTH},
    {.kind = EVQ_OP_CROSS_ENTROPY,
     .in = 6,
     .out = -1,
     .weight = -1,
     .bias = -1,
     .n = CLASSES,
     .top_k = 3},
};

static const struct evq_weight_slot sample_slots[] = {
    {"first", HIDDEN, WIDTH},
    {"first bias", 1, HIDDEN},
    {"last", CLASSES, HIDDEN},
};
static const int32_t sample_columns[] = {WIDTH, HIDDEN, CLASSES};

#define SAMPLE_OPS(head)                                                                           \
    {                                                                                              \
        {.kind = EVQ_OP_GEMM,                                                                      \
         .in = 0,                                                                                  \
         .out = 1,                                                                                 \
         .weight = 0,                                                                              \
         .bias = 1,                                                                                \
         .n = HIDDEN,                                                                              \
         .k = WIDTH,                                                                               \
         .activation = EVQ_ACT_GELU_ERF},                                                          \
            {.kind = EVQ_OP_GEMM,                                                                  \
             .in = 1,                                                                              \
             .out = 2,                                                                             \
             .weight = 2,                                                                          \
             .bias = -1,                                                                           \
             .n = CLASSES,                                                                         \
             .k = HIDDEN},                                                                         \
        {                                                                                          \
            .kind = (head), .in = 2, .out = -1, .weight = -1, .bias = -1, .n = CLASSES, .top_k = 3 \
        }                                                                                          \
    }
static const struct evq_op class_ops[] = SAMPLE_OPS(EVQ_OP_CROSS_ENTROPY);
static const struct evq_op error_ops[] = SAMPLE_OPS(EVQ_OP_SQUARED_ERROR);

/* What is computed, and the largest allowed root mean square of the differences, each relative to 1
 * + the right value. fp32 sums run in another order. bf16 products differ from fp32 ones by 0.0007
 * in three ways of rounding (the CPU's, and cuBLASLt's with and without fused operations,
 * emulated), and by 0.004 if a sum is not rescaled. */
static const struct check {
    const char *what;
    struct evq_plan plan;
    double tolerance;
} checks[] = {
    {"a model of tokens in fp32",
     {token_ops, COUNT(token_ops), token_slots, COUNT(token_slots), COUNT(token_columns),
      token_columns, ROWS, LENGTH, EVQ_COMPUTE_F32},
     1e-5},
    {"a model of tokens in bf16",
     {token_ops, COUNT(token_ops), token_slots, COUNT(token_slots), COUNT(token_columns),
      token_columns, ROWS, LENGTH, EVQ_COMPUTE_BF16},
     0.002},
    {"an encoder in fp32",
     {encoder_ops, COUNT(encoder_ops), encoder_slots, COUNT(encoder_slots), COUNT(encoder_columns),
      encoder_columns, ROWS, LENGTH, EVQ_COMPUTE_F32},
     1e-5},
    {"an encoder in bf16",
     {encoder_ops, COUNT(encoder_ops), encoder_slots, COUNT(encoder_slots), COUNT(encoder_columns),
      encoder_columns, ROWS, LENGTH, EVQ_COMPUTE_BF16},
     0.002},
    {"a classifier",
     {class_ops, COUNT(class_ops), sample_slots, COUNT(sample_slots), COUNT(sample_columns),
      sample_columns, ROWS, 0, EVQ_COMPUTE_F32},
     1e-5},
    {"a regression",
     {error_ops, COUNT(error_ops), sample_slots, COUNT(sample_slots), COUNT(sample_columns),
      sample_columns, ROWS, 0, EVQ_COMPUTE_F32},
     1e-5},
};

struct work { // The memory of one run.
    float weight[VALUES_MAX];
    float inputs[ROWS * WIDTH], targets[ROWS * CLASSES];
    int32_t labels[ROWS], tokens[ROWS], types[ROWS], score_rows[ROWS], score_targets[ROWS];
    struct evq_row_result results[2][ROWS];
    uint32_t random;
};

static uint32_t random_next(struct work *work)
{
    work->random = work->random * 1664525u + 1013904223u;
    return work->random >> 8; // The low bits of such a sequence repeat soon.
}

static void random_fill(struct work *work, float *values, size_t count, float spread)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = ((float)random_next(work) / 8388608.0f - 1.0f) * spread;
    }
}

static struct evq_batch make_batch(struct work *work, const struct evq_plan *plan)
{
    static const int32_t starts[] = {0, 1, 8, ROWS};
    const bool labels = plan->ops[plan->op_count - 1].kind == EVQ_OP_CROSS_ENTROPY;

    random_fill(work, work->inputs, COUNT(work->inputs), 1.0f);
    random_fill(work, work->targets, COUNT(work->targets), 1.0f);
    for (int32_t i = 0; i < ROWS; i++) {
        work->labels[i] = (int32_t)(random_next(work) % CLASSES);
        work->tokens[i] = (int32_t)(random_next(work) % VOCABULARY);
        work->types[i] = i % 3 % TYPES;
        // Some rows are scored, and those more than once; a row has one label.
        work->score_rows[i] = labels ? i : i / 2 * 2;
        work->score_targets[i] = (int32_t)(random_next(work) % (labels ? CLASSES : VOCABULARY));
    }
    if (plan->length_max == 0) {
        return (struct evq_batch){
            .rows = ROWS, .inputs = work->inputs, .labels = work->labels, .targets = work->targets};
    }
    return (struct evq_batch){.rows = ROWS,
                              .tokens = work->tokens,
                              .types = work->types,
                              .starts = starts,
                              .sequences = (int32_t)COUNT(starts) - 1,
                              .score_rows = work->score_rows,
                              .score_targets = work->score_targets,
                              .scores = ROWS};
}

static enum evq_status run(const struct evq_backend_ops *ops, void *state,
                           const struct evq_plan *plan, struct work *work,
                           struct evq_row_result *results, struct evq_error *err)
{
    work->random = SEED;
    enum evq_status status = ops->prepare(state, plan, err);
    for (size_t i = 0; i < plan->slot_count && status == EVQ_OK; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        const struct evq_weight_blob blob = {
            .values = work->weight, .type = EVQ_WEIGHT_F32, .rows = slot->rows};
        random_fill(work, work->weight, (size_t)slot->rows * (size_t)slot->columns,
                    slot->rows > 1 ? 0.3f : 1.0f);
        status = ops->put(state, (int32_t)i, &blob, err);
        if (status == EVQ_OK) {
            status = ops->settle(state, err);
        }
    }
    for (int32_t i = 0; i < ROWS; i++) {
        // Marks results that are not filled.
        results[i] = (struct evq_row_result){.loss = NAN, .predicted = -1};
    }
    if (status == EVQ_OK) {
        const struct evq_batch batch = make_batch(work, plan);
        status = ops->exec(state, &batch, results, err);
    }
    return status;
}

static double apart(double right, double other)
{
    return fabs(right - other) / (1.0 + fabs(right));
}

static bool agree(const struct check *check, const struct work *work, double *ret_worst)
{
    double squares = 0.0;
    bool good = true;

    *ret_worst = 0.0;
    for (int32_t i = 0; i < ROWS; i++) {
        const struct evq_row_result *cpu = &work->results[0][i];
        const struct evq_row_result *device = &work->results[1][i];
        const double off =
            hypot(apart(cpu->loss, device->loss), apart(cpu->abs_loss, device->abs_loss));
        const double far = fabs(cpu->loss - device->loss);
        *ret_worst = !(far <= *ret_worst) ? far : *ret_worst;
        squares += off * off;
        // In bf16, the larger of two close logits may be the other one.
        good = good && (check->plan.compute == EVQ_COMPUTE_BF16 ||
                        (cpu->predicted == device->predicted && cpu->correct == device->correct &&
                         cpu->in_top_k == device->in_top_k));
    }
    return good && sqrt(squares / ROWS) <= check->tolerance; // A NaN fails this comparison.
}

static enum evq_status compare(const struct evq_backend_ops *ops, void *device, void *cpu,
                               const struct check *check, struct work *work, struct evq_error *err)
{
    struct evq_plan exact = check->plan;
    struct evq_error why = {0};
    double worst = 0.0;

    exact.compute = EVQ_COMPUTE_F32; // Not every processor multiplies bf16.
    enum evq_status status = run(ops, device, &check->plan, work, work->results[1], &why);
    if (status == EVQ_E_UNSUPPORTED) {
        return EVQ_OK;
    }
    if (status != EVQ_OK) {
        return evq_error_set(err, EVQ_E_DEVICE, "self-check of %s: the device fails: %s",
                             check->what, why.message);
    }
    status = run(&evq_backend_cpu, cpu, &exact, work, work->results[0], err);
    if (status == EVQ_OK && !agree(check, work, &worst)) {
        status = evq_error_set(err, EVQ_E_DEVICE,
                               "self-check of %s: the device and the CPU disagree, losses by up to "
                               "%.3g",
                               check->what, worst);
    }
    return status;
}

/* The devices work as one: the second one goes on with what the first one has computed. */
static enum evq_status check_devices(const struct evq_backend_ops *ops, const int32_t *devices,
                                     int32_t count, struct work *work, struct evq_error *err)
{
    const struct evq_backend_config config = {
        .device = devices[0], .threads = 1, .devices = devices, .device_count = count};
    void *opened = NULL;
    void *cpu = NULL;

    if (ops->open(&config, &opened, NULL) != EVQ_OK) {
        return EVQ_OK;
    }
    enum evq_status status = evq_backend_cpu.open(&config, &cpu, err);
    for (size_t i = 0; i < COUNT(checks) && status == EVQ_OK; i++) {
        status = compare(ops, opened, cpu, &checks[i], work, err);
    }
    ops->close(opened); // The plans outlive the state.
    evq_backend_cpu.close(cpu);
    return status;
}

enum evq_status evq_selfcheck(const struct evq_backend_ops *ops, const int32_t *devices,
                              int32_t count, struct evq_error *err)
{
    struct work *work = calloc(1, sizeof(*work));
    enum evq_status status = EVQ_OK;

    if (work == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "self-check of a device");
    }
    for (int32_t i = 0; i < count && status == EVQ_OK; i++) {
        status = check_devices(ops, &devices[i], 1, work, err);
        if (status != EVQ_OK && count > 1) {
            (void)evq_error_prefix(err, "GPU %d of %d", (int)i + 1, (int)count);
        } else if (status == EVQ_OK && i > 0) {
            status = check_devices(ops, &devices[i - 1], 2, work, err);
            if (status != EVQ_OK) {
                (void)evq_error_prefix(err, "GPUs %d and %d of %d", (int)i, (int)i + 1, (int)count);
            }
        }
    }
    free(work);
    return status;
}
