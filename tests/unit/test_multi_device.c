/* Several devices beside each other give what one gives. The devices here are CPU backends. */
#include "native_fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "tests/fixture/random.h"
#include "worker/evaluators/native/native_run.h"
#include "worker/loader/multi_device.h"

enum { WIDTH = 24, HEAD = 12, HIDDEN = 40, VOCABULARY = 67, ROWS = 301, LONGEST = 64, LANES = 5 };

static const struct evq_weight_slot slots[] = {
    {"embedding", VOCABULARY, WIDTH}, {"positions", LONGEST, WIDTH}, {"norm", 1, WIDTH},
    {"qkv", 4 * HEAD, WIDTH},         {"output", WIDTH, 2 * HEAD},   {"last", VOCABULARY, WIDTH},
};
enum { SLOTS = sizeof(slots) / sizeof(slots[0]) };

static const int32_t columns[] = {WIDTH, WIDTH, WIDTH, 4 * HEAD, 2 * HEAD, VOCABULARY};

#define EMBEDDING                                                                                  \
    {                                                                                              \
        .kind = EVQ_OP_EMBEDDING, .out = 1, .weight = 0, .bias = 1, .n = WIDTH, .scale = 1.5f      \
    }
#define NORM                                                                                       \
    {                                                                                              \
        .kind = EVQ_OP_RMS_NORM, .in = 1, .out = 2, .weight = 2, .bias = -1, .n = WIDTH,           \
        .heads = 1, .epsilon = 1e-6f                                                               \
    }
#define BLOCK                                                                                      \
    NORM,                                                                                          \
        {.kind = EVQ_OP_GEMM,                                                                      \
         .in = 2,                                                                                  \
         .out = 3,                                                                                 \
         .weight = 3,                                                                              \
         .bias = -1,                                                                               \
         .n = 4 * HEAD,                                                                            \
         .k = WIDTH},                                                                              \
        {.kind = EVQ_OP_ATTENTION,                                                                 \
         .in = 3,                                                                                  \
         .out = 4,                                                                                 \
         .weight = -1,                                                                             \
         .bias = -1,                                                                               \
         .n = HEAD,                                                                                \
         .heads = 2,                                                                               \
         .kv_heads = 1,                                                                            \
         .scale = 0.3f},                                                                           \
    {                                                                                              \
        .kind = EVQ_OP_GEMM, .in = 4, .out = 1, .residual = 1, .weight = 4, .bias = -1,            \
        .n = WIDTH, .k = 2 * HEAD                                                                  \
    }

static const struct evq_op score_ops[] = {
    EMBEDDING,
    BLOCK,
    NORM,
    {.kind = EVQ_OP_SCORE,
     .in = 2,
     .out = -1,
     .weight = 0,
     .bias = -1,
     .n = VOCABULARY,
     .k = WIDTH},
};
static const struct evq_op error_ops[] = {
    EMBEDDING,
    BLOCK,
    {.kind = EVQ_OP_SQUARED_ERROR, .in = 1, .out = -1, .weight = -1, .bias = -1, .n = WIDTH},
};
static const struct evq_op class_ops[] = {
    {.kind = EVQ_OP_GEMM, .in = 0, .out = 5, .weight = 5, .bias = -1, .n = VOCABULARY, .k = WIDTH},
    {.kind = EVQ_OP_CROSS_ENTROPY,
     .in = 5,
     .out = -1,
     .weight = -1,
     .bias = -1,
     .n = VOCABULARY,
     .top_k = 3},
};

#define PLAN(ops_, length_)                                                                        \
    {                                                                                              \
        .ops = ops_, .op_count = sizeof(ops_) / sizeof(ops_[0]), .slots = slots,                   \
        .slot_count = SLOTS, .buffer_count = 6, .buffer_columns = columns, .rows_max = ROWS,       \
        .length_max = length_                                                                      \
    }
static const struct evq_plan plans[] = {PLAN(score_ops, LONGEST), PLAN(error_ops, LONGEST),
                                        PLAN(class_ops, 0)};

static uint64_t seed = 20261122;

static uint32_t next_random(uint32_t below)
{
    return (uint32_t)(fixture_random(&seed) % below);
}

struct batch {
    struct evq_batch batch;
    float inputs[ROWS * WIDTH], targets[ROWS * WIDTH];
    int32_t labels[ROWS], tokens[ROWS], starts[ROWS + 1], score_rows[2 * ROWS],
        score_targets[2 * ROWS];
    int32_t results; // How many there are.
};

/* rows in sequences of at most `longest`; some rows are scored twice, some not at all. */
static void batch_make(struct batch *made, const struct evq_plan *plan, int32_t rows,
                       int32_t longest)
{
    struct evq_batch *batch = &made->batch;

    *batch = (struct evq_batch){
        .rows = rows, .inputs = made->inputs, .labels = made->labels, .targets = made->targets};
    for (int32_t i = 0; i < rows * WIDTH; i++) {
        made->inputs[i] = (float)next_random(2000) / 1000.0f - 1.0f;
        made->targets[i] = (float)next_random(2000) / 1000.0f - 1.0f;
    }
    for (int32_t i = 0; i < rows; i++) {
        made->labels[i] = (int32_t)next_random(VOCABULARY);
        made->tokens[i] = (int32_t)next_random(VOCABULARY);
        for (uint32_t times = next_random(3); times > 0; times--) {
            made->score_rows[batch->scores] = i;
            made->score_targets[batch->scores++] = (int32_t)next_random(VOCABULARY);
        }
    }
    made->results = plan == &plans[0] ? batch->scores : rows;
    if (plan->length_max == 0) {
        batch->scores = 0;
        return;
    }
    batch->inputs = NULL;
    batch->tokens = made->tokens;
    batch->starts = made->starts;
    batch->score_rows = made->score_rows;
    batch->score_targets = made->score_targets;
    for (int32_t at = 0; at < rows;) {
        const int32_t length = 1 + (int32_t)next_random((uint32_t)longest);
        made->starts[batch->sequences++] = at;
        at = rows - at < length ? rows : at + length;
        made->starts[batch->sequences] = at;
    }
}

static void weights_put(const struct evq_backend_ops *ops, void *state)
{
    static float values[VOCABULARY * WIDTH];
    const uint64_t before = seed;
    struct evq_error err = {0};

    seed = 20261121; // The same for all.
    for (int32_t i = 0; i < SLOTS; i++) {
        for (int32_t v = 0; v < slots[i].rows * slots[i].columns; v++) {
            values[v] = (float)next_random(2000) / 2000.0f - 0.5f;
        }
        const struct evq_weight_blob blob = {
            .values = values, .type = EVQ_WEIGHT_F32, .rows = slots[i].rows};
        assert_int_equal(ops->put(state, i, &blob, &err), EVQ_OK);
        assert_int_equal(ops->settle(state, &err), EVQ_OK);
    }
    seed = before;
}

static void *several_of(const struct evq_backend_ops *ops, size_t lanes)
{
    const struct evq_backend_config configs[LANES] = {
        {.threads = 1}, {.threads = 1}, {.threads = 2}, {.threads = 1}, {.threads = 1}};
    struct evq_error err = {0};
    void *state = NULL;

    if (evq_multi_device_open(ops, configs, lanes, &state, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    return state;
}

static void assert_same(const struct evq_row_result *got, const struct evq_row_result *want,
                        int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        assert_near(got[i].loss, want[i].loss, 1e-6 * (1.0 + fabs(want[i].loss)));
        assert_near(got[i].abs_loss, want[i].abs_loss, 1e-6 * (1.0 + fabs(want[i].abs_loss)));
        assert_int_equal(got[i].predicted, want[i].predicted);
        assert_int_equal(got[i].correct, want[i].correct);
        assert_int_equal(got[i].in_top_k, want[i].in_top_k);
    }
}

static void several_devices_give_what_one_gives(void **state)
{
    static const int32_t shapes[][2] = {{ROWS, 9}, {ROWS, LONGEST}, {1, 1},
                                        {3, 1},    {64, LONGEST},   {65, 2},
                                        {0, 1},    {4, 64},         {299, 33}};
    static struct batch made;
    static struct evq_row_result one[2 * ROWS], many[2 * ROWS];
    const struct evq_backend_config config = {.threads = 2};
    struct evq_error err = {0};
    void *alone = NULL;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_int_equal(evq_backend_cpu.open(&config, &alone, &err), EVQ_OK);
    for (size_t p = 0; p < sizeof(plans) / sizeof(plans[0]); p++) {
        assert_int_equal(evq_backend_cpu.prepare(alone, &plans[p], &err), EVQ_OK);
        weights_put(&evq_backend_cpu, alone);
        for (size_t lanes = 1; lanes <= LANES; lanes++) {
            void *several = several_of(&evq_backend_cpu, lanes);
            assert_int_equal(evq_multi_device_backend.prepare(several, &plans[p], &err), EVQ_OK);
            weights_put(&evq_multi_device_backend, several);
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                batch_make(&made, &plans[p], shapes[i][0], shapes[i][1]);
                memset(many, 0xff, sizeof(many)); // What is not filled differs.
                assert_int_equal(evq_backend_cpu.exec(alone, &made.batch, one, &err), EVQ_OK);
                if (evq_multi_device_backend.exec(several, &made.batch, many, &err) != EVQ_OK) {
                    fail_msg("%s", err.message);
                }
                assert_same(many, one, made.results);
            }
            evq_multi_device_backend.close(several);
        }
    }
    evq_backend_cpu.close(alone);
}

static void several_tell_of_all_their_devices(void **state)
{
    static struct batch made;
    static struct evq_row_result results[2 * ROWS];
    struct evq_backend_caps caps;
    struct evq_backend_stats stats;
    struct evq_error err = {0};
    void *host = NULL;

    (void)state;
    void *several = several_of(&evq_backend_cpu, 3);
    evq_multi_device_backend.caps(several, &caps);
    assert_memory_equal(caps.device, "3 x ", 4);
    assert_int_equal(evq_multi_device_backend.alloc(several, 100, &host, &err), EVQ_OK);
    evq_multi_device_backend.free(several, host);
    assert_int_equal(evq_multi_device_backend.prepare(several, &plans[0], &err), EVQ_OK);
    weights_put(&evq_multi_device_backend, several);
    batch_make(&made, &plans[0], ROWS, 9);
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err), EVQ_OK);
    evq_multi_device_backend.stats(several, &stats);
    assert_int_equal(stats.exec_calls, 1);
    assert_int_equal(stats.rows, ROWS);
    assert_true(stats.flops > 0 && stats.memory_bytes > 0);
    evq_multi_device_backend.close(several);
    evq_multi_device_backend.close(NULL);
}

/* ---- what fails on one of them ---- */

static void *failing_state; // Of the device that fails.
static int32_t opened, failing_open;
static enum evq_status failing;
static int32_t closed;

static enum evq_status failing_open_fn(const struct evq_backend_config *config, void **ret_state,
                                       struct evq_error *err)
{
    if (++opened == failing_open) {
        return evq_error_set(err, EVQ_E_DEVICE, "no such device");
    }
    const enum evq_status status = evq_backend_cpu.open(config, ret_state, err);
    failing_state = opened == 2 ? *ret_state : failing_state;
    return status;
}

static void failing_close(void *state)
{
    closed += state != NULL;
    evq_backend_cpu.close(state);
}

static enum evq_status failing_prepare(void *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    return state == failing_state && failing == EVQ_E_NOMEM
               ? evq_error_set(err, EVQ_E_NOMEM, "%d rows", (int)plan->rows_max)
               : evq_backend_cpu.prepare(state, plan, err);
}

static enum evq_status failing_exec(void *state, const struct evq_batch *batch,
                                    struct evq_row_result *results, struct evq_error *err)
{
    return state == failing_state && failing == EVQ_E_DEVICE
               ? evq_error_set(err, EVQ_E_DEVICE, "an illegal address")
               : evq_backend_cpu.exec(state, batch, results, err);
}

static struct evq_backend_ops failing_ops(void)
{
    struct evq_backend_ops ops = evq_backend_cpu;

    ops.open = failing_open_fn;
    ops.close = failing_close;
    ops.prepare = failing_prepare;
    ops.exec = failing_exec;
    opened = closed = failing_open = 0;
    failing = EVQ_OK;
    return ops;
}

static void several_fail_with_the_one_that_fails(void **state)
{
    static struct batch made;
    static struct evq_row_result results[2 * ROWS];
    const struct evq_backend_ops ops = failing_ops();
    struct evq_error err = {0};

    (void)state;
    void *several = several_of(&ops, 3);
    batch_make(&made, &plans[0], ROWS, 9);
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err), EVQ_E_BUG);
    failing = EVQ_E_NOMEM;
    assert_int_equal(evq_multi_device_backend.prepare(several, &plans[0], &err), EVQ_E_NOMEM);
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err), EVQ_E_BUG);
    failing = EVQ_E_DEVICE;
    assert_int_equal(evq_multi_device_backend.prepare(several, &plans[0], &err), EVQ_OK);
    weights_put(&evq_multi_device_backend, several);
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err),
                     EVQ_E_DEVICE);
    assert_string_equal(err.message, "device 1 of 3: an illegal address");
    failing = EVQ_OK;
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err), EVQ_OK);
    made.tokens[ROWS - 1] = VOCABULARY; // Of the last device's part.
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err),
                     EVQ_E_INVALID);
    made.tokens[ROWS - 1] = 0;
    made.score_rows[0] = ROWS - 1; // Not ascending.
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err), EVQ_E_BUG);
    made.batch.rows++;
    assert_int_equal(evq_multi_device_backend.exec(several, &made.batch, results, &err), EVQ_E_BUG);
    evq_multi_device_backend.close(several);
    assert_int_equal(closed, 3);
}

/* ---- what a long batch tells ---- */

static sem_t heard;

static void hear(void *listener)
{
    assert_true(pthread_equal(*(pthread_t *)listener, pthread_self()));
    assert_int_equal(sem_post(&heard), 0);
}

/* The first device says nothing and is done; the second is not until it was heard. */
static enum evq_status telling_exec(void *state, const struct evq_batch *batch,
                                    struct evq_row_result *results, struct evq_error *err)
{
    struct evq_batch silent = *batch;
    struct timespec end;

    silent.tell = NULL;
    if (state == failing_state) {
        batch->tell(batch->listener);
        (void)clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += 20;
        if (sem_timedwait(&heard, &end) != 0) {
            return evq_error_set(err, EVQ_E_TIMEOUT, "nobody heard");
        }
    }
    return evq_backend_cpu.exec(state, &silent, results, err);
}

static void several_tell_what_any_of_them_does(void **state)
{
    static struct batch made;
    static struct evq_row_result results[2 * ROWS];
    struct evq_backend_ops ops = failing_ops();
    pthread_t self = pthread_self();
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(sem_init(&heard, 0, 0), 0);
    ops.exec = telling_exec;
    void *several = several_of(&ops, 2);
    assert_int_equal(evq_multi_device_backend.prepare(several, &plans[0], &err), EVQ_OK);
    weights_put(&evq_multi_device_backend, several);
    batch_make(&made, &plans[0], ROWS, 9);
    made.batch.tell = hear;
    made.batch.listener = &self;
    for (int times = 0; times < 3; times++) {
        if (evq_multi_device_backend.exec(several, &made.batch, results, &err) != EVQ_OK) {
            fail_msg("%s", err.message);
        }
    }
    evq_multi_device_backend.close(several);
    (void)sem_destroy(&heard);
}

static void several_open_all_or_none(void **state)
{
    const struct evq_backend_ops ops = failing_ops();
    const struct evq_backend_config configs[EVQ_MULTI_DEVICE_MAX + 1] = {{0}};
    struct evq_error err = {0};
    void *several = NULL;

    (void)state;
    failing_open = 3;
    assert_int_equal(evq_multi_device_open(&ops, configs, 4, &several, &err), EVQ_E_DEVICE);
    assert_int_equal(closed, 2);
    assert_null(several);
    assert_int_equal(evq_multi_device_open(&ops, configs, 0, &several, &err), EVQ_E_BUG);
    assert_int_equal(evq_multi_device_open(&ops, configs, EVQ_MULTI_DEVICE_MAX + 1, &several, &err),
                     EVQ_E_BUG);
}

/* ---- through the native evaluator ---- */

/* As evq_native_open() makes it of a slot with so many devices, but for what these are. */
static void native_over(struct fixture *fx, size_t lanes)
{
    struct evq_native *native = fx->native;
    struct evq_error err = {0};

    evq_loader_free(native->loader);
    native->loader = NULL;
    if (native->inputs != NULL) {
        native->backend.ops->free(native->state, native->inputs);
        native->inputs = NULL;
        native->input_bytes = 0;
    }
    native->backend.ops->close(native->state);
    native->state = several_of(&evq_backend_cpu, lanes);
    native->backend.ops = &evq_multi_device_backend;
    native->backend.devices = (int32_t)lanes;
    assert_int_equal(evq_loader_new(native->backend.ops, native->state, 1, &native->loader, &err),
                     EVQ_OK);
}

static void several_evaluate_a_job_as_one_does(void **state)
{
    struct fixture *fx = *state;
    const struct evq_task_config task = mnist_task(NULL, 0);
    struct evq_error err = {0};

    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_OK);
    const double accuracy = metric(fx, "accuracy");
    const double loss = metric(fx, "cross_entropy");
    for (size_t lanes = 2; lanes <= 3; lanes++) {
        native_over(fx, lanes);
        for (int again = 0; again < 2; again++) { // The second takes what the first left warm.
            if (eval_mnist(fx, &task, -1, 0, &err) != EVQ_OK) {
                fail_msg("%s", err.message);
            }
            assert_near(metric(fx, "accuracy"), accuracy, 0.0);
            assert_near(metric(fx, "cross_entropy"), loss, 1e-6 * loss);
            assert_int_equal(fx->seen.result->n, MNIST_SAMPLES);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_devices_give_what_one_gives),
        cmocka_unit_test(several_tell_of_all_their_devices),
        cmocka_unit_test(several_fail_with_the_one_that_fails),
        cmocka_unit_test(several_tell_what_any_of_them_does),
        cmocka_unit_test(several_open_all_or_none),
        cmocka_unit_test_setup_teardown(several_evaluate_a_job_as_one_does, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
