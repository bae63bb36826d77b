#include "tests/gpu/lm_plan.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYER_OPS   12
#define LAYER_SLOTS 14
#define OUTER       8 // Operations and slots beside the layers, at most.

enum { TOKENS, STREAM, NORMED, QKV, ATTENDED, WIDE, GATED, BUFFERS };

#define GPT2(name_, layers_, width_, heads_, size_, vocabulary_, positions_)                       \
    {                                                                                              \
        .name = name_, .layers = layers_, .width = width_, .heads = heads_, .kv_heads = heads_,    \
        .size = size_, .hidden = 4 * (width_), .vocabulary = vocabulary_, .positions = positions_, \
        .layer_norm = true, .qkv_bias = true, .tied = true, .activation = EVQ_ACT_GELU_TANH        \
    }
#define LLAMA(name_, layers_, width_, heads_, kv_, size_, hidden_, vocabulary_, ...)               \
    {                                                                                              \
        .name = name_, .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_,       \
        .size = size_, .hidden = hidden_, .vocabulary = vocabulary_, .gated = true,                \
        .activation = EVQ_ACT_SILU, __VA_ARGS__                                                    \
    }

const struct lm_shape lm_small[] = {
    GPT2("gpt2", 2, 48, 4, 12, 509, 256),
    {.name = "gpt2-erf",
     .layers = 1,
     .width = 40,
     .heads = 5,
     .kv_heads = 5,
     .size = 8,
     .hidden = 160,
     .vocabulary = 257,
     .positions = 256,
     .layer_norm = true,
     .qkv_bias = true,
     .tied = true,
     .activation = EVQ_ACT_GELU_ERF},
    LLAMA("llama", 2, 64, 4, 2, 16, 172, 1009, .tied = false),
    LLAMA("mistral", 2, 64, 4, 1, 16, 172, 1009, .window = 9),
    LLAMA("qwen2", 2, 56, 7, 1, 8, 152, 769, .qkv_bias = true, .tied = true),
    LLAMA("qwen3", 2, 64, 4, 2, 32, 96, 1511, .qk_norm = true, .tied = true),
    {.name = "gemma",
     .layers = 1,
     .width = 64,
     .heads = 2,
     .kv_heads = 1,
     .size = 256,
     .hidden = 160,
     .vocabulary = 997,
     .gated = true,
     .tied = true,
     .activation = EVQ_ACT_GELU_TANH,
     .embedding_scale = 8.0f},
    GPT2("heads-64", 1, 128, 2, 64, 513, 256),
    LLAMA("heads-80", 1, 160, 2, 1, 80, 264, 512, .window = 33),
    LLAMA("heads-96", 1, 192, 2, 2, 96, 256, 640, .tied = true),
    GPT2("vocabulary", 1, 32, 2, 16, 50257, 256),
    LLAMA("heads-128", 1, 256, 4, 1, 128, 384, 1024, .qk_norm = true),
};
const size_t lm_small_count = sizeof(lm_small) / sizeof(lm_small[0]);

const struct lm_shape lm_large[] = {
    GPT2("gpt2-124m", 12, 768, 12, 64, 50257, 1024),
    GPT2("gpt2-1.5b", 48, 1600, 25, 64, 50257, 1024),
    LLAMA("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, .qk_norm = true, .tied = true),
    LLAMA("qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, .qk_norm = true, .tied = true),
    LLAMA("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, .tied = false),
};
const size_t lm_large_count = sizeof(lm_large) / sizeof(lm_large[0]);

uint64_t lm_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

float lm_random_float(uint64_t *state)
{
    return (float)((double)(lm_random(state) >> 40) / (double)(1 << 23) - 1.0);
}

void *lm_alloc(size_t count, size_t item_bytes)
{
    void *data = calloc(count > 0 ? count : 1, item_bytes);

    if (data == NULL) {
        (void)fprintf(stderr, "out of memory: %zu times %zu bytes\n", count, item_bytes);
        exit(1);
    }
    return data;
}

static char doing[256] = "start";

void lm_doing(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(doing, sizeof(doing), format, arguments);
    va_end(arguments);
}

static void stopped(int number)
{
    static const char begin[] = "FAIL stopped at ";

    // Nothing can be done where it cannot be written; by default the signal ends the program.
    if (write(STDOUT_FILENO, begin, sizeof(begin) - 1) >= 0 &&
        write(STDOUT_FILENO, doing, strnlen(doing, sizeof(doing))) >= 0) {
        (void)!write(STDOUT_FILENO, "\n", 1);
    }
    // Now only: a second signal, as timeout sends, meets another thread before the line is written.
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

void lm_watch(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
    const struct sigaction action = {.sa_handler = stopped};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)sigaction(numbers[i], &action, NULL); // Fails for no signal of these.
    }
}

void lm_must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)printf("FAIL %s: %s\n", doing, err->message);
        exit(1);
    }
}

/* ---- the plan ---- */

static int32_t slot(struct lm *lm, const char *name, int32_t rows, int32_t columns)
{
    lm->slots[lm->plan.slot_count] = (struct evq_weight_slot){name, rows, columns};
    return (int32_t)lm->plan.slot_count++;
}

static void add(struct lm *lm, const struct evq_op *op)
{
    lm->ops[lm->plan.op_count++] = *op;
}

static void add_gemm(struct lm *lm, const char *name, struct evq_op op, bool bias)
{
    op.kind = EVQ_OP_GEMM;
    op.weight = slot(lm, name, op.n, op.k);
    op.bias = bias ? slot(lm, "bias", 1, op.n) : -1;
    add(lm, &op);
}

static void add_norm(struct lm *lm)
{
    const struct lm_shape *shape = lm->shape;
    struct evq_op op = {.kind = shape->layer_norm ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                        .in = STREAM,
                        .out = NORMED,
                        .bias = -1,
                        .n = shape->width,
                        .heads = 1,
                        .epsilon = shape->layer_norm ? 1e-5f : 1e-6f};

    op.weight = slot(lm, "scale", 1, shape->width);
    if (shape->layer_norm) {
        op.bias = slot(lm, "shift", 1, shape->width);
    }
    add(lm, &op);
}

static void add_head_norm(struct lm *lm, int32_t column, int32_t heads)
{
    const int32_t weight = slot(lm, "scale", 1, lm->shape->size);

    add(lm, &(struct evq_op){.kind = EVQ_OP_RMS_NORM,
                             .in = QKV,
                             .out = QKV,
                             .weight = weight,
                             .bias = -1,
                             .n = lm->shape->size,
                             .column = column,
                             .heads = heads,
                             .epsilon = 1e-6f});
}

static void add_attention(struct lm *lm)
{
    const struct lm_shape *shape = lm->shape;
    const int32_t heads = shape->heads;

    add_norm(lm);
    add_gemm(lm, "qkv",
             (struct evq_op){.in = NORMED, .out = QKV, .n = lm->columns[QKV], .k = shape->width},
             shape->qkv_bias);
    if (shape->qk_norm) {
        add_head_norm(lm, 0, heads);
        add_head_norm(lm, heads * shape->size, shape->kv_heads);
    }
    if (shape->positions == 0) {
        add(lm, &(struct evq_op){.kind = EVQ_OP_ROPE,
                                 .in = QKV,
                                 .out = QKV,
                                 .weight = -1,
                                 .bias = -1,
                                 .n = shape->size,
                                 .heads = heads + shape->kv_heads,
                                 .scale = 1.0f,
                                 .frequencies = lm->frequencies});
    }
    add(lm, &(struct evq_op){.kind = EVQ_OP_ATTENTION,
                             .in = QKV,
                             .out = ATTENDED,
                             .weight = -1,
                             .bias = -1,
                             .n = shape->size,
                             .heads = heads,
                             .kv_heads = shape->kv_heads,
                             .window = shape->window,
                             .scale = 1.0f / sqrtf((float)shape->size)});
    add_gemm(lm, "output",
             (struct evq_op){.in = ATTENDED,
                             .out = STREAM,
                             .residual = STREAM,
                             .n = shape->width,
                             .k = heads * shape->size},
             shape->layer_norm);
}

static void add_feed_forward(struct lm *lm)
{
    const struct lm_shape *shape = lm->shape;
    const bool gated = shape->gated;

    add_norm(lm);
    add_gemm(lm, gated ? "gate and up" : "up",
             (struct evq_op){.in = NORMED,
                             .out = WIDE,
                             .n = lm->columns[WIDE],
                             .k = shape->width,
                             .activation = gated ? EVQ_ACT_NONE : shape->activation},
             shape->layer_norm);
    if (gated) {
        add(lm, &(struct evq_op){.kind = EVQ_OP_GATE,
                                 .in = WIDE,
                                 .out = GATED,
                                 .weight = -1,
                                 .bias = -1,
                                 .n = shape->hidden,
                                 .activation = shape->activation});
    }
    add_gemm(lm, "down",
             (struct evq_op){.in = gated ? GATED : WIDE,
                             .out = STREAM,
                             .residual = STREAM,
                             .n = shape->width,
                             .k = shape->hidden},
             shape->layer_norm);
}

static void add_all(struct lm *lm)
{
    const struct lm_shape *shape = lm->shape;
    const int32_t table = slot(lm, "embedding", shape->vocabulary, shape->width);
    const int32_t places =
        shape->positions > 0 ? slot(lm, "positions", shape->positions, shape->width) : -1;

    add(lm,
        &(struct evq_op){.kind = EVQ_OP_EMBEDDING,
                         .out = STREAM,
                         .weight = table,
                         .bias = places,
                         .n = shape->width,
                         .scale = shape->embedding_scale != 0.0f ? shape->embedding_scale : 1.0f});
    for (int32_t i = 0; i < shape->layers; i++) {
        add_attention(lm);
        add_feed_forward(lm);
    }
    add_norm(lm);
    const int32_t head = shape->tied ? table : slot(lm, "head", shape->vocabulary, shape->width);
    add(lm, &(struct evq_op){.kind = EVQ_OP_SCORE,
                             .in = NORMED,
                             .out = -1,
                             .weight = head,
                             .bias = -1,
                             .n = shape->vocabulary,
                             .k = shape->width});
}

struct lm *lm_new(const struct lm_shape *shape, enum evq_compute compute, int32_t rows_max,
                  int32_t length_max)
{
    struct lm *lm = lm_alloc(1, sizeof(*lm));
    const size_t layers = (size_t)shape->layers;

    lm->shape = shape;
    lm->slots = lm_alloc(layers * LAYER_SLOTS + OUTER, sizeof(*lm->slots));
    lm->ops = lm_alloc(layers * LAYER_OPS + OUTER, sizeof(*lm->ops));
    lm->frequencies = lm_alloc((size_t)shape->size / 2 + 1, sizeof(*lm->frequencies));
    for (int32_t i = 0; i < shape->size / 2; i++) {
        lm->frequencies[i] = powf(1e4f, -2.0f * (float)i / (float)shape->size);
    }
    lm->columns[TOKENS] = 1;
    lm->columns[STREAM] = lm->columns[NORMED] = shape->width;
    lm->columns[QKV] = (shape->heads + 2 * shape->kv_heads) * shape->size;
    lm->columns[ATTENDED] = shape->heads * shape->size;
    lm->columns[WIDE] = shape->gated ? 2 * shape->hidden : shape->hidden;
    lm->columns[GATED] = shape->gated ? shape->hidden : 1;
    add_all(lm);
    lm->plan.ops = lm->ops;
    lm->plan.slots = lm->slots;
    lm->plan.buffer_count = BUFFERS;
    lm->plan.buffer_columns = lm->columns;
    lm->plan.rows_max = rows_max;
    lm->plan.length_max = length_max;
    lm->plan.compute = compute;
    return lm;
}

void lm_free(struct lm *lm)
{
    free(lm->slots);
    free(lm->ops);
    free(lm->frequencies);
    free(lm);
}

float *lm_weight(const struct lm *lm, size_t number, uint64_t seed)
{
    const struct evq_weight_slot *wanted = &lm->slots[number];
    const size_t count = (size_t)wanted->rows * (size_t)wanted->columns;
    const bool scale = wanted->rows == 1 && wanted->name[0] == 's' && wanted->name[1] == 'c';
    // Activations near 1; logits as spread as a language model's, with a deviation of about 2.
    const float wide = wanted->rows == lm->shape->vocabulary ? 3.4f : 1.7f;
    const float spread = wanted->rows == 1 ? 0.2f : wide / sqrtf((float)wanted->columns);
    uint64_t state = seed * 1000003 + number * 7919 + 1;
    float *values = lm_alloc(count, sizeof(*values));

    for (int i = 0; i < 8; i++) {
        (void)lm_random(&state); // Seeds that are near give sequences that are far.
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = lm_random_float(&state) * spread + (scale ? 1.0f : 0.0f);
    }
    return values;
}

/* ---- a batch ---- */

struct lm_batch *lm_batch_new(int32_t vocabulary, const int32_t *lengths, int32_t count,
                              int32_t scored, uint64_t seed)
{
    struct lm_batch *made = lm_alloc(1, sizeof(*made));
    struct evq_batch *batch = &made->batch;

    made->starts = lm_alloc((size_t)count + 1, sizeof(*made->starts));
    for (int32_t i = 0; i < count; i++) {
        made->starts[i + 1] = made->starts[i] + lengths[i];
    }
    batch->rows = made->starts[count];
    batch->sequences = count;
    made->tokens = lm_alloc((size_t)batch->rows, sizeof(*made->tokens));
    made->score_rows = lm_alloc(2 * (size_t)batch->rows, sizeof(*made->score_rows));
    made->score_targets = lm_alloc(2 * (size_t)batch->rows, sizeof(*made->score_targets));
    for (int32_t i = 0; i < batch->rows; i++) {
        made->tokens[i] = (int32_t)(lm_random(&seed) % (uint64_t)vocabulary);
        const bool is_scored = (int32_t)(lm_random(&seed) % 100) < scored;
        const int32_t times = !is_scored ? 0 : scored < 100 && lm_random(&seed) % 7 == 0 ? 2 : 1;
        for (int32_t t = 0; t < times; t++) {
            made->score_rows[batch->scores] = i;
            made->score_targets[batch->scores++] =
                (int32_t)(lm_random(&seed) % (uint64_t)vocabulary);
        }
    }
    batch->tokens = made->tokens;
    batch->starts = made->starts;
    batch->score_rows = made->score_rows;
    batch->score_targets = made->score_targets;
    return made;
}

void lm_batch_free(struct lm_batch *batch)
{
    free(batch->tokens);
    free(batch->starts);
    free(batch->score_rows);
    free(batch->score_targets);
    free(batch);
}
