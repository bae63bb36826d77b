#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/golden.h"

static struct evq_checkpoint *open_made(const char *path)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    int root_fd = fixture_golden_root();

    assert_status_err(evq_checkpoint_open(root_fd, path, NULL, &checkpoint, &err), EVQ_OK, &err);
    (void)close(root_fd); // The checkpoint keeps its own.
    return checkpoint;
}

static void scalar_finds_model_args_and_hyper_parameters_by_path(void **state)
{
    struct evq_checkpoint *nanogpt = open_made("made/nanogpt.pt");
    struct evq_checkpoint *lightning = open_made("made/lightning.ckpt");
    struct evq_scalar scalar;

    (void)state;
    assert_true(evq_checkpoint_scalar(nanogpt, "model_args.n_layer", &scalar));
    assert_int_equal(scalar.kind, EVQ_SCALAR_INTEGER);
    assert_int_equal(scalar.integer, 1);
    assert_near(scalar.real, 1.0, 0.0);
    assert_true(evq_checkpoint_scalar(nanogpt, "model_args.bias", &scalar));
    assert_int_equal(scalar.kind, EVQ_SCALAR_BOOL);
    assert_int_equal(scalar.integer, 0);
    assert_true(evq_checkpoint_scalar(nanogpt, "model_args.dropout", &scalar));
    assert_int_equal(scalar.kind, EVQ_SCALAR_NONE);
    assert_true(evq_checkpoint_scalar(nanogpt, "config.device", &scalar));
    assert_int_equal(scalar.kind, EVQ_SCALAR_TEXT);
    assert_int_equal(scalar.text_bytes, 4);
    assert_memory_equal(scalar.text, "cuda", 4);
    assert_true(evq_checkpoint_scalar(lightning, "hyper_parameters.width", &scalar)); // An object.
    assert_int_equal(scalar.integer, 3);
    assert_true(evq_checkpoint_scalar(lightning, "lr", &scalar));
    assert_int_equal(scalar.kind, EVQ_SCALAR_REAL);
    assert_near(scalar.real, 1e-4, 0.0);
    assert_true(evq_checkpoint_scalar(lightning, "global_step", &scalar));
    assert_true(scalar.integer == INT64_C(1) << 40);
    evq_checkpoint_close(nanogpt);
    evq_checkpoint_close(lightning);
}

static void scalar_is_none_for_tensors_dicts_and_what_is_not_there(void **state)
{
    static const char *const paths[] = {"",
                                        ".",
                                        "model_args",
                                        "model_args.n_head",
                                        "model_args.n_layer.x",
                                        "model._orig_mod.w",
                                        "best_val_loss",
                                        "nothing",
                                        "model_args..n_layer",
                                        "model_args.n_layer."};
    struct evq_checkpoint *nanogpt = open_made("made/nanogpt.pt");
    struct evq_checkpoint *plain = open_made("made/dtypes.safetensors");
    struct evq_scalar scalar = {.kind = EVQ_SCALAR_TEXT};

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_false(evq_checkpoint_scalar(nanogpt, paths[i], &scalar));
    }
    assert_false(evq_checkpoint_scalar(plain, "model_args.n_layer", &scalar));
    assert_int_equal(scalar.kind, EVQ_SCALAR_TEXT); // Untouched.
    evq_checkpoint_close(nanogpt);
    evq_checkpoint_close(plain);
}

static void expect_beside(const struct evq_checkpoint *checkpoint, const char *name,
                          const char *content)
{
    char text[32] = "";
    struct evq_error err;
    int fd = -1;

    assert_status_err(evq_checkpoint_open_sibling(checkpoint, name, &fd, &err), EVQ_OK, &err);
    assert_int_equal(pread(fd, text, sizeof(text), 0), strlen(content));
    assert_string_equal(text, content);
    (void)close(fd);
}

static void beside_opens_what_lies_with_the_weights_and_nothing_else(void **state)
{
    const struct fixture_folder *folder = *state;
    static const uint8_t empty[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    struct evq_checkpoint *directory = NULL;
    struct evq_checkpoint *file = NULL;
    struct evq_error err;
    int fd = -1;

    fixture_folder_mkdir(folder, "step");
    fixture_folder_write(folder, "step/model.safetensors", empty, sizeof(empty));
    fixture_folder_write(folder, "step/config.json", "{}", 2);
    fixture_folder_write(folder, "shared.json", "[1]", 3);
    assert_int_equal(symlinkat("../shared.json", folder->fd, "step/linked.json"), 0);
    assert_int_equal(symlinkat("/etc/hostname", folder->fd, "step/out.json"), 0);
    assert_status(evq_checkpoint_open(folder->fd, "step", NULL, &directory, NULL), EVQ_OK);
    assert_status(evq_checkpoint_open(folder->fd, "step/model.safetensors", NULL, &file, NULL),
                  EVQ_OK);
    expect_beside(directory, "config.json", "{}");
    expect_beside(file, "config.json", "{}");
    expect_beside(directory, "linked.json", "[1]"); // As in the cache of Hugging Face.
    assert_status(evq_checkpoint_open_sibling(directory, "out.json", &fd, &err), EVQ_E_INVALID);
    assert_status(evq_checkpoint_open_sibling(directory, "none.json", &fd, &err), EVQ_E_GONE);
    assert_status(evq_checkpoint_open_sibling(directory, "..", &fd, &err), EVQ_E_INVALID);
    assert_status(evq_checkpoint_open_sibling(directory, "", &fd, &err), EVQ_E_INVALID);
    assert_status(evq_checkpoint_open_sibling(directory, "../shared.json", &fd, &err),
                  EVQ_E_INVALID);
    assert_holds(err.message, "is not a plain file name");
    assert_int_equal(fd, -1);
    evq_checkpoint_close(directory);
    evq_checkpoint_close(file);
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_finds_model_args_and_hyper_parameters_by_path),
        cmocka_unit_test(scalar_is_none_for_tensors_dicts_and_what_is_not_there),
        TEST(beside_opens_what_lies_with_the_weights_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
