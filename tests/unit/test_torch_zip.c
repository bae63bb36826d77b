#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/archive.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/golden.h"

/* Every fixture: which part of it is read by rule, and how many tensors that are. */
static const struct fixture_golden fixtures[] = {
    {"torch_zip/bfloat16.pt", "", 1},
    {"torch_zip/bool.pt", "", 1},
    {"torch_zip/buffers.pt", "", 2},
    {"torch_zip/candle_test.pt", "", 1},
    {"torch_zip/candle_test_with_key.pt", "model_state_dict.", 1},
    {"torch_zip/checkpoint.pt", "model_state_dict.", 4},
    {"torch_zip/complex_structure.pt", "", 6},
    {"torch_zip/empty.pt", "", 1},
    {"torch_zip/extreme_values.pt", "", 1},
    {"torch_zip/float16.pt", "", 1},
    {"torch_zip/float32.pt", "", 1},
    {"torch_zip/float64.pt", "", 1},
    {"torch_zip/int16.pt", "", 1},
    {"torch_zip/int32.pt", "", 1},
    {"torch_zip/int64.pt", "", 1},
    {"torch_zip/int8.pt", "", 1},
    {"torch_zip/key_remap.pt", "", 3},
    {"torch_zip/large_shape.pt", "", 1},
    {"torch_zip/linear.pt", "", 3},
    {"torch_zip/mixed_types.pt", "", 4},
    {"torch_zip/nested_dict.pt", "", 4},
    {"torch_zip/non_contiguous_indexes.pt", "", 10},
    {"torch_zip/parameter.pt", "", 1},
    {"torch_zip/scalar.pt", "", 1},
    {"torch_zip/special_values.pt", "", 1},
    {"torch_zip/state_dict.pt", "", 4},
    {"torch_zip/tensor_2d.pt", "", 1},
    {"torch_zip/tensor_3d.pt", "", 1},
    {"torch_zip/tensor_4d.pt", "", 1},
    {"torch_zip/top_level_key.pt", "", 2},
    {"torch_zip/torchscript_foo.pt", "", 1},
    {"torch_zip/uint8.pt", "", 1},
    {"torch_zip/weights_with_config.pt", "", 3},
    {"made/dtypes.pt", "", 22},
    {"made/ema_callback.ckpt", "state_dict.", 2},
    {"made/ema_lightning.ckpt", "current_model_state.", 2},
    {"made/ema_mlp.ckpt", "state_dict.", 2},
    {"made/ema_part.ckpt", "state_dict.", 4},
    {"made/ema_timm.pth", "model.", 2},
    {"made/nested.pt", "", 3},
    {"made/lightning.ckpt", "state_dict.", 2},
    {"made/list.pt", "", 3},
    {"made/module.pt", "", 8},
    {"made/module_masked2.pt", "", 8},
    {"made/module_masked4.pt", "", 8},
    {"made/nanogpt.pt", "model.", 2},
    {"made/numbers.pt", "", 2},
    {"made/protocol4.pt", "", 2},
    {"made/protocol5.pt", "", 2},
    {"made/sharded_bin", "", 6},
    {"made/views.pt", "", 11},
    {"made/wrapped.pth", "net.", 8},
};

static void torch_zip_reads_what_torch_reads_from_every_fixture(void **state)
{
    (void)state;
    fixture_golden_check_all(fixtures, sizeof(fixtures) / sizeof(fixtures[0]));
}

static void torch_zip_refuses_what_it_does_not_read_with_the_reason(void **state)
{
    static const struct {
        const char *file;
        enum evq_status status;
        const char *holds;
    } cases[] = {
        {"torch_zip/broken.pt", EVQ_E_CORRUPT,
         "no checkpoint, but 3 bytes that begin with 61 62 63"},
        {"torch_zip/torchscript_foo1.pt", EVQ_E_NOT_FOUND, "holds no tensors"},
        {"torch_zip/torchscript_foo8.pt", EVQ_E_NOT_FOUND, "holds no tensors"},
    };
    int root_fd = fixture_golden_root();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_error err;
        assert_status_err(evq_checkpoint_open(root_fd, cases[i].file, NULL, &checkpoint, &err),
                          cases[i].status, &err);
        assert_holds(err.message, cases[i].holds);
        assert_null(checkpoint);
    }
    (void)close(root_fd);
}

static void torch_zip_takes_the_dict_that_key_or_variant_asks_for(void **state)
{
    const struct evq_checkpoint_options ema = {.variant = "ema"};
    const struct evq_checkpoint_options regular = {.variant = "regular"};
    const struct evq_checkpoint_options by_key = {.key = "ema_state_dict"};
    const struct evq_checkpoint_options deep = {.key = "optimizer_states"};
    const struct evq_checkpoint_options nested = {.key = "state.encoder.layer_0"};
    const struct evq_checkpoint_options missing = {.key = "stat_dict"};
    const struct evq_checkpoint_options no_tensors = {.key = "hyper_parameters"};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    int root_fd = fixture_golden_root();

    (void)state;
    assert_int_equal(fixture_golden_check("made/lightning.ckpt", "ema_state_dict.", &ema), 2);
    assert_int_equal(fixture_golden_check("made/lightning.ckpt", "state_dict.", &regular), 2);
    assert_int_equal(fixture_golden_check("made/lightning.ckpt", "ema_state_dict.", &by_key), 2);
    assert_int_equal(fixture_golden_check("made/lightning.ckpt", "optimizer_states.", &deep), 1);
    assert_int_equal(
        fixture_golden_check("torch_zip/complex_structure.pt", "state.encoder.layer_0.", &nested),
        2);
    assert_int_equal(fixture_golden_check("torch_zip/linear.pt", "", &ema),
                     3); // The file is the variant's own.
    assert_status(evq_checkpoint_open(root_fd, "made/lightning.ckpt", &missing, &checkpoint, &err),
                  EVQ_E_NOT_FOUND);
    assert_holds(err.message,
                 "there is no key 'stat_dict'; the file holds: state_dict, ema_state_dict");
    assert_status(
        evq_checkpoint_open(root_fd, "made/lightning.ckpt", &no_tensors, &checkpoint, &err),
        EVQ_E_NOT_FOUND);
    assert_status(evq_checkpoint_open(root_fd, "made/nanogpt.pt", &ema, &checkpoint, &err),
                  EVQ_E_NOT_FOUND);
    assert_holds(err.message, "holds no EMA weights");
    assert_status(evq_checkpoint_open(root_fd, "made/nested.pt", &ema, &checkpoint, &err),
                  EVQ_E_NOT_FOUND);
    assert_holds(err.message, "holds no EMA weights, but: app");
    assert_int_equal(fixture_golden_check("made/nested_ema.pt", "app.model_ema.", &ema), 2);
    (void)close(root_fd);
}

/* Two jobs, one file, different values: wherever a trainer puts its averages. */
static void torch_zip_finds_regular_and_averaged_weights_of_one_file(void **state)
{
    static const struct {
        const char *file;
        const char *regular;
        const char *ema;
    } cases[] = {
        {"made/lightning.ckpt", "state_dict.", "ema_state_dict."},
        {"made/ema_callback.ckpt", "state_dict.", "callbacks.EMA{'decay': 0.99}.ema_state_dict."},
        {"made/ema_lightning.ckpt", "current_model_state.", "state_dict."},
        {"made/ema_timm.pth", "model.", "model_ema."},
        {"made/ema_part.ckpt", "state_dict.", "state_dict.ema_model."},
    };
    int root_fd = fixture_golden_root();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_checkpoint_options options = {.variant = "ema"};
        struct evq_checkpoint *checkpoint = NULL;
        char digests[2][33];
        assert_int_equal(fixture_golden_check(cases[i].file, cases[i].ema, &options), 2);
        for (int k = 0; k < 2; k++) {
            options.variant = k == 0 ? "regular" : "ema";
            assert_status(evq_checkpoint_open(root_fd, cases[i].file, &options, &checkpoint, NULL),
                          EVQ_OK);
            assert_status(evq_checkpoint_digest(checkpoint, digests[k], NULL), EVQ_OK);
            evq_checkpoint_close(checkpoint);
        }
        assert_string_not_equal(digests[0], digests[1]);
        options.variant = "regular";
        assert_true(fixture_golden_check(cases[i].file, cases[i].regular, &options) >= 2);
    }
    (void)close(root_fd);
}

/* Complete is about the file, not about finding weights in it. */
static void torch_zip_is_complete_whatever_dict_it_holds(void **state)
{
    int root_fd = fixture_golden_root();
    char out[33];

    (void)state;
    assert_status(evq_checkpoint_check_complete(root_fd, "torch_zip/torchscript_foo1.pt", NULL),
                  EVQ_OK);
    assert_status(evq_checkpoint_check_complete(root_fd, "made/sharded_bin", NULL), EVQ_OK);
    assert_status(evq_checkpoint_fingerprint(root_fd, "made/lightning.ckpt", out, NULL, NULL),
                  EVQ_OK);
    (void)close(root_fd);
}

/* Every fixture of a few kilobytes, cut everywhere. */
static void torch_zip_is_incomplete_when_cut_at_any_byte(void **state)
{
    const struct fixture_folder *folder = *state;
    size_t cuts = 0;

    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); i++) {
        char path[512];
        size_t bytes = 0;
        (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/checkpoints/%s", fixtures[i].file);
        if (strstr(fixtures[i].file, "sharded") != NULL) {
            continue;
        }
        uint8_t *data = fixture_file_load(path, &bytes);
        for (size_t left = bytes <= 5000 ? bytes : 0; left > 0; left--) {
            struct evq_error err;
            fixture_folder_write(folder, "x.pt", data, left - 1);
            assert_status_err(evq_checkpoint_check_complete(folder->fd, "x.pt", &err),
                              EVQ_E_INCOMPLETE, &err);
            cuts++;
        }
        free(data);
    }
    print_message("%zu cuts\n", cuts);
}

static void torch_zip_digest_counts_values_not_how_they_are_stored(void **state)
{
    int root_fd = fixture_golden_root();
    struct evq_checkpoint *checkpoint = NULL;
    char zip[33];
    char other[33];

    (void)state;
    assert_status(evq_checkpoint_open(root_fd, "made/protocol4.pt", NULL, &checkpoint, NULL),
                  EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, zip, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_status(evq_checkpoint_open(root_fd, "made/lightning.ckpt", NULL, &checkpoint, NULL),
                  EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, other, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_string_equal(zip, other); // The same w and b, the one a view of a larger storage.
    assert_status(evq_checkpoint_open(root_fd, "made/views.pt", NULL, &checkpoint, NULL), EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, other, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_string_not_equal(zip, other);
    (void)close(root_fd);
}

/* The digest of w, [2, 3] of scales of a block format over data/0, whose order in memory is
 * Fortran's, and its values. */
static void scales_read(const struct fixture_folder *folder, const char *data, char digest[33],
                        char values[6])
{
    static const char pickle[] =
        "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v3\n((X\7\0\0\0storagectorch\n"
        "UntypedStorage\nX\1\0\0\0000X\3\0\0\0cpuK\6tQK\0K\2K\3\x86K\1K\2\x86\x89Nctorch\n"
        "float8_e8m0fnu\ntRs.";
    struct fixture_archive archive;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.status = EVQ_OK};

    fixture_archive_start(&archive, true);
    fixture_archive_add(&archive, "x/data.pkl", pickle, sizeof(pickle) - 1);
    fixture_archive_add(&archive, "x/data/0", data, 6);
    fixture_archive_finish(&archive);
    fixture_folder_write(folder, "x.pt", archive.bytes.data, archive.bytes.bytes);
    fixture_archive_free(&archive);
    assert_status_err(evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err), EVQ_OK,
                      &err);
    const struct evq_tensor *w = evq_checkpoint_find(checkpoint, "w");
    assert_non_null(w);
    assert_int_equal(w->dtype, EVQ_DTYPE_OTHER);
    assert_false(w->contiguous);
    assert_status_err(evq_checkpoint_digest(checkpoint, digest, &err), EVQ_OK, &err);
    assert_status_err(evq_checkpoint_read_raw(checkpoint, w, values, 6, &err), EVQ_OK, &err);
    evq_checkpoint_close(checkpoint);
}

/* Of a dtype that is only listed, too: other weights are never the same weights. */
static void torch_zip_digest_counts_values_of_what_is_only_listed(void **state)
{
    const struct fixture_folder *folder = *state;
    char first[33];
    char second[33];
    char values[6];

    scales_read(folder, "abcdef", first, values);
    assert_memory_equal(values, "acebdf", 6);
    scales_read(folder, "abcdeg", second, values);
    assert_string_not_equal(first, second);
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(torch_zip_reads_what_torch_reads_from_every_fixture),
        TEST(torch_zip_refuses_what_it_does_not_read_with_the_reason),
        TEST(torch_zip_takes_the_dict_that_key_or_variant_asks_for),
        TEST(torch_zip_finds_regular_and_averaged_weights_of_one_file),
        TEST(torch_zip_is_complete_whatever_dict_it_holds),
        TEST(torch_zip_is_incomplete_when_cut_at_any_byte),
        TEST(torch_zip_digest_counts_values_not_how_they_are_stored),
        TEST(torch_zip_digest_counts_values_of_what_is_only_listed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
