#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "shared/checkpoint/writer.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"

static const float numbers[6] = {1, 2, 3, 4, 5, -6.5f};
static const uint8_t bytes3[3] = {7, 8, 9};
static const double pi = 3.14159265358979;

static const struct evq_writer_tensor tensors[] = {
    {.name = "z.bytes", .dtype = EVQ_DTYPE_U8, .rank = 1, .shape = {3}, .data = bytes3},
    {.name = "b.weight", .dtype = EVQ_DTYPE_F32, .rank = 2, .shape = {2, 3}, .data = numbers},
    {.name = "pi", .dtype = EVQ_DTYPE_F64, .rank = 0, .data = &pi},
    {.name = "a \"quoted\" \xc3\xbc",
     .dtype = EVQ_DTYPE_F32,
     .rank = 1,
     .shape = {2},
     .data = numbers},
    {.name = "empty", .dtype = EVQ_DTYPE_F32, .rank = 2, .shape = {0, 5}, .data = NULL},
};
#define TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static void path_in(const struct fixture_folder *folder, const char *name, char out[128])
{
    (void)snprintf(out, 128, "%s/%s", folder->path, name);
}

static size_t count_entries(const char *path)
{
    size_t count = 0;
    DIR *stream = opendir(path);

    assert_non_null(stream);
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    }
    (void)closedir(stream);
    return count;
}

static void writer_writes_what_the_reader_reads(void **state)
{
    const struct fixture_folder *folder = *state;
    static const char *const metadata[] = {"format", "pt", "step", "\n12"};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    char path[128];
    float got[6];

    path_in(folder, "m.safetensors", path);
    assert_status_err(evq_safetensors_write(path, tensors, TENSORS, metadata, 2, true, &err),
                      EVQ_OK, &err);
    assert_status_err(evq_checkpoint_open(folder->fd, "m.safetensors", NULL, &checkpoint, &err),
                      EVQ_OK, &err);
    assert_int_equal(checkpoint->tensor_count, TENSORS);
    const struct evq_tensor *weight = evq_checkpoint_find(checkpoint, "b.weight");
    assert_status(evq_checkpoint_read_f32(checkpoint, weight, got, 6, NULL), EVQ_OK);
    assert_memory_equal(got, numbers, sizeof(numbers));
    assert_int_equal(weight->shape[0], 2);
    assert_int_equal(weight->offset % 4, 0);
    assert_status(
        evq_checkpoint_read_f32(checkpoint, evq_checkpoint_find(checkpoint, "pi"), got, 1, NULL),
        EVQ_OK);
    assert_near(got[0], 3.14159265, 1e-6);
    assert_non_null(evq_checkpoint_find(checkpoint, "a \"quoted\" \xc3\xbc"));
    assert_int_equal(count_entries(folder->path), 1);
    evq_checkpoint_close(checkpoint);
}

/* Alignment descending, then name; the header padded to 8: byte for byte what the reference writer
 * writes. */
static void writer_orders_and_pads_as_the_reference_writer(void **state)
{
    static const char want[] =
        "{\"pi\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
        "\"z.bytes\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[32,35]}}";
    char path[128];
    size_t bytes = 0;

    path_in(*state, "m.safetensors", path);
    assert_status(evq_safetensors_write(path, tensors, 3, NULL, 0, false, NULL), EVQ_OK);
    uint8_t *data = fixture_file_load(path, &bytes);
    size_t length = data[0] + 256u * data[1];
    assert_int_equal(length % 8, 0);
    assert_memory_equal(data + 8, want, sizeof(want) - 1);
    for (size_t i = sizeof(want) - 1; i < length; i++) {
        assert_int_equal(data[8 + i], ' ');
    }
    assert_int_equal(bytes, 8 + length + 35);
    free(data);
}

static void writer_replaces_an_older_file_as_a_whole(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *older = NULL;
    char path[128];
    float got[6];

    path_in(folder, "m.safetensors", path);
    assert_status(evq_safetensors_write(path, tensors, TENSORS, NULL, 0, false, NULL), EVQ_OK);
    assert_status(evq_checkpoint_open(folder->fd, "m.safetensors", NULL, &older, NULL), EVQ_OK);
    assert_status(evq_safetensors_write(path, tensors, 1, NULL, 0, false, NULL), EVQ_OK);
    assert_status(
        evq_checkpoint_read_f32(older, evq_checkpoint_find(older, "b.weight"), got, 6, NULL),
        EVQ_OK);
    assert_status(evq_checkpoint_verify_unchanged(older, NULL), EVQ_OK);
    evq_checkpoint_close(older);
    assert_int_equal(count_entries(folder->path), 1);
}

static void writer_refuses_what_no_reader_would_take(void **state)
{
    struct evq_writer_tensor bad[2] = {tensors[1], tensors[1]};
    struct evq_error err;
    char path[128];

    path_in(*state, "m.safetensors", path);
    assert_status(evq_safetensors_write(path, bad, 2, NULL, 0, false, &err), EVQ_E_INVALID);
    assert_holds(err.message, "two tensors named 'b.weight'");
    bad[0].name = "\xff";
    assert_status(evq_safetensors_write(path, bad, 1, NULL, 0, false, &err), EVQ_E_INVALID);
    bad[0].name = "__metadata__";
    assert_status(evq_safetensors_write(path, bad, 1, NULL, 0, false, &err), EVQ_E_INVALID);
    bad[0].name = "x";
    bad[0].rank = EVQ_TENSOR_RANK_MAX + 1;
    assert_status(evq_safetensors_write(path, bad, 1, NULL, 0, false, &err), EVQ_E_INVALID);
    bad[0].rank = 2;
    bad[0].shape[0] = -1;
    assert_status(evq_safetensors_write(path, bad, 1, NULL, 0, false, &err), EVQ_E_INVALID);
    bad[0].shape[0] = INT64_MAX;
    assert_status(evq_safetensors_write(path, bad, 1, NULL, 0, false, &err), EVQ_E_INVALID);
    bad[0].dtype = EVQ_DTYPE_OTHER;
    assert_status(evq_safetensors_write(path, bad, 1, NULL, 0, false, &err), EVQ_E_UNSUPPORTED);
    assert_int_equal(count_entries(((const struct fixture_folder *)*state)->path), 0);
}

/* A full disk leaves neither half a checkpoint nor a temporary file. */
static void writer_leaves_nothing_when_the_disk_is_full(void **state)
{
    const struct fixture_folder *folder = *state;
    struct rlimit before;
    struct evq_error err;
    char path[128];

    path_in(folder, "m.safetensors", path);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small = {.rlim_cur = 100, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum evq_status status = evq_safetensors_write(path, tensors, TENSORS, NULL, 0, true, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    assert_status(status, EVQ_E_IO);
    assert_holds(err.message, "m.safetensors");
    assert_int_equal(count_entries(folder->path), 0);
}

static void writer_says_where_it_cannot_write(void **state)
{
    struct evq_error err;
    char path[128];

    path_in(*state, "missing/m.safetensors", path);
    assert_status(evq_safetensors_write(path, tensors, 1, NULL, 0, false, &err), EVQ_E_IO);
    assert_holds(err.message, "/missing/");
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(writer_writes_what_the_reader_reads),
        TEST(writer_orders_and_pads_as_the_reference_writer),
        TEST(writer_replaces_an_older_file_as_a_whole),
        TEST(writer_refuses_what_no_reader_would_take),
        TEST(writer_leaves_nothing_when_the_disk_is_full),
        TEST(writer_says_where_it_cannot_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
