/*
 * A native evaluator on the CPU, a scratch directory for small models and data, and what its report
 * saw last.
 */
#ifndef EVQ_TESTS_UNIT_NATIVE_FIXTURE_H
#define EVQ_TESTS_UNIT_NATIVE_FIXTURE_H

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/fixture/check.h"
#include "tests/fixture/safetensors.h"
#include "worker/evaluators/native/native.h"

#define MNIST_SAMPLES 10000

struct seen { // What the report saw of the last task.
    int32_t tasks, progress;
    int32_t within; // Times that a batch told before its end.
    int64_t done, total;
    int64_t stop_at;           // Progress answers EVQ_E_STOPPED from here on; 0: never.
    struct evq_result *result; // Copied: sums and metrics.
};

struct fixture {
    struct evq_native *native;
    struct seen seen;
    char directory[64];
    int root_fd;
};

static inline enum evq_status on_progress(void *context, int64_t done, int64_t total,
                                          const char *status)
{
    struct seen *seen = context;

    assert_non_null(status);
    assert_true(done >= 0 && done <= total);
    const bool within = done == 0 || done == seen->done;
    seen->within += within;
    seen->progress += !within;
    seen->done = done;
    seen->total = total;
    return seen->stop_at > 0 && done >= seen->stop_at ? EVQ_E_STOPPED : EVQ_OK;
}

static inline enum evq_status on_task(void *context, const struct evq_result *result,
                                      struct evq_error *err)
{
    struct seen *seen = context;

    (void)err;
    seen->tasks++;
    evq_result_free(seen->result);
    seen->result = evq_result_new();
    assert_non_null(seen->result);
    struct evq_arena *arena = seen->result->arena;
    struct evq_sum *sums = evq_arena_array(arena, result->sum_count, sizeof(*sums));
    struct evq_metric *metrics = evq_arena_array(arena, result->metric_count + 1, sizeof(*metrics));
    assert_true(sums != NULL && metrics != NULL);
    for (size_t i = 0; i < result->sum_count; i++) {
        sums[i] = result->sums[i];
        sums[i].name = evq_arena_strdup(arena, result->sums[i].name);
    }
    for (size_t i = 0; i < result->metric_count; i++) {
        metrics[i] = result->metrics[i];
        metrics[i].name = evq_arena_strdup(arena, result->metrics[i].name);
    }
    seen->result->sums = sums;
    seen->result->sum_count = result->sum_count;
    seen->result->metrics = metrics;
    seen->result->metric_count = result->metric_count;
    seen->result->n = result->n;
    seen->result->timing = result->timing;
    seen->result->task = evq_arena_strdup(arena, result->task);
    seen->result->weights_digest = evq_arena_strdup(arena, result->weights_digest);
    seen->result->data_digest = evq_arena_strdup(arena, result->data_digest);
    seen->result->backend = evq_arena_strdup(arena, result->backend);
    seen->result->device = evq_arena_strdup(arena, result->device);
    seen->result->compute = evq_arena_strdup(arena, result->compute);
    seen->result->note = evq_arena_strdup(arena, result->note);
    return EVQ_OK;
}

static inline int setup(void **state)
{
    static struct fixture fixture;
    char note[256];
    struct evq_error err;

    fixture = (struct fixture){0};
    (void)snprintf(fixture.directory, sizeof(fixture.directory), "/tmp/evalq-native-XXXXXX");
    if (mkdtemp(fixture.directory) == NULL) {
        return -1;
    }
    fixture.root_fd = open(fixture.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = &fixture;
    return evq_native_open(0, 2, &fixture.native, note, sizeof(note), &err) == EVQ_OK &&
                   note[0] == '\0'
               ? 0
               : -1;
}

static inline int teardown(void **state)
{
    struct fixture *fx = *state;
    static const char *const names[] = {"m.safetensors", "x.npy", "y.npy"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlinkat(fx->root_fd, names[i], 0);
    }
    evq_native_close(fx->native);
    evq_result_free(fx->seen.result);
    (void)close(fx->root_fd);
    return rmdir(fx->directory);
}

static const struct evq_pair mnist_data[] = {
    {"format", "idx"},
    {"inputs", EVQ_TEST_DATA "/mnist/t10k-images-idx3-ubyte.gz"},
    {"labels", EVQ_TEST_DATA "/mnist/t10k-labels-idx1-ubyte.gz"},
    {"scale", "1/255"}};

static const struct evq_pair mnist_model[] = {{"activation", "relu"}};

static inline struct evq_task_config mnist_task(const struct evq_pair *options, size_t option_count)
{
    return (struct evq_task_config){.name = "digits",
                                    .type = "classification",
                                    .data = mnist_data,
                                    .data_count = 4,
                                    .model = mnist_model,
                                    .model_count = 1,
                                    .options = options,
                                    .option_count = option_count};
}

static inline enum evq_status eval(struct fixture *fx, int root_fd, const char *path,
                                   const struct evq_task_config *tasks, size_t task_count,
                                   int32_t shard, int32_t shard_count, struct evq_error *err)
{
    const struct evq_suite suite = {.name = "s",
                                    .evaluator = "native",
                                    .prepare = "",
                                    .shards = 1,
                                    .tasks = tasks,
                                    .task_count = task_count,
                                    .digest = "0123456789abcdef0123456789abcdef"};
    const struct evq_eval_request request = {.suite = &suite,
                                             .root_fd = root_fd,
                                             .root_path = "",
                                             .path = path,
                                             .prepared = "",
                                             .shard = shard,
                                             .shard_count = shard_count};
    const struct evq_eval_report report = {&fx->seen, on_progress, on_task};

    return evq_native_eval(fx->native, &request, &report, err);
}

static inline enum evq_status eval_mnist(struct fixture *fx, const struct evq_task_config *task,
                                         int32_t shard, int32_t shards, struct evq_error *err)
{
    const int root_fd = open(EVQ_TEST_DATA "/mnist", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(root_fd >= 0);
    const enum evq_status status =
        eval(fx, root_fd, "mlp_784_512_128_32_10.safetensors", task, 1, shard, shards, err);
    (void)close(root_fd);
    return status;
}

static inline double metric(const struct fixture *fx, const char *name)
{
    for (size_t i = 0; i < fx->seen.result->metric_count; i++) {
        if (strcmp(fx->seen.result->metrics[i].name, name) == 0) {
            return fx->seen.result->metrics[i].value;
        }
    }
    fail_msg("no metric '%s'", name);
    return (double)NAN;
}

static inline void write_npy(const struct fixture *fx, const char *name, int32_t rows,
                             int32_t columns, const float *values)
{
    char path[128];
    char header[118];

    (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, name);
    memset(header, ' ', sizeof(header));
    const int length = snprintf(header, sizeof(header),
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
                                (int)rows, (int)columns);
    header[length] = ' ';
    header[117] = '\n';
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file), 10);
    assert_int_equal(fwrite(header, 1, 118, file), 118);
    assert_int_equal(fwrite(values, 4, (size_t)rows * (size_t)columns, file),
                     (size_t)rows * (size_t)columns);
    assert_int_equal(fclose(file), 0);
}

static inline void write_model(const struct fixture *fx, const struct fixture_tensor *tensors,
                               size_t count)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/m.safetensors", fx->directory);
    fixture_safetensors(path, tensors, count);
}

#define VECTOR(name_, n_, data_)                                                                   \
    {                                                                                              \
        .name = name_, .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {n_}, .data = data_             \
    }
#define MATRIX(name_, n_, k_, data_)                                                               \
    {                                                                                              \
        .name = name_, .dtype = EVQ_DTYPE_F32, .rank = 2, .shape = {n_, k_}, .data = data_         \
    }

/* Small npy files and a task over them; the caller's pairs hold the paths. */
struct small {
    char inputs[128], targets[128];
    struct evq_pair data[3];
    struct evq_task_config task;
};

static inline void small_init(const struct fixture *fx, struct small *small,
                              const struct evq_pair *model, size_t model_count)
{
    (void)snprintf(small->inputs, sizeof(small->inputs), "%s/x.npy", fx->directory);
    (void)snprintf(small->targets, sizeof(small->targets), "%s/y.npy", fx->directory);
    small->data[0] = (struct evq_pair){"format", "npy"};
    small->data[1] = (struct evq_pair){"inputs", small->inputs};
    small->data[2] = (struct evq_pair){"targets", small->targets};
    small->task = (struct evq_task_config){.name = "r",
                                           .type = "regression",
                                           .data = small->data,
                                           .data_count = 3,
                                           .model = model,
                                           .model_count = model_count};
}

#endif
