/* Weights of the next job, loaded by a thread while the present one computes. The device here is
 * the CPU backend, with a second state of it as the second set of weights. */
#include "gpt_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "worker/evaluators/native/native_prefetch.h"

struct twin {
    void *cpu;
};

static pthread_t evaluator;
static atomic_int puts_here;  // By the evaluator's thread.
static atomic_int puts_there; // By any other.
static atomic_int opens;
static bool no_room;         // reserve() has no memory.
static int prepares_without; // So many prepare() have none while two states are open.
static atomic_bool gated;    // put() of other threads waits until it gets ...
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static enum evq_status twin_open(const struct evq_backend_config *config, void **ret_state,
                                 struct evq_error *err)
{
    struct twin *twin = calloc(1, sizeof(*twin));

    assert_non_null(twin);
    atomic_fetch_add(&opens, 1);
    *ret_state = twin;
    return evq_backend_cpu.open(config, &twin->cpu, err);
}

static void twin_caps(void *state, struct evq_backend_caps *ret_caps)
{
    evq_backend_cpu.caps(((struct twin *)state)->cpu, ret_caps);
}

static enum evq_status twin_alloc(void *state, size_t bytes, void **ret_host, struct evq_error *err)
{
    return evq_backend_cpu.alloc(((struct twin *)state)->cpu, bytes, ret_host, err);
}

static void twin_free(void *state, void *host)
{
    evq_backend_cpu.free(((struct twin *)state)->cpu, host);
}

static enum evq_status twin_prepare(void *state, const struct evq_plan *plan, struct evq_error *err)
{
    if (atomic_load(&opens) > 1 && prepares_without > 0) {
        prepares_without--;
        return evq_error_set(err, EVQ_E_NOMEM, "activations: out of memory");
    }
    return evq_backend_cpu.prepare(((struct twin *)state)->cpu, plan, err);
}

static enum evq_status twin_reserve(void *state, const struct evq_plan *plan, struct evq_error *err)
{
    if (no_room) {
        return evq_error_set(err, EVQ_E_NOMEM, "a second set: out of memory");
    }
    return evq_backend_cpu.prepare(((struct twin *)state)->cpu, plan, err);
}

static enum evq_status twin_exchange(void *state, void *other, struct evq_error *err)
{
    struct twin *a = state;
    struct twin *b = other;
    void *const cpu = a->cpu;

    (void)err;
    a->cpu = b->cpu;
    b->cpu = cpu;
    return EVQ_OK;
}

static enum evq_status twin_put(void *state, int32_t slot, const struct evq_weight_blob *blob,
                                struct evq_error *err)
{
    const bool here = pthread_equal(pthread_self(), evaluator) != 0;

    atomic_fetch_add(here ? &puts_here : &puts_there, 1);
    if (!here && atomic_load(&gated)) {
        (void)pthread_mutex_lock(&gate);
        (void)pthread_mutex_unlock(&gate);
    }
    return evq_backend_cpu.put(((struct twin *)state)->cpu, slot, blob, err);
}

static enum evq_status twin_settle(void *state, struct evq_error *err)
{
    return evq_backend_cpu.settle(((struct twin *)state)->cpu, err);
}

static enum evq_status twin_catch_up(void *state, uint32_t most, uint32_t *ret_reading,
                                     struct evq_error *err)
{
    return evq_backend_cpu.catch_up(((struct twin *)state)->cpu, most, ret_reading, err);
}

static enum evq_status twin_exec(void *state, const struct evq_batch *batch,
                                 struct evq_row_result *results, struct evq_error *err)
{
    return evq_backend_cpu.exec(((struct twin *)state)->cpu, batch, results, err);
}

static void twin_stats(void *state, struct evq_backend_stats *ret_stats)
{
    evq_backend_cpu.stats(((struct twin *)state)->cpu, ret_stats);
}

static void twin_close(void *state)
{
    if (state != NULL) {
        atomic_fetch_sub(&opens, 1);
        evq_backend_cpu.close(((struct twin *)state)->cpu);
        free(state);
    }
}

static const struct evq_backend_ops twins = {.abi_version = EVQ_BACKEND_ABI,
                                             .name = "twins",
                                             .open = twin_open,
                                             .caps = twin_caps,
                                             .alloc = twin_alloc,
                                             .free = twin_free,
                                             .prepare = twin_prepare,
                                             .reserve = twin_reserve,
                                             .exchange = twin_exchange,
                                             .put = twin_put,
                                             .settle = twin_settle,
                                             .catch_up = twin_catch_up,
                                             .exec = twin_exec,
                                             .stats = twin_stats,
                                             .close = twin_close};

/* ---- jobs ---- */

struct scene {
    struct fixture *fx;
    struct lm lm;
    struct evq_suite suite;
    int64_t ahead_step; // Of the job that is begun ahead when progress is told next; 0: none.
    const char *ahead_path;
};

static struct evq_job *job_new(int64_t step, const char *path)
{
    struct evq_job *job = evq_job_new();

    assert_non_null(job);
    job->run = "run";
    job->step = step;
    job->variant = "regular";
    job->suite = "s";
    job->root = "root";
    job->path = path;
    return job;
}

static void ahead_begin(struct scene *scene, int64_t step, const char *path)
{
    struct evq_job *job = job_new(step, path);
    const struct evq_eval_request request = {
        .suite = &scene->suite, .job = job, .root_fd = -1, .root_path = scene->fx->directory};
    evq_native_load_prefetch(scene->fx->native, job, &request);
}

/* As a child hears of the next job: in the middle of the present one. */
static enum evq_status scene_progress(void *context, int64_t done, int64_t total,
                                      const char *status)
{
    struct scene *scene = context;
    const int64_t step = scene->ahead_step;

    scene->ahead_step = 0;
    if (step > 0) {
        ahead_begin(scene, step, scene->ahead_path);
    }
    return on_progress(&scene->fx->seen, done, total, status);
}

static enum evq_status scene_task(void *context, const struct evq_result *result,
                                  struct evq_error *err)
{
    return on_task(&((struct scene *)context)->fx->seen, result, err);
}

static enum evq_status evaluate_status(struct scene *scene, int64_t step, const char *path,
                                       struct evq_error *err)
{
    struct evq_job *job = job_new(step, path);
    const struct evq_eval_request request = {.suite = &scene->suite,
                                             .job = job,
                                             .root_fd = scene->fx->root_fd,
                                             .root_path = "",
                                             .path = path,
                                             .prepared = "",
                                             .shard = -1};
    const struct evq_eval_report report = {scene, scene_progress, scene_task};

    atomic_store(&puts_here, 0);
    const enum evq_status status = evq_native_eval(scene->fx->native, &request, &report, err);
    evq_job_free(job);
    return status;
}

static double evaluate(struct scene *scene, int64_t step, const char *path)
{
    struct evq_error err = {0};

    if (evaluate_status(scene, step, path, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    return metric(scene->fx, "loss");
}

static void ahead_new(struct evq_native *native, int64_t patience_ms)
{
    struct evq_error err = {0};

    assert_status(
        evq_native_prefetch_new(&native->backend, 2, patience_ms, &native->prefetch, &err), EVQ_OK);
    assert_non_null(native->prefetch);
}

/* The evaluator of the fixture on the twins. */
static int setup_scene(void **state)
{
    static struct scene scene;

    if (setup_gpt(state) != 0) {
        return -1;
    }
    scene = (struct scene){.fx = *state};
    struct evq_native *native = scene.fx->native;
    struct evq_error err = {0};
    write_gpt(scene.fx, 3.0f);
    assert_int_equal(renameat(scene.fx->root_fd, "gpt", scene.fx->root_fd, "next"), 0);
    write_gpt(scene.fx, 0.0f);
    (void)lm(scene.fx, &scene.lm, "perplexity", "data.txt", "length", "9", NULL);
    scene.suite = (struct evq_suite){.name = "s",
                                     .evaluator = "native",
                                     .prepare = "",
                                     .shards = 1,
                                     .tasks = &scene.lm.task,
                                     .task_count = 1};
    evaluator = pthread_self();
    atomic_store(&opens, 0);
    no_room = false;
    prepares_without = 0;
    atomic_store(&gated, false);
    evq_loader_free(native->loader);
    native->backend.ops->close(native->state);
    native->backend.ops = &twins;
    ahead_new(native, 60000);
    assert_status(evq_backend_open(&native->backend, 2, &native->state, &err), EVQ_OK);
    assert_status(evq_loader_new(native->backend.ops, native->state, 2, &native->loader, &err),
                  EVQ_OK);
    *state = &scene;
    return 0;
}

static int teardown_scene(void **state)
{
    struct scene *scene = *state;
    static const char *const names[] = {"next/model.safetensors", "next/config.json",
                                        "next/tokenizer.json"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlinkat(scene->fx->root_fd, names[i], 0);
    }
    (void)unlinkat(scene->fx->root_fd, "next", AT_REMOVEDIR);
    *state = scene->fx;
    return teardown_gpt(state);
}

struct truth {
    double loss;
    char digest[33];
};

/* With nothing loaded ahead. */
static struct truth truth_of(struct scene *scene, const char *path)
{
    struct truth truth = {.loss = evaluate(scene, 99, path)};

    assert_true(atomic_load(&puts_here) > 0);
    (void)snprintf(truth.digest, sizeof(truth.digest), "%s",
                   scene->fx->seen.result->weights_digest);
    return truth;
}

static void assert_true_again(const struct scene *scene, double loss, const struct truth *truth)
{
    assert_true(memcmp(&loss, &truth->loss, sizeof(loss)) == 0);
    assert_string_equal(scene->fx->seen.result->weights_digest, truth->digest);
}

static void next_weights_are_there_when_their_job_comes(void **state)
{
    struct scene *scene = *state;
    const struct truth truths[] = {truth_of(scene, "gpt"), truth_of(scene, "next")};
    static const char *const paths[] = {"gpt", "next"};

    assert_true(fabs(truths[0].loss - truths[1].loss) > 1e-6);
    for (int64_t step = 1; step <= 6; step++) {
        scene->ahead_step = step + 1;
        scene->ahead_path = paths[(step + 1) % 2];
        const double loss = evaluate(scene, step, paths[step % 2]);
        assert_true_again(scene, loss, &truths[step % 2]);
        assert_true((atomic_load(&puts_here) == 0) == (step > 1)); // Nothing is loaded but ahead.
        assert_true(scene->fx->seen.result->timing.bytes > 0);
        assert_true(step == 1 || atomic_load(&opens) == 2); // Once and for all.
    }
}

static void weights_of_another_job_are_not_taken(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "gpt");

    ahead_begin(scene, 2, "next");
    assert_true_again(scene, evaluate(scene, 3, "gpt"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
    ahead_begin(scene, 2, "next"); // The job's name, and another checkpoint.
    assert_true_again(scene, evaluate(scene, 2, "gpt"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
}

static void checkpoint_that_changed_since_is_loaded_again(void **state)
{
    struct scene *scene = *state;
    const struct truth before = truth_of(scene, "gpt");

    atomic_store(&puts_there, 0);
    ahead_begin(scene, 2, "gpt");
    (void)evaluate(scene, 2, "gpt");
    assert_int_equal(atomic_load(&puts_here), 0);
    const int puts = atomic_load(&puts_there);
    ahead_begin(scene, 3, "gpt");
    FIXTURE_UNTIL(atomic_load(&puts_there) == 2 * puts);
    write_gpt(scene->fx, 5.0f);
    const double loss = evaluate(scene, 3, "gpt");
    assert_true(fabs(loss - before.loss) > 1e-9);
    assert_true(atomic_load(&puts_here) > 0);
}

static void without_room_for_two_sets_all_is_as_before(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "gpt");

    no_room = true;
    ahead_begin(scene, 2, "gpt");
    assert_true_again(scene, evaluate(scene, 2, "gpt"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
}

/* The present job comes first: no smaller batches for the sake of the next one. */
static void second_set_goes_when_the_present_job_lacks_memory(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "gpt");

    ahead_begin(scene, 2, "gpt");
    (void)evaluate(scene, 2, "gpt");
    assert_int_equal(atomic_load(&opens), 2);
    prepares_without = 100;
    assert_true_again(scene, evaluate(scene, 3, "gpt"), &truth);
    assert_int_equal(atomic_load(&opens), 1);
    assert_int_equal(prepares_without, 99);
    assert_string_equal(scene->fx->seen.result->note, "");
    prepares_without = 0;
    ahead_begin(scene, 4, "gpt"); // It would be so again.
    assert_true_again(scene, evaluate(scene, 4, "gpt"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
    assert_int_equal(atomic_load(&opens), 1);
}

/* A load ahead that stands still, as on a dead file system, until gate_open(). */
static void hang(struct scene *scene, int64_t step, const char *path)
{
    atomic_store(&gated, true);
    (void)pthread_mutex_lock(&gate);
    atomic_store(&puts_there, 0);
    ahead_begin(scene, step, path);
    FIXTURE_UNTIL(atomic_load(&puts_there) > 0);
}

static void gate_open(void)
{
    atomic_store(&gated, false);
    (void)pthread_mutex_unlock(&gate);
}

/* Whether a load ahead is begun, and used by its job. */
static bool loads_ahead(struct scene *scene)
{
    ahead_begin(scene, 5, "gpt");
    (void)evaluate(scene, 5, "gpt");
    return atomic_load(&puts_here) == 0;
}

/* Who comes before the weights are there waits for the rest of them; another's job does not take
 * them; the end comes all the same. */
static void load_in_the_middle_is_awaited(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "next");

    for (int turn = 0; turn < 3; turn++) {
        hang(scene, 2, "next");
        assert_int_equal(atomic_load(&puts_there), 1);
        gate_open();
        if (turn < 2) {
            assert_true_again(scene, evaluate(scene, turn == 0 ? 2 : 3, "next"), &truth);
            assert_true((atomic_load(&puts_here) == 0) == (turn == 0));
            FIXTURE_UNTIL(loads_ahead(scene)); // The one that was not wanted has ended.
        }                                      // Else the evaluator closes.
    }
}

static int setup_impatient(void **state)
{
    if (setup_scene(state) != 0) {
        return -1;
    }
    const struct scene *scene = *state;
    assert_true(evq_native_prefetch_free(scene->fx->native->prefetch));
    ahead_new(scene->fx->native, 50);
    return 0;
}

static void load_that_hangs_does_not_hold_another_job(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "gpt");

    hang(scene, 2, "next");
    assert_true_again(scene, evaluate(scene, 3, "gpt"), &truth);
    ahead_begin(scene, 4, "gpt"); // Nor is there a second load beside it.
    assert_true_again(scene, evaluate(scene, 4, "gpt"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
    assert_int_equal(atomic_load(&puts_there), 1);
    gate_open();
    FIXTURE_UNTIL(loads_ahead(scene)); // When it has ended after all.
}

static void load_that_hangs_does_not_hold_its_own_job(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "next");

    hang(scene, 2, "next");
    assert_true_again(scene, evaluate(scene, 2, "next"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
    gate_open();
    FIXTURE_UNTIL(loads_ahead(scene));
}

/* Its memory is gone until it ends: the present job makes do with smaller batches. */
static void load_that_hangs_keeps_its_memory(void **state)
{
    struct scene *scene = *state;
    const struct truth truth = truth_of(scene, "gpt");

    hang(scene, 2, "next");
    prepares_without = 1;
    assert_near(evaluate(scene, 3, "gpt"), truth.loss, 1e-6);
    assert_int_equal(prepares_without, 0);
    assert_string_not_equal(scene->fx->seen.result->note, "");
    assert_int_equal(atomic_load(&opens), 2);
    gate_open();
    FIXTURE_UNTIL(loads_ahead(scene));
}

static void load_that_hangs_does_not_hold_the_end(void **state)
{
    struct scene *scene = *state;

    hang(scene, 2, "next");
    assert_false(
        evq_native_prefetch_free(scene->fx->native->prefetch)); // Who ends then may free nothing.
    scene->fx->native->prefetch = NULL;
    assert_int_equal(atomic_load(&opens), 2);
    gate_open();
    FIXTURE_UNTIL(atomic_load(&opens) == 1); // It frees what it held.
}

/* A load that is told of: of several megabytes, most of them for the digest alone. */
static void write_large(const struct scene *scene)
{
    float *values = calloc((size_t)5 << 20, sizeof(*values));

    assert_non_null(values);
    const struct fixture_tensor more = {.name = "h.0.attn.bias", // A buffer.
                                        .dtype = EVQ_DTYPE_F32,
                                        .rank = 2,
                                        .shape = {2048, 2560},
                                        .data = values};
    write_gpt_with(scene->fx, 3.0f, &more);
    free(values);
}

/* While one waits for weights, its progress may bring word of the job after it, or of its end. */
static void progress_of_a_load_ahead_may_begin_and_stop(void **state)
{
    struct scene *scene = *state;
    struct evq_error err = {0};

    write_large(scene);
    const struct truth truth = truth_of(scene, "gpt");
    ahead_begin(scene, 2, "gpt");
    (void)evaluate(scene, 2, "gpt"); // From here on the second state is there.
    hang(scene, 3, "gpt");
    gate_open();
    scene->ahead_step = 4;
    scene->ahead_path = "gpt";
    assert_true_again(scene, evaluate(scene, 3, "gpt"), &truth);
    assert_int_equal(atomic_load(&puts_here), 0);
    assert_int_equal(scene->ahead_step, 0);
    ahead_begin(scene, 5, "gpt");
    scene->fx->seen.stop_at = 1;
    assert_int_equal(evaluate_status(scene, 5, "gpt", &err), EVQ_E_STOPPED);
    scene->fx->seen.stop_at = 0;
    assert_true_again(scene, evaluate(scene, 6, "gpt"), &truth);
    assert_true(atomic_load(&puts_here) > 0);
}

int main(void)
{
#define TEST(name)      cmocka_unit_test_setup_teardown(name, setup_scene, teardown_scene)
#define IMPATIENT(name) cmocka_unit_test_setup_teardown(name, setup_impatient, teardown_scene)
    const struct CMUnitTest tests[] = {
        TEST(next_weights_are_there_when_their_job_comes),
        TEST(weights_of_another_job_are_not_taken),
        TEST(checkpoint_that_changed_since_is_loaded_again),
        TEST(without_room_for_two_sets_all_is_as_before),
        TEST(second_set_goes_when_the_present_job_lacks_memory),
        TEST(load_in_the_middle_is_awaited),
        TEST(progress_of_a_load_ahead_may_begin_and_stop),
        IMPATIENT(load_that_hangs_does_not_hold_another_job),
        IMPATIENT(load_that_hangs_does_not_hold_its_own_job),
        IMPATIENT(load_that_hangs_keeps_its_memory),
        IMPATIENT(load_that_hangs_does_not_hold_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
