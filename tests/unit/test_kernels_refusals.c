/* What the CPU backend refuses: plans, weights, batches and memory; each fault alone makes a good
 * plan bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"

enum { VOCABULARY = 40, WIDTH = 16, HEADS = 2, KV_HEADS = 1, SIZE = 8, JOINED = 32, ROWS = 12 };
enum { TABLE, PLACES, NORM, JOIN, JOIN_BIAS, OUT, GATED, DOWN, HEAD_NORM, SLOTS };
enum { EMBED, LAYER, JOIN_GEMM, QK_NORM, ROPE, ATTEND, OUT_GEMM, UP, GATE, DOWN_GEMM, SCORE, OPS };

static const struct evq_backend_ops *const cpu = &evq_backend_cpu;

static const float frequencies[SIZE / 2] = {1.0f, 0.1f, 0.01f, 0.001f};

static const struct evq_weight_slot good_slots[SLOTS] = {
    [TABLE] = {"table", VOCABULARY, WIDTH},
    [PLACES] = {"places", ROWS, WIDTH},
    [NORM] = {"norm", 1, WIDTH},
    [JOIN] = {"join", JOINED, WIDTH},
    [JOIN_BIAS] = {"join bias", 1, JOINED},
    [OUT] = {"out", WIDTH, WIDTH},
    [GATED] = {"gated", 2 * WIDTH, WIDTH},
    [DOWN] = {"down", WIDTH, WIDTH},
    [HEAD_NORM] = {"head norm", 1, SIZE},
};

static const struct evq_op good_ops[OPS] = {
    [EMBED] = {.kind = EVQ_OP_EMBEDDING,
               .out = 1,
               .weight = TABLE,
               .bias = PLACES,
               .n = WIDTH,
               .scale = 1.0f},
    [LAYER] = {.kind = EVQ_OP_LAYER_NORM,
               .in = 1,
               .out = 2,
               .weight = NORM,
               .bias = -1,
               .n = WIDTH,
               .heads = 1,
               .epsilon = 1e-5f},
    [JOIN_GEMM] = {.kind = EVQ_OP_GEMM,
                   .in = 2,
                   .out = 3,
                   .weight = JOIN,
                   .bias = JOIN_BIAS,
                   .n = JOINED,
                   .k = WIDTH},
    [QK_NORM] = {.kind = EVQ_OP_RMS_NORM,
                 .in = 3,
                 .out = 3,
                 .weight = HEAD_NORM,
                 .bias = -1,
                 .n = SIZE,
                 .heads = HEADS,
                 .epsilon = 1e-6f},
    [ROPE] = {.kind = EVQ_OP_ROPE,
              .in = 3,
              .out = 3,
              .weight = -1,
              .bias = -1,
              .n = SIZE,
              .heads = HEADS + KV_HEADS,
              .scale = 1.0f,
              .frequencies = frequencies},
    [ATTEND] = {.kind = EVQ_OP_ATTENTION,
                .in = 3,
                .out = 2,
                .weight = -1,
                .bias = -1,
                .n = SIZE,
                .heads = HEADS,
                .kv_heads = KV_HEADS,
                .scale = 0.35f},
    [OUT_GEMM] = {.kind = EVQ_OP_GEMM,
                  .in = 2,
                  .out = 1,
                  .residual = 1,
                  .weight = OUT,
                  .bias = -1,
                  .n = WIDTH,
                  .k = WIDTH},
    [UP] = {.kind = EVQ_OP_GEMM,
            .in = 1,
            .out = 3,
            .weight = GATED,
            .bias = -1,
            .n = 2 * WIDTH,
            .k = WIDTH},
    [GATE] = {.kind = EVQ_OP_GATE,
              .in = 3,
              .out = 2,
              .weight = -1,
              .bias = -1,
              .n = WIDTH,
              .activation = EVQ_ACT_SILU},
    [DOWN_GEMM] = {.kind = EVQ_OP_GEMM,
                   .in = 2,
                   .out = 1,
                   .residual = 1,
                   .weight = DOWN,
                   .bias = -1,
                   .n = WIDTH,
                   .k = WIDTH},
    [SCORE] = {.kind = EVQ_OP_SCORE,
               .in = 1,
               .out = -1,
               .weight = TABLE,
               .bias = -1,
               .n = VOCABULARY,
               .k = WIDTH},
};

/* A copy of the good plan that a test spoils. */
struct spoiled {
    struct evq_weight_slot slots[SLOTS];
    struct evq_op ops[OPS];
    int32_t columns[4];
    struct evq_plan plan;
};

static void good(struct spoiled *s)
{
    memcpy(s->slots, good_slots, sizeof(good_slots));
    memcpy(s->ops, good_ops, sizeof(good_ops));
    memcpy(s->columns, (int32_t[]){1, WIDTH, WIDTH, JOINED}, sizeof(s->columns));
    s->plan = (struct evq_plan){.ops = s->ops,
                                .op_count = OPS,
                                .slots = s->slots,
                                .slot_count = SLOTS,
                                .buffer_count = 4,
                                .buffer_columns = s->columns,
                                .rows_max = ROWS,
                                .length_max = ROWS};
}

static void *open_cpu(size_t memory_bytes_max)
{
    void *state = NULL;
    struct evq_error err = {0};
    const struct evq_backend_config config = {.threads = 2, .memory_bytes_max = memory_bytes_max};

    assert_int_equal(cpu->open(&config, &state, &err), EVQ_OK);
    return state;
}

/* One number of one operation: what it becomes, and a part of the sentence that refuses it. */
struct fault {
    int op;
    size_t at; // Of an int32_t within struct evq_op.
    int32_t value;
    const char *sentence;
};

#define FIELD(name) offsetof(struct evq_op, name)

static const struct fault faults[] = {
    {EMBED, FIELD(weight), -1, "operation 0 has a table of another shape"},
    {EMBED, FIELD(weight), SLOTS, "operation 0 has a table of another shape"},
    {EMBED, FIELD(weight), HEAD_NORM, "operation 0 has a table of another shape"},
    {EMBED, FIELD(bias), NORM, "operation 0 has a table of another shape"}, // One position.
    {EMBED, FIELD(bias), -2, "operation 0 has a table of another shape"},
    {EMBED, FIELD(types), SLOTS, "operation 0 has a table of another shape"},
    {EMBED, FIELD(types), JOIN_BIAS, "operation 0 has a table of another shape"},
    {EMBED, FIELD(column), 1, "operation 0 has a table of another shape"}, // Too few positions.
    {EMBED, FIELD(column), -1, "operation 0 has a table of another shape"},
    {EMBED, FIELD(out), 0, "operation 0 has an output that does not fit its buffer"},
    {EMBED, FIELD(out), 4, "operation 0 has an output that does not fit its buffer"},
    {EMBED, FIELD(out), -1, "operation 0 has an output that does not fit its buffer"},
    {EMBED, FIELD(n), 0, "operation 0 has an output that does not fit its buffer"},
    {EMBED, FIELD(n), WIDTH + 1, "operation 0 has an output that does not fit its buffer"},
    {EMBED, FIELD(activation), EVQ_ACT_COUNT, "operation 0 has an unknown activation"},
    {EMBED, FIELD(activation), -1, "operation 0 has an unknown activation"},
    {EMBED, FIELD(kind), EVQ_OP_COUNT, "operation 0 has an unknown kind"},
    {EMBED, FIELD(kind), -1, "operation 0 has an unknown kind"},
    {LAYER, FIELD(in), -1, "operation 1 has an input that does not fit its buffer"},
    {LAYER, FIELD(in), 4, "operation 1 has an input that does not fit its buffer"},
    {LAYER, FIELD(in), 0, "operation 1 has an input that does not fit its buffer"},
    {LAYER, FIELD(weight), -1, "operation 1 has a weight or bias of another shape"},
    {LAYER, FIELD(weight), HEAD_NORM, "operation 1 has a weight or bias of another shape"},
    {LAYER, FIELD(bias), HEAD_NORM, "operation 1 has a weight or bias of another shape"},
    {JOIN_GEMM, FIELD(in), 3, "operation 2 has an output that is its input"},
    {JOIN_GEMM, FIELD(weight), OUT, "operation 2 has a weight or bias of another shape"},
    {JOIN_GEMM, FIELD(bias), NORM, "operation 2 has a weight or bias of another shape"},
    {JOIN_GEMM, FIELD(n), JOINED + 1, "operation 2 has an output that does not fit"},
    {JOIN_GEMM, FIELD(k), WIDTH - 1, "operation 2 has a weight or bias of another shape"},
    {JOIN_GEMM, FIELD(k), WIDTH + 1, "operation 2 has an input that does not fit its buffer"},
    {JOIN_GEMM, FIELD(residual), 1, "operation 2 has a residual that does not fit its buffer"},
    {JOIN_GEMM, FIELD(residual), 4, "operation 2 has a residual that does not fit its buffer"},
    {OUT_GEMM, FIELD(residual), 2, "operation 6 has a residual that does not fit its buffer"},
    {QK_NORM, FIELD(weight), JOIN_BIAS, "operation 3 has a weight of another shape"},
    {QK_NORM, FIELD(weight), -1, "operation 3 has a weight of another shape"},
    {QK_NORM, FIELD(heads), 0, "operation 3 has heads that do not fit its buffer"},
    {QK_NORM, FIELD(heads), 5, "operation 3 has heads that do not fit its buffer"},
    {QK_NORM, FIELD(heads), INT32_MAX, "operation 3 has heads that do not fit its buffer"},
    {QK_NORM, FIELD(column), -1, "operation 3 has heads that do not fit its buffer"},
    {QK_NORM, FIELD(column), 17, "operation 3 has heads that do not fit its buffer"},
    {ROPE, FIELD(out), 1, "operation 4 has pairs that do not turn in place"},
    {ROPE, FIELD(n), SIZE - 1, "operation 4 has pairs that do not turn in place"},
    {ROPE, FIELD(heads), 5, "operation 4 has heads that do not fit its buffer"},
    {ROPE, FIELD(column), INT32_MAX, "operation 4 has heads that do not fit its buffer"},
    {ROPE, FIELD(k), SIZE + 2, "operation 4 has pairs that do not turn in place"},
    {ROPE, FIELD(k), 3, "operation 4 has pairs that do not turn in place"},
    {ROPE, FIELD(step), SIZE - 1, "operation 4 has heads that do not fit its buffer"},
    {ROPE, FIELD(step), INT32_MAX, "operation 4 has heads that do not fit its buffer"},
    {ATTEND, FIELD(step), 2 * SIZE, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(step), 3 * SIZE, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(weight), NORM, "operation 5 has a weight of another shape"},
    {ATTEND, FIELD(cap), -1, "operation 5 has a weight of another shape, or a cap below 0"},
    {GATE, FIELD(kind), EVQ_OP_ADD, "operation 8 has a residual that does not fit its buffer"},
    {QK_NORM, FIELD(kind), EVQ_OP_MEAN, "operation 3 has an output that is its input"},
    {GATE, FIELD(kind), EVQ_OP_ROUTE, "operation 8 has more experts for a row than there are"},
    {GATE, FIELD(kind), EVQ_OP_EXPERTS, "operation 8 has an input that does not fit"},
    {SCORE, FIELD(cap), -1, "operation 10 has a bias before a scale, or a cap below 0"},
    {ATTEND, FIELD(in), 0, "operation 5 has an input that does not fit its buffer"},
    {ATTEND, FIELD(heads), 0, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(heads), 3, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(kv_heads), 0, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(kv_heads), -1, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(kv_heads), 2, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(column), 1, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(window), -1, "operation 5 has heads that do not fit its input"},
    {ATTEND, FIELD(out), 3, "operation 5 has heads that do not fit its output"},
    {GATE, FIELD(in), 1, "operation 8 has an input that does not fit its buffer"},
    {GATE, FIELD(out), 3, "operation 8 has an output that is its input"},
    {GATE, FIELD(n), INT32_MAX, "operation 8 has an input that does not fit its buffer"},
    {SCORE, FIELD(weight), -1, "operation 10 has a weight or bias of another shape"},
    {SCORE, FIELD(weight), PLACES, "operation 10 has a weight or bias of another shape"},
    {SCORE, FIELD(bias), NORM, "operation 10 has a weight or bias of another shape"},
    {SCORE, FIELD(out), 1, "operation 10 has a head with an output"},
    {SCORE, FIELD(top_k), -1, "operation 10 has a head with an output"},
    {SCORE, FIELD(kind), EVQ_OP_LAYER_NORM, "operation 10 has a head before the end"},
    {GATE, FIELD(kind), EVQ_OP_CROSS_ENTROPY, "operation 8 has a head before the end"},
};

static void plans_with_one_fault_are_refused(void **unused)
{
    void *state = open_cpu(0);
    struct spoiled s;
    struct evq_error err = {0};

    (void)unused;
    good(&s);
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_OK);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        good(&s);
        memcpy((char *)&s.ops[faults[i].op] + faults[i].at, &faults[i].value, sizeof(int32_t));
        if (cpu->prepare(state, &s.plan, &err) != EVQ_E_BUG ||
            strstr(err.message, faults[i].sentence) == NULL) {
            fail_msg("fault %zu: expected '%s', got '%s'", i, faults[i].sentence, err.message);
        }
    }
    cpu->close(state);
}

static void refuse(void *state, const struct spoiled *s, const char *sentence)
{
    struct evq_error err = {0};

    if (cpu->prepare(state, &s->plan, &err) != EVQ_E_BUG || strstr(err.message, sentence) == NULL) {
        fail_msg("expected '%s', got '%s'", sentence, err.message);
    }
}

static void plans_of_impossible_sizes_are_refused(void **unused)
{
    void *state = open_cpu(0);
    struct spoiled s;

    (void)unused;
    good(&s);
    s.plan.rows_max = 0;
    refuse(state, &s, "for 0 rows");
    good(&s);
    s.plan.length_max = ROWS + 1;
    refuse(state, &s, "for 12 rows");
    good(&s);
    s.plan.length_max = -1;
    refuse(state, &s, "for 12 rows");
    good(&s);
    s.plan.length_max = 0;
    refuse(state, &s, "operation 0 has tokens to read in a plan of samples");
    good(&s);
    s.plan.op_count = 0;
    refuse(state, &s, "plan without operations");
    good(&s);
    s.plan.op_count = OPS - 1;
    refuse(state, &s, "operation 9 has a head before the end, or none there");
    good(&s);
    s.plan.compute = EVQ_COMPUTE_COUNT;
    refuse(state, &s, "plan of 11 operations");
    good(&s);
    s.plan.buffer_count = 0;
    refuse(state, &s, "plan of 11 operations");
    good(&s);
    s.columns[3] = 0;
    refuse(state, &s, "buffer 3 has 0 columns");
    good(&s);
    s.columns[3] = INT32_MAX;
    s.plan.rows_max = s.plan.length_max = INT32_MAX;
    refuse(state, &s, "buffer 3 has 2147483647 columns");
    good(&s);
    s.slots[JOIN].rows = 0;
    refuse(state, &s, "weight 'join' is 0 x 16");
    good(&s);
    s.slots[JOIN].rows = s.slots[JOIN].columns = INT32_MAX;
    refuse(state, &s, "weight 'join' is 2147483647 x 2147483647");
    good(&s);
    s.ops[QK_NORM].out = 2;
    s.ops[QK_NORM].column = 1;
    refuse(state, &s, "operation 3 has heads that do not fit its output");
    good(&s);
    s.ops[ROPE].frequencies = NULL;
    refuse(state, &s, "operation 4 has no frequencies");
    good(&s);
    s.slots[PLACES].rows = ROWS - 1;
    refuse(state, &s, "operation 0 has a table of another shape");
    good(&s);
    s.plan.rows_max = INT32_MAX;
    refuse(state, &s, "operation 5 has too many heads for its rows");
    cpu->close(state);
}

static void put_good(void *state, int32_t slot)
{
    float values[VOCABULARY * WIDTH];
    struct evq_error err = {0};

    for (int32_t i = 0; i < VOCABULARY * WIDTH; i++) {
        values[i] = (float)(i % 7) * 0.1f;
    }
    const struct evq_weight_blob blob = {
        .values = values, .type = EVQ_WEIGHT_F32, .rows = good_slots[slot].rows};
    assert_int_equal(cpu->put(state, slot, &blob, &err), EVQ_OK);
}

static void parts_of_weights_out_of_order_are_refused(void **unused)
{
    static const struct {
        int32_t first_row, rows;
    } bad[] = {{1, 1},         {0, 0},         {0, -1},        {-1, 1}, {0, VOCABULARY + 1},
               {INT32_MAX, 1}, {0, INT32_MAX}, {VOCABULARY, 1}};
    const float values[VOCABULARY * WIDTH] = {0};
    struct evq_weight_blob blob = {.values = values, .rows = 10};
    void *state = open_cpu(0);
    struct spoiled s;
    struct evq_error err = {0};

    (void)unused;
    good(&s);
    assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_E_BUG); // Not prepared.
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        blob.first_row = bad[i].first_row;
        blob.rows = bad[i].rows;
        assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_E_BUG);
        assert_non_null(strstr(err.message, "weight 'table'"));
    }
    blob.first_row = 0;
    blob.rows = 10;
    assert_int_equal(cpu->put(state, SLOTS, &blob, &err), EVQ_E_BUG);
    assert_int_equal(cpu->put(state, -1, &blob, &err), EVQ_E_BUG);
    blob.type = EVQ_WEIGHT_TYPE_COUNT;
    assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_E_BUG);
    blob.type = EVQ_WEIGHT_F32;
    blob.values = NULL;
    assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_E_BUG);
    blob.values = values;
    assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_OK);
    blob.first_row = 9; // Again a row that is there.
    assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_E_BUG);
    blob.first_row = 11; // Leaves one out.
    assert_int_equal(cpu->put(state, TABLE, &blob, &err), EVQ_E_BUG);
    for (int32_t slot = 1; slot < SLOTS; slot++) {
        put_good(state, slot);
    }
    const int32_t zeros[] = {0, 1};
    struct evq_row_result result;
    const struct evq_batch batch = {.rows = 1,
                                    .tokens = zeros,
                                    .starts = zeros,
                                    .sequences = 1,
                                    .score_rows = zeros,
                                    .score_targets = zeros,
                                    .scores = 1};
    assert_int_equal(cpu->exec(state, &batch, &result, &err), EVQ_E_BUG);
    assert_non_null(strstr(err.message, "weight 'table' was never put: 10 of 40 rows"));
    put_good(state, TABLE);
    assert_int_equal(cpu->exec(state, &batch, &result, &err), EVQ_OK);
    cpu->close(state);
}

static void batches_that_do_not_fit_are_refused(void **unused)
{
    const int32_t tokens[ROWS] = {0, 39, 1};
    const int32_t targets[] = {1, 2, 39};
    const int32_t bad_tokens[ROWS] = {0, VOCABULARY};
    const int32_t bad_targets[] = {1, -1, 3};
    struct evq_row_result results[3];
    struct evq_error err = {0};
    void *state = open_cpu(0);
    struct spoiled s;

    (void)unused;
    good(&s);
    s.plan.length_max = 5;
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_OK);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        put_good(state, slot);
    }
    const struct {
        struct evq_batch batch;
        int32_t starts[4], rows[3];
        enum evq_status status;
    } cases[] = {
        {{.rows = 8, .tokens = tokens, .sequences = 2, .score_targets = targets, .scores = 3},
         {0, 3, 8},
         {0, 0, 7},
         EVQ_OK},
        {{.rows = 0}, {0}, {0}, EVQ_OK},
        {{.rows = 8, .tokens = tokens, .sequences = 2, .scores = 0}, {0, 3, 8}, {0}, EVQ_OK},
        {{.rows = -1, .tokens = tokens, .sequences = 1}, {0, 1}, {0}, EVQ_E_BUG},
        {{.rows = ROWS + 1, .tokens = tokens, .sequences = 1}, {0, 1}, {0}, EVQ_E_BUG},
        {{.rows = 8, .sequences = 2}, {0, 3, 8}, {0}, EVQ_E_BUG}, // No tokens.
        {{.rows = 8, .tokens = tokens, .sequences = 2}, {0, 3, 7}, {0}, EVQ_E_BUG},
        {{.rows = 8, .tokens = tokens, .sequences = 2}, {1, 3, 8}, {0}, EVQ_E_BUG},
        {{.rows = 8, .tokens = tokens, .sequences = 2}, {0, 2, 8}, {0}, EVQ_E_BUG}, // 6 > 5.
        {{.rows = 4, .tokens = tokens, .sequences = 3}, {0, 2, 2, 4}, {0}, EVQ_E_BUG},
        {{.rows = 4, .tokens = tokens, .sequences = 3}, {0, 3, 2, 4}, {0}, EVQ_E_BUG},
        {{.rows = 4, .tokens = tokens, .sequences = 0}, {0, 4}, {0}, EVQ_E_BUG},
        {{.rows = 4, .tokens = bad_tokens, .sequences = 1}, {0, 4}, {0}, EVQ_E_INVALID},
        {{.rows = 4, .tokens = tokens, .sequences = 1, .score_targets = bad_targets, .scores = 3},
         {0, 4},
         {0, 1, 2},
         EVQ_E_INVALID},
        {{.rows = 4, .tokens = tokens, .sequences = 1, .score_targets = targets, .scores = 3},
         {0, 4},
         {0, 2, 1},
         EVQ_E_BUG},
        {{.rows = 4, .tokens = tokens, .sequences = 1, .score_targets = targets, .scores = 3},
         {0, 4},
         {0, 1, 4},
         EVQ_E_BUG},
        {{.rows = 4, .tokens = tokens, .sequences = 1, .score_targets = targets, .scores = 3},
         {0, 4},
         {-1, 1, 2},
         EVQ_E_BUG},
        {{.rows = 4, .tokens = tokens, .sequences = 1, .score_targets = targets, .scores = -1},
         {0, 4},
         {0},
         EVQ_E_BUG},
        {{.rows = 4, .tokens = tokens, .sequences = 1, .scores = 1}, {0, 4}, {0}, EVQ_E_BUG},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_batch batch = cases[i].batch;
        batch.starts = cases[i].starts;
        batch.score_rows = cases[i].rows;
        if (cpu->exec(state, &batch, results, &err) != cases[i].status) {
            fail_msg("batch %zu: %s", i, err.message);
        }
    }
    cpu->close(state);
}

/* Half the rows fit where all do not: what is then held stays within the bound. */
static void plans_beyond_the_memory_are_refused(void **unused)
{
    struct spoiled s;
    struct evq_error err = {0};
    struct evq_backend_stats stats;
    void *state = open_cpu(0);

    (void)unused;
    good(&s);
    s.plan.rows_max = 100000;
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_OK);
    cpu->stats(state, &stats);
    cpu->close(state);
    state = open_cpu(stats.memory_bytes - 1);
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_E_NOMEM);
    assert_non_null(strstr(err.message, "do not fit in memory"));
    s.plan.rows_max = 50000;
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_OK);
    struct evq_backend_stats half;
    cpu->stats(state, &half);
    assert_true(half.memory_bytes < stats.memory_bytes);
    cpu->close(state);
    state = open_cpu(stats.memory_bytes);
    s.plan.rows_max = 100000;
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_OK);
    cpu->close(state);
    state = open_cpu(100); // Not even the weights.
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_E_NOMEM);
    cpu->close(state);
}

static void bf16_is_refused_where_the_processor_has_none(void **unused)
{
    struct spoiled s;
    struct evq_error err = {0};
    struct evq_backend_caps caps;

    (void)unused;
    good(&s);
    s.plan.compute = EVQ_COMPUTE_BF16;
    assert_int_equal(setenv("EVALQ_ISA", "avx2", 1), 0);
    void *state = open_cpu(0);
    (void)unsetenv("EVALQ_ISA");
    cpu->caps(state, &caps);
    assert_false(caps.bf16);
    assert_int_equal(cpu->prepare(state, &s.plan, &err), EVQ_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "does not multiply bf16: compute in fp32"));
    cpu->close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_with_one_fault_are_refused),
        cmocka_unit_test(plans_of_impossible_sizes_are_refused),
        cmocka_unit_test(parts_of_weights_out_of_order_are_refused),
        cmocka_unit_test(batches_that_do_not_fit_are_refused),
        cmocka_unit_test(plans_beyond_the_memory_are_refused),
        cmocka_unit_test(bf16_is_refused_where_the_processor_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
