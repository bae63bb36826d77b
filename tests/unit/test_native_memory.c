/* The native evaluator where memory is short: smaller batches, fewer buffers to load with, the same
 * numbers, and a note that says so. */
#include "gpt_fixture.h"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int32_t rows_allowed; // To prepare.
static int32_t rows_loaded;  // So large a plan leaves memory for the loader's buffers.
static int32_t rows_prepared;
static size_t buffers_allowed, buffers_held;

static enum evq_status narrow_prepare(void *state, const struct evq_plan *plan,
                                      struct evq_error *err)
{
    rows_prepared = plan->rows_max;
    return plan->rows_max > rows_allowed
               ? evq_error_set(err, EVQ_E_NOMEM, "%d rows", (int)plan->rows_max)
               : evq_backend_cpu.prepare(state, plan, err);
}

static enum evq_status narrow_alloc(void *state, size_t bytes, void **ret_host,
                                    struct evq_error *err)
{
    if (rows_prepared > rows_loaded || buffers_held == buffers_allowed) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes of host memory", bytes);
    }
    buffers_held++;
    return evq_backend_cpu.alloc(state, bytes, ret_host, err);
}

static void narrow_free(void *state, void *host)
{
    buffers_held--;
    evq_backend_cpu.free(state, host);
}

/* The fixture's evaluator with a loader of its own, on a backend that has little memory. */
static void make_narrow(struct fixture *fx, struct evq_backend_ops *narrow)
{
    struct evq_error err = {0};

    *narrow = evq_backend_cpu;
    narrow->prepare = narrow_prepare;
    narrow->alloc = narrow_alloc;
    narrow->free = narrow_free;
    rows_allowed = rows_loaded = INT32_MAX;
    buffers_allowed = SIZE_MAX;
    evq_loader_free(fx->native->loader);
    buffers_held = 0;
    fx->native->backend.ops = narrow;
    assert_int_equal(evq_loader_new(narrow, fx->native->state, 2, &fx->native->loader, &err),
                     EVQ_OK);
}

static void make_plain(struct fixture *fx)
{
    struct evq_error err = {0};

    evq_loader_free(fx->native->loader);
    fx->native->backend.ops = &evq_backend_cpu;
    assert_int_equal(
        evq_loader_new(&evq_backend_cpu, fx->native->state, 2, &fx->native->loader, &err), EVQ_OK);
}

static void batches_get_smaller_when_memory_is_short(void **state)
{
    struct fixture *fx = *state;
    struct evq_backend_ops narrow;
    struct lm made;

    const struct evq_task_config *task =
        lm(fx, &made, "perplexity", "data.txt", "length", "9", NULL);
    assert_runs(fx, task);
    const double whole = metric(fx, "loss");
    assert_string_equal(fx->seen.result->note, "");
    make_narrow(fx, &narrow);
    rows_allowed = 20;
    assert_runs(fx, task);
    assert_near(metric(fx, "loss"), whole, 1e-9 * whole);
    assert_non_null(strstr(fx->seen.result->note, "batches of 16 rows instead of "));
    print_message("%s\n", fx->seen.result->note);
    rows_allowed = 8; // A window has 9.
    assert_fault(fx, task, EVQ_E_NOMEM, "rows");
    make_plain(fx);
}

/* The plan fits, but what is left does not hold the loader's buffer. */
static void batches_get_smaller_when_loading_finds_no_memory(void **state)
{
    struct fixture *fx = *state;
    struct evq_backend_ops narrow;
    struct lm made;

    const struct evq_task_config *task =
        lm(fx, &made, "perplexity", "data.txt", "length", "9", NULL);
    assert_runs(fx, task);
    const double whole = metric(fx, "loss");
    make_narrow(fx, &narrow);
    rows_loaded = 40;
    assert_runs(fx, task);
    assert_near(metric(fx, "loss"), whole, 1e-9 * whole);
    assert_non_null(strstr(fx->seen.result->note, "batches of 32 rows instead of "));
    make_narrow(fx, &narrow); // Its loader has no buffers.
    rows_loaded = 8;
    assert_fault(fx, task, EVQ_E_NOMEM, "bytes of host memory");
    assert_int_equal(buffers_held, 0);
    make_plain(fx);
}

static enum evq_status narrow_exec(void *state, const struct evq_batch *batch,
                                   struct evq_row_result *results, struct evq_error *err)
{
    return batch->rows > rows_allowed ? evq_error_set(err, EVQ_E_NOMEM, "%d rows", (int)batch->rows)
                                      : evq_backend_cpu.exec(state, batch, results, err);
}

/* Memory that runs out in the middle: what was done stays, the rest goes on in smaller batches. */
static void batches_get_smaller_while_they_run(void **state)
{
    struct fixture *fx = *state;
    struct evq_backend_ops narrow = evq_backend_cpu;
    struct lm made;

    narrow.exec = narrow_exec;
    for (int i = 0; i < 2; i++) {
        const struct evq_task_config *task =
            i == 0 ? lm(fx, &made, "perplexity", "data.txt", "length", "9", NULL)
                   : lm(fx, &made, "multiple_choice", "items.jsonl", NULL);
        const char *name = i == 0 ? "loss" : "acc";
        fx->native->backend.ops = &evq_backend_cpu;
        assert_runs(fx, task);
        const double whole = metric(fx, name);
        const int64_t n = fx->seen.result->n;
        fx->native->backend.ops = &narrow;
        rows_allowed = 40;
        assert_runs(fx, task);
        assert_near(metric(fx, name), whole, 1e-9 * whole);
        assert_int_equal(fx->seen.result->n, n);
        assert_non_null(strstr(fx->seen.result->note, "batches of 32 rows instead of 2048"));
        rows_allowed = 2;
        assert_fault(fx, task, EVQ_E_NOMEM, "do not fit into memory");
    }
    fx->native->backend.ops = &evq_backend_cpu;
}

#define WIDE 1536 // Its matrix takes 9 MB, and as much again while it is loaded.

/* A matrix over two samples; what comes out is 0 for each. */
static void put_wide(struct fixture *fx, struct small *small)
{
    const float y[] = {0.0f, 0.0f};
    static float weights[WIDE * WIDE];
    static float last[WIDE];
    static float x[2 * WIDE];
    const struct fixture_tensor tensors[] = {MATRIX("0.weight", WIDE, WIDE, weights),
                                             MATRIX("2.weight", 1, WIDE, last)};

    for (size_t i = 0; i < WIDE; i++) {
        weights[i * WIDE + i] = 1.0f;
        x[i] = x[WIDE + i] = (float)i;
        last[i] = 1.0f / WIDE;
    }
    write_model(fx, tensors, 2);
    write_npy(fx, "x.npy", 2, WIDE, x);
    write_npy(fx, "y.npy", 2, 1, y);
    small_init(fx, small, mnist_model, 1);
}

static enum evq_status run_wide(struct fixture *fx, const struct small *small,
                                struct evq_error *err)
{
    return eval(fx, fx->root_fd, "m.safetensors", &small->task, 1, -1, 0, err);
}

static void loading_goes_on_with_the_buffers_there_are(void **state)
{
    struct fixture *fx = *state;
    struct evq_backend_ops narrow;
    struct evq_error err = {0};
    struct small small;

    put_wide(fx, &small);
    for (size_t allowed = 1; allowed < 6; allowed++) {
        make_narrow(fx, &narrow);
        buffers_allowed = allowed;
        if (run_wide(fx, &small, &err) != EVQ_OK) {
            fail_msg("%zu buffers: %s", allowed, err.message);
        }
        assert_near(metric(fx, "mae"), (WIDE - 1) / 2.0, 1e-3);
        narrow_free(fx->native->state, fx->native->inputs); // As large again for the next.
        fx->native->inputs = NULL;
        fx->native->input_bytes = 0;
        make_plain(fx);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static rlim_t address_space(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file != NULL) {
        const int found = fscanf(file, "%llu", &pages);
        (void)fclose(file); // Opened for reading.
        pages = found == 1 ? pages : 0;
    }
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* In a process of its own, whose limit it is: 0, or the step that failed. */
static int run_limited(const struct fixture *fx, const struct small *small)
{
    struct fixture mine = {.root_fd = fx->root_fd};
    struct evq_error err = {0};
    struct lm made;
    char note[256];

    // What malloc() reserves for each thread, 64 MB, would be counted and could hold a batch.
    (void)mallopt(M_ARENA_MAX, 1);
    memcpy(mine.directory, fx->directory, sizeof(mine.directory));
    if (evq_native_open(0, 2, &mine.native, note, sizeof(note), &err) != EVQ_OK ||
        run(&mine, lm(fx, &made, "perplexity", "data.txt", NULL), -1, 0, &err) != EVQ_OK) {
        return 1;
    }
    const rlim_t limit = address_space() + sizeof(float) * WIDE * WIDE + ((rlim_t)32 << 20);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) != 0) {
        return 2;
    }
    if (run_wide(&mine, small, &err) != EVQ_OK) {
        print_error("%s\n", err.message);
        return 3;
    }
    print_message("%s\n", mine.seen.result->note);
    if (strstr(mine.seen.result->note, "rows instead of 8192") == NULL) {
        return 4;
    }
    return fabs(metric(&mine, "mae") - (WIDE - 1) / 2.0) <= 1e-3 ? 0 : 5;
}
#endif

/* 50 MB of samples would fill a batch; 32 MB are left beside the weights, and what the task before
 * had. */
static void evaluation_goes_on_under_a_limit_of_the_system(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); // They reserve more than any limit.
#else
    struct fixture *fx = *state;
    struct small small;
    int status = 0;

    put_wide(fx, &small);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(run_limited(fx, &small));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_gpt, teardown_gpt)
    const struct CMUnitTest tests[] = {
        TEST(batches_get_smaller_when_memory_is_short),
        TEST(batches_get_smaller_when_loading_finds_no_memory),
        TEST(batches_get_smaller_while_they_run),
        TEST(loading_goes_on_with_the_buffers_there_are),
        TEST(evaluation_goes_on_under_a_limit_of_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
