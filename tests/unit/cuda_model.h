/*
 * Small decoders, their weights and batches, for tests of the CUDA backend.
 */
#ifndef EVQ_TESTS_UNIT_CUDA_MODEL_H
#define EVQ_TESTS_UNIT_CUDA_MODEL_H

#include "kernels/backend.h"
#include "tests/unit/cuda_fixture.h"

#define SLOTS_MAX  64
#define OPS_MAX    64
#define ROWS_MAX   512
#define SCORES_MAX 1024
#define LAYERS     2

const struct evq_backend_ops *evq_backend_module_v1(void);

static struct evq_error err;

/* A decoder: GPT-2 with learned positions and biases, or gated with rope, perhaps with norms of its
 * queries' and keys' heads. */
struct shape {
    int32_t heads, kv_heads, size, vocabulary, window;
    bool gated, head_norms;
    enum evq_activation activation;
};

enum { TOKENS, STREAM, NORMED, QKV, ATTENDED, WIDE, GATED, BUFFERS };

struct model {
    struct evq_weight_slot slots[SLOTS_MAX];
    float *weights[SLOTS_MAX]; // bf16 values.
    struct evq_op ops[OPS_MAX];
    int32_t columns[BUFFERS];
    float frequencies[128];
    struct evq_plan plan;
    int32_t tokens[ROWS_MAX], starts[16];
    int32_t score_rows[SCORES_MAX], score_targets[SCORES_MAX];
    struct evq_batch batch;
};

static inline int32_t slot(struct model *model, int32_t rows, int32_t columns, float scale)
{
    const size_t i = model->plan.slot_count++;
    const size_t count = (size_t)rows * (size_t)columns;

    assert_true(i < SLOTS_MAX);
    model->slots[i] = (struct evq_weight_slot){"w", rows, columns};
    model->weights[i] = malloc(count * sizeof(float));
    assert_non_null(model->weights[i]);
    for (size_t v = 0; v < count; v++) {
        model->weights[i][v] = random_value(scale);
    }
    return (int32_t)i;
}

static inline void add(struct model *model, struct evq_op op)
{
    assert_true(model->plan.op_count < OPS_MAX);
    model->ops[model->plan.op_count++] = op;
}

static inline void add_norm(struct model *model, bool gated, int32_t n)
{
    add(model, (struct evq_op){.kind = gated ? EVQ_OP_RMS_NORM : EVQ_OP_LAYER_NORM,
                               .in = STREAM,
                               .out = NORMED,
                               .weight = slot(model, 1, n, 2.0f),
                               .bias = gated ? -1 : slot(model, 1, n, 0.1f),
                               .n = n,
                               .heads = 1,
                               .epsilon = 1e-5f});
}

static inline void add_gemm(struct model *model, int32_t in, int32_t out, int32_t n, int32_t k,
                            bool biased, int32_t residual, enum evq_activation activation)
{
    add(model, (struct evq_op){.kind = EVQ_OP_GEMM,
                               .in = in,
                               .out = out,
                               .residual = residual,
                               .weight = slot(model, n, k, 1.5f / sqrtf((float)k)),
                               .bias = biased ? slot(model, 1, n, 0.2f) : -1,
                               .n = n,
                               .k = k,
                               .activation = activation});
}

static inline void add_heads(struct model *model, const struct shape *shape)
{
    const int32_t parts[2][2] = {{0, shape->heads}, {shape->heads * shape->size, shape->kv_heads}};

    for (int p = 0; p < 2 && shape->head_norms; p++) {
        add(model, (struct evq_op){.kind = EVQ_OP_RMS_NORM,
                                   .in = QKV,
                                   .out = QKV,
                                   .weight = slot(model, 1, shape->size, 2.0f),
                                   .bias = -1,
                                   .n = shape->size,
                                   .column = parts[p][0],
                                   .heads = parts[p][1],
                                   .epsilon = p == 0 ? 1e-6f : 1e-3f});
    }
    if (shape->gated) {
        add(model, (struct evq_op){.kind = EVQ_OP_ROPE,
                                   .in = QKV,
                                   .out = QKV,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = shape->size,
                                   .heads = shape->heads + shape->kv_heads,
                                   .scale = 1.0f,
                                   .frequencies = model->frequencies});
    }
    add(model, (struct evq_op){.kind = EVQ_OP_ATTENTION,
                               .in = QKV,
                               .out = ATTENDED,
                               .weight = -1,
                               .bias = -1,
                               .n = shape->size,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .window = shape->window,
                               .scale = 1.0f / sqrtf((float)shape->size)});
}

static inline void add_layer(struct model *model, const struct shape *shape)
{
    const int32_t width = model->columns[STREAM];
    const int32_t inner = model->columns[GATED];
    const int32_t attended = model->columns[ATTENDED];
    const bool biased = !shape->gated;

    add_norm(model, shape->gated, width);
    add_gemm(model, NORMED, QKV, model->columns[QKV], width, biased, 0, EVQ_ACT_NONE);
    add_heads(model, shape);
    add_gemm(model, ATTENDED, STREAM, width, attended, biased, STREAM, EVQ_ACT_NONE);
    add_norm(model, shape->gated, width);
    add_gemm(model, NORMED, WIDE, model->columns[WIDE], width, biased, 0,
             shape->gated ? EVQ_ACT_NONE : shape->activation);
    if (shape->gated) {
        add(model, (struct evq_op){.kind = EVQ_OP_GATE,
                                   .in = WIDE,
                                   .out = GATED,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = inner,
                                   .activation = shape->activation});
    }
    add_gemm(model, shape->gated ? GATED : WIDE, STREAM, width, inner, biased, STREAM,
             EVQ_ACT_NONE);
}

static inline void add_batch(struct model *model, const int32_t *lengths, int32_t vocabulary)
{
    struct evq_batch *batch = &model->batch;

    *batch = (struct evq_batch){.tokens = model->tokens,
                                .starts = model->starts,
                                .score_rows = model->score_rows,
                                .score_targets = model->score_targets};
    for (int32_t s = 0; lengths[s] != 0; s++) {
        batch->rows += lengths[s];
        model->starts[++batch->sequences] = batch->rows;
    }
    for (int32_t r = 0; r < batch->rows; r++) {
        model->tokens[r] = (int32_t)(fixture_random(&random_state) % (uint64_t)vocabulary);
        for (int32_t again = 0; again < 1 + (r % 7 == 0); again++) {
            model->score_rows[batch->scores] = r;
            model->score_targets[batch->scores++] =
                (int32_t)(fixture_random(&random_state) % (uint64_t)vocabulary);
        }
    }
}

static inline struct model *model_new(const struct shape *shape, const int32_t *lengths)
{
    struct model *model = calloc(1, sizeof(*model));
    const int32_t width = shape->heads * shape->size / 2 * 2 + 8; // Not what the heads have.
    const int32_t inner = 2 * width + 3;

    assert_non_null(model);
    memcpy(model->columns,
           (int32_t[]){1, width, width, (shape->heads + 2 * shape->kv_heads) * shape->size,
                       shape->heads * shape->size, shape->gated ? 2 * inner : inner, inner},
           sizeof(model->columns));
    for (int32_t i = 0; i < shape->size / 2; i++) {
        model->frequencies[i] = (float)pow(10000.0, -2.0 * i / shape->size);
    }
    add_batch(model, lengths, shape->vocabulary);
    model->plan = (struct evq_plan){.ops = model->ops,
                                    .slots = model->slots,
                                    .buffer_count = BUFFERS,
                                    .buffer_columns = model->columns,
                                    .rows_max = model->batch.rows + 3,
                                    .length_max = model->batch.rows};
    const int32_t table = slot(model, shape->vocabulary, width, 0.4f);
    add(model, (struct evq_op){
                   .kind = EVQ_OP_EMBEDDING,
                   .out = STREAM,
                   .weight = table,
                   .bias = shape->gated ? -1 : slot(model, model->plan.length_max, width, 0.2f),
                   .n = width,
                   .scale = 2.0f});
    for (int layer = 0; layer < LAYERS; layer++) {
        add_layer(model, shape);
    }
    add_norm(model, shape->gated, width);
    add(model, (struct evq_op){.kind = EVQ_OP_SCORE,
                               .in = NORMED,
                               .out = -1,
                               .weight = table,
                               .bias = shape->gated ? -1 : slot(model, 1, shape->vocabulary, 0.2f),
                               .n = shape->vocabulary,
                               .k = width});
    return model;
}

static inline void model_free(struct model *model)
{
    for (size_t i = 0; i < model->plan.slot_count; i++) {
        free(model->weights[i]);
    }
    free(model);
}

static inline void *open_backend(const struct evq_backend_ops *ops)
{
    const struct evq_backend_config config = {.threads = 1};
    void *state = NULL;

    must(ops->open(&config, &state, &err), &err);
    return state;
}

static inline void put_all(const struct evq_backend_ops *ops, void *state,
                           const struct model *model)
{
    for (size_t i = 0; i < model->plan.slot_count; i++) {
        const struct evq_weight_blob blob = {
            .values = model->weights[i], .type = EVQ_WEIGHT_F32, .rows = model->slots[i].rows};
        must(ops->put(state, (int32_t)i, &blob, &err), &err);
    }
    must(ops->settle(state, &err), &err);
}

static inline void run(const struct evq_backend_ops *ops, void *state, struct model *model,
                       enum evq_compute compute, struct evq_row_result *results)
{
    memset(results, 0xff, SCORES_MAX * sizeof(*results)); // What is not filled is NaN.
    model->plan.compute = compute;
    must(ops->prepare(state, &model->plan, &err), &err);
    put_all(ops, state, model);
    must(ops->exec(state, &model->batch, results, &err), &err);
}

/* Mean and mean distance of losses; every one must be a number. */
static inline void compare(const struct model *model, const struct evq_row_result *got,
                           const struct evq_row_result *wanted, double *ret_bias, double *ret_off)
{
    *ret_bias = *ret_off = 0.0;
    for (int32_t s = 0; s < model->batch.scores; s++) {
        const double apart = got[s].loss - wanted[s].loss;
        if (!(fabs(apart) < 1e3)) {
            fail_msg("score %d: got %g, expected %g", (int)s, got[s].loss, wanted[s].loss);
        }
        *ret_bias += apart / model->batch.scores;
        *ret_off += fabs(apart) / model->batch.scores;
    }
}

#endif
