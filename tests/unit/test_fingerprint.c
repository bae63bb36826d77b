#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/safetensors.h"

enum { FLOATS = 300000 };

static void write_model(const struct fixture_folder *folder, const char *name, const float *values)
{
    char path[128];
    const struct fixture_tensor tensor = {
        .name = "w", .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {FLOATS}, .data = values};

    (void)snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    fixture_safetensors(path, &tensor, 1);
}

static void fingerprint_of(const struct fixture_folder *folder, const char *name, char out[33])
{
    struct evq_error err;

    assert_status_err(evq_checkpoint_fingerprint(folder->fd, name, out, NULL, &err), EVQ_OK, &err);
    assert_int_equal(strlen(out), 32);
    assert_int_equal(strspn(out, "0123456789abcdef"), 32);
}

static void digest_of(const struct fixture_folder *folder, const char *name, char out[33])
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;

    assert_status_err(evq_checkpoint_open(folder->fd, name, NULL, &checkpoint, &err), EVQ_OK, &err);
    assert_status_err(evq_checkpoint_digest(checkpoint, out, &err), EVQ_OK, &err);
    evq_checkpoint_close(checkpoint);
}

static void fingerprint_is_the_same_for_copies_renames_and_other_times(void **state)
{
    const struct fixture_folder *folder = *state;
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 2000}};
    float *values = calloc(FLOATS, sizeof(*values));
    char first[33];
    char other[33];

    write_model(folder, "a.safetensors", values);
    fingerprint_of(folder, "a.safetensors", first);
    write_model(folder, "b.safetensors", values);
    fingerprint_of(folder, "b.safetensors", other);
    assert_string_equal(first, other);
    assert_int_equal(utimensat(folder->fd, "b.safetensors", times, 0), 0);
    fingerprint_of(folder, "b.safetensors", other);
    assert_string_equal(first, other);
    fixture_folder_mkdir(folder, "step");
    write_model(folder, "step/model.safetensors", values);
    fingerprint_of(folder, "step", other);
    assert_string_equal(first, other);
    free(values);
}

static void fingerprint_and_digest_differ_when_weights_differ(void **state)
{
    const struct fixture_folder *folder = *state;
    float *values = calloc(FLOATS, sizeof(*values));
    char first[33];
    char other[33];

    write_model(folder, "a.safetensors", values);
    fingerprint_of(folder, "a.safetensors", first);
    static const size_t sampled[] = {0, FLOATS - 1}; // First and last block.
    for (size_t i = 0; i < 2; i++) {
        values[sampled[i]] = 1;
        write_model(folder, "a.safetensors", values);
        fingerprint_of(folder, "a.safetensors", other);
        assert_string_not_equal(first, other);
        values[sampled[i]] = 0;
    }
    // Between the blocks a fingerprint does not look; the digest does.
    digest_of(folder, "a.safetensors", first);
    values[5000] = 1;
    write_model(folder, "a.safetensors", values);
    digest_of(folder, "a.safetensors", other);
    assert_string_not_equal(first, other);
    free(values);
}

static void fingerprint_gives_a_manifest_of_every_shard(void **state)
{
    struct evq_buffer manifest;
    char out[33];
    int root_fd = open(EVQ_TEST_DATA "/checkpoints/made", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)state;
    evq_buffer_init(&manifest, 0);
    assert_status(evq_checkpoint_fingerprint(root_fd, "sharded_safetensors", out, &manifest, NULL),
                  EVQ_OK);
    assert_string_equal(evq_buffer_string(&manifest), "model-00001-of-00003.safetensors\t200\n"
                                                      "model-00002-of-00003.safetensors\t224\n"
                                                      "model-00003-of-00003.safetensors\t248\n");
    evq_buffer_free(&manifest);
    (void)close(root_fd);
}

/* These must not change from release to release: records in Redis carry them. */
static void fingerprint_and_digest_stay_what_they_were(void **state)
{
    char out[33];
    struct evq_checkpoint *checkpoint = NULL;
    int root_fd = open(EVQ_TEST_DATA "/checkpoints", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)state;
    assert_status(
        evq_checkpoint_fingerprint(root_fd, "safetensors/mnist_cnn.safetensors", out, NULL, NULL),
        EVQ_OK);
    assert_string_equal(out, "91d0bfefcc8974372f6e159ba8cfd575");
    assert_status(evq_checkpoint_fingerprint(root_fd, "made/sharded_safetensors", out, NULL, NULL),
                  EVQ_OK);
    assert_string_equal(out, "62de891f208dda24326075ae1c48292b");
    assert_status(evq_checkpoint_open(root_fd, "made/sharded_safetensors", NULL, &checkpoint, NULL),
                  EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, out, NULL), EVQ_OK);
    assert_string_equal(out, "58e5eff76e8f2c7b78bba7fda42ddb7b");
    evq_checkpoint_close(checkpoint);
    (void)close(root_fd);
}

static void fingerprint_refuses_an_incomplete_checkpoint(void **state)
{
    const struct fixture_folder *folder = *state;
    char out[33] = "unset";
    struct evq_error err;

    fixture_folder_write(folder, "x.safetensors", "\x10\0\0\0\0\0\0\0{}", 10);
    assert_status(evq_checkpoint_fingerprint(folder->fd, "x.safetensors", out, NULL, &err),
                  EVQ_E_INCOMPLETE);
    assert_string_equal(out, "unset");
    assert_status(evq_checkpoint_fingerprint(folder->fd, "y.safetensors", out, NULL, &err),
                  EVQ_E_GONE);
}

static void tree_of(const struct fixture_folder *folder, const char *name, char out[33])
{
    struct evq_error err;

    assert_status_err(evq_checkpoint_files_fingerprint(folder->fd, name, out, &err), EVQ_OK, &err);
    assert_int_equal(strspn(out, "0123456789abcdef"), 32);
}

/* Of a layout that is not read, every file counts, wherever it lies, and so does its name. */
static void tree_fingerprint_is_of_every_file_and_its_name(void **state)
{
    const struct fixture_folder *folder = *state;
    char first[33];
    char other[33];

    fixture_folder_mkdir(folder, "cut");
    fixture_folder_mkdir(folder, "cut/rank0");
    fixture_folder_write(folder, "cut/latest", "rank0", 5);
    fixture_folder_write(folder, "cut/rank0/a", "weights", 7);
    tree_of(folder, "cut", first);
    assert_int_equal(symlinkat("elsewhere", folder->fd, "cut/link"), 0);
    tree_of(folder, "cut", other);
    assert_string_equal(first, other);
    fixture_folder_write(folder, "cut/rank0/a", "Weights", 7);
    tree_of(folder, "cut", other);
    assert_string_not_equal(first, other);
    fixture_folder_write(folder, "cut/rank0/a", "weights", 7);
    tree_of(folder, "cut", other);
    assert_string_equal(first, other);
    assert_int_equal(renameat(folder->fd, "cut/rank0/a", folder->fd, "cut/rank0/b"), 0);
    tree_of(folder, "cut", other);
    assert_string_not_equal(first, other);
    tree_of(folder, "cut/latest", other); // One file.
    assert_status(evq_checkpoint_files_fingerprint(folder->fd, "gone", other, NULL), EVQ_E_GONE);
    assert_status(evq_checkpoint_files_fingerprint(folder->fd, "../x", other, NULL), EVQ_E_INVALID);
}

/* verl writes the state of its data loader beside the folder with the weights. */
static void fingerprint_of_verl_is_not_of_its_data_loader_alone(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_error err;
    char first[33];
    char other[33];

    fixture_folder_mkdir(folder, "v");
    fixture_folder_mkdir(folder, "v/actor");
    fixture_folder_write(folder, "v/data.pt", "state", 5);
    fixture_folder_write(folder, "v/actor/model_world_size_1_rank_0.pt", "weights", 7);
    assert_status_err(evq_checkpoint_fingerprint(folder->fd, "v", first, NULL, &err), EVQ_OK, &err);
    fixture_folder_write(folder, "v/actor/model_world_size_1_rank_0.pt", "Weights", 7);
    assert_status_err(evq_checkpoint_fingerprint(folder->fd, "v", other, NULL, &err), EVQ_OK, &err);
    assert_string_not_equal(first, other);
}

static void tree_fingerprint_goes_16_folders_deep(void **state)
{
    const struct fixture_folder *folder = *state;
    char path[64] = "d";
    char out[33];

    for (int depth = 0; depth < 18; depth++) {
        assert_int_equal(mkdirat(folder->fd, path, 0755), 0);
        (void)strcat(path, "/d");
    }
    assert_status(evq_checkpoint_files_fingerprint(folder->fd, "d", out, NULL), EVQ_E_LIMIT);
    assert_status(evq_checkpoint_files_fingerprint(folder->fd, "d/d/d", out, NULL),
                  EVQ_E_INCOMPLETE); // Folders without a file are no checkpoint yet.
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(fingerprint_is_the_same_for_copies_renames_and_other_times),
        TEST(fingerprint_and_digest_differ_when_weights_differ),
        TEST(fingerprint_gives_a_manifest_of_every_shard),
        TEST(fingerprint_and_digest_stay_what_they_were),
        TEST(fingerprint_refuses_an_incomplete_checkpoint),
        TEST(tree_fingerprint_is_of_every_file_and_its_name),
        TEST(fingerprint_of_verl_is_not_of_its_data_loader_alone),
        TEST(tree_fingerprint_goes_16_folders_deep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
