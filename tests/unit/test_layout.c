#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/golden.h"

static const uint8_t one_float[] =
    "\x36\0\0\0\0\0\0\0"
    "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
    "\0\0\x80\x3f";
#define ONE_FLOAT_BYTES (sizeof(one_float) - 1)

static void layout_reads_deepspeed_by_latest_by_step_and_by_file(void **state)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_scalar scalar;
    struct evq_error err;
    int root_fd = fixture_golden_root();

    (void)state;
    assert_int_equal(fixture_golden_check("made/zero", "module.", NULL), 2);
    static const char *const paths[] = {"made/zero", "made/zero/global_step20",
                                        "made/zero/global_step20/mp_rank_00_model_states.pt"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_status_err(evq_checkpoint_open(root_fd, paths[i], NULL, &checkpoint, &err), EVQ_OK,
                          &err);
        assert_int_equal(checkpoint->tensor_count, 2);
        assert_true(evq_checkpoint_scalar(checkpoint, "global_steps", &scalar));
        assert_int_equal(scalar.integer, 20);
        evq_checkpoint_close(checkpoint);
    }
    (void)close(root_fd);
}

/* What lies in the directory d: pairs of name and content, NULL for a folder. */
struct item {
    const char *name;
    const char *content;
};

static const struct {
    struct item items[4];
    enum evq_status status;
    const char *holds;
} cases[] = {
    {{{"latest", "global_step3"}}, EVQ_E_UNSUPPORTED, "no weights file that evalq reads"},
    {{{"global_step3", NULL}}, EVQ_E_INCOMPLETE, "not yet 'latest'"},
    {{{"latest", ""}, {"global_step3", NULL}}, EVQ_E_INCOMPLETE, "'latest' is empty"},
    {{{"latest", "\n"}, {"global_step3", NULL}}, EVQ_E_INCOMPLETE, "'latest' is empty"},
    {{{"latest", ".."}, {"global_step3", NULL}},
     EVQ_E_INVALID,
     "'..', which is not a plain folder"},
    {{{"latest", "/etc"}, {"global_step3", NULL}}, EVQ_E_INVALID, "which is not a plain folder"},
    {{{"latest", "a/b"}, {"global_step3", NULL}}, EVQ_E_INVALID, "which is not a plain folder"},
    {{{"latest", "../d/global_step3"}, {"global_step3", NULL}},
     EVQ_E_INVALID,
     "not a plain folder"},
    {{{"latest", "\x1b[2J"}, {"global_step3", NULL}}, EVQ_E_INCOMPLETE, "is not there (yet)"},
    {{{"latest", "global_step4"}, {"global_step3", NULL}}, EVQ_E_INCOMPLETE, "is not there (yet)"},
    {{{"latest", NULL}, {"global_step3", NULL}}, EVQ_E_INVALID, "'latest' is not a regular file"},
    {{{"latest", "global_step3"}, {"global_step3", "x"}}, EVQ_E_INVALID, "is not a directory"},
    {{{"latest", "global_step3\n"}, {"global_step3", NULL}},
     EVQ_E_INCOMPLETE,
     "'global_step3' holds no mp_rank_00_model_states.pt yet"},
    {{{"latest", "global_step3"},
      {"global_step3", NULL},
      {"global_step3/mp_rank_00_model_states.pt", "PK"}},
     EVQ_E_INCOMPLETE,
     "still being written"},
    {{{"latest", "global_step3"},
      {"global_step3", NULL},
      {"global_step3/mp_rank_00_model_states.pt", "abc"}},
     EVQ_E_CORRUPT,
     "'global_step3/mp_rank_00_model_states.pt': no checkpoint, but 3 bytes"},
    {{{"latest", "global_step3"},
      {"global_step3", NULL},
      {"global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt", "x"}},
     EVQ_E_UNSUPPORTED,
     "DeepSpeed ZeRO stage 3, whose weights are cut over all ranks: join them first with "
     "zero_to_fp32.py, in a `prepare` command"},
    {{{"latest", "global_step3"},
      {"global_step3", NULL},
      {"global_step3/mp_rank_00_model_states.pt", "x"},
      {"global_step3/mp_rank_01_model_states.pt", "x"}},
     EVQ_E_UNSUPPORTED,
     "a model-parallel checkpoint"},
    {{{"latest", "global_step3"},
      {"global_step3", NULL},
      {"global_step3/layer_00-model_00-model_states.pt", "x"},
      {"global_step3/mp_rank_00_model_states.pt", "x"}},
     EVQ_E_UNSUPPORTED,
     "a pipeline-parallel checkpoint of DeepSpeed"},
    {{{"zero_pp_rank_1_mp_rank_00_model_states.pt", "x"}}, EVQ_E_UNSUPPORTED, "ZeRO stage 3"},
    {{{"mp_rank_00_model_states.pt", "x"}, {"mp_rank_01_model_states.pt", "x"}},
     EVQ_E_UNSUPPORTED,
     "in a `prepare` command"},
    {{{"mp_rank_00", NULL}, {"mp_rank_01", NULL}}, EVQ_E_UNSUPPORTED, "model-parallel"},
    {{{"model_world_size_2_rank_0.pt", "x"}}, EVQ_E_UNSUPPORTED, "of each FSDP2 rank apart"},
    {{{"pytorch_model_fsdp_0", NULL}, {"pytorch_model_fsdp_0/model_world_size_2_rank_0.pt", "x"}},
     EVQ_E_UNSUPPORTED,
     "join them first (lmms_engine.merger, verl.model_merger), in a `prepare` command"},
    {{{"shard-00001-model-00001-of-00001.safetensors", "x"}},
     EVQ_E_UNSUPPORTED,
     "holds parts of tensors"},
    {{{"latest_checkpointed_iteration.txt", "100"}, {"iter_0000100", NULL}},
     EVQ_E_UNSUPPORTED,
     "Megatron-LM"},
    {{{"model_optim_rng.pt", "x"}}, EVQ_E_UNSUPPORTED, "Megatron-LM"},
    {{{"adapter_model.safetensors", "x"}},
     EVQ_E_INCOMPLETE,
     "holds an adapter, but not yet adapter_config.json"},
    {{{"tf_model.h5", "x"}}, EVQ_E_UNSUPPORTED, "TensorFlow"},
    {{{"flax_model.msgpack", "x"}}, EVQ_E_UNSUPPORTED, "Flax"},
    {{{"__0_0.distcp", "x"}}, EVQ_E_INCOMPLETE, "but not yet '.metadata'"},
    {{{"a.pt", "x"}, {"b.pt", "x"}}, EVQ_E_UNSUPPORTED, "holds 2 weights files"},
    {{{"pytorch_model_fsdp_0", NULL}}, EVQ_E_INCOMPLETE, "is not there (yet)"},
    {{{"pytorch_model_fsdp_0", NULL}, {"pytorch_model_fsdp_0/.metadata", ""}},
     EVQ_E_INCOMPLETE,
     "it is empty: still being written"},
    {{{"pytorch_model_fsdp_0", NULL}, {"pytorch_model_fsdp_0/.metadata", "x"}},
     EVQ_E_CORRUPT,
     "'pytorch_model_fsdp_0/.metadata': pickle byte 0"},
};

static void put_items(const struct fixture_folder *folder, const struct item *items)
{
    for (size_t i = 0; i < 4 && items[i].name != NULL; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "d/%s", items[i].name);
        if (items[i].content == NULL) {
            fixture_folder_mkdir(folder, path);
        } else {
            fixture_folder_write(folder, path, items[i].content, strlen(items[i].content));
        }
    }
}

static void remove_items(const struct fixture_folder *folder, const struct item *items)
{
    for (size_t i = 4; i-- > 0;) {
        char path[128];
        if (items[i].name != NULL) {
            (void)snprintf(path, sizeof(path), "d/%s", items[i].name);
            assert_int_equal(
                unlinkat(folder->fd, path, items[i].content == NULL ? AT_REMOVEDIR : 0), 0);
        }
    }
}

static void layout_refuses_what_is_incomplete_or_needs_a_prepare_command(void **state)
{
    const struct fixture_folder *folder = *state;
    size_t wrong = 0;

    fixture_folder_mkdir(folder, "d");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_error err = {.message = ""};
        put_items(folder, cases[i].items);
        enum evq_status status = evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].holds) == NULL ||
            strstr(err.message, "checkpoint 'd'") == NULL) {
            print_error("case %zu: %s '%s', wanted %s '%s'\n", i, evq_status_name(status),
                        err.message, evq_status_name(cases[i].status), cases[i].holds);
            wrong++;
        }
        evq_checkpoint_close(checkpoint);
        remove_items(folder, cases[i].items);
    }
    assert_int_equal(wrong, 0);
    struct evq_checkpoint *checkpoint = NULL; // Also when the file itself is named.
    struct evq_error err;
    fixture_folder_write(folder, "d/zero_pp_rank_0_mp_rank_00_model_states.pt", "x", 1);
    assert_status(evq_checkpoint_open(folder->fd, "d/zero_pp_rank_0_mp_rank_00_model_states.pt",
                                      NULL, &checkpoint, &err),
                  EVQ_E_UNSUPPORTED);
    assert_holds(err.message, "ZeRO stage 3");
    print_message("%zu directories refused\n", sizeof(cases) / sizeof(cases[0]));
}

/* A Trainer with DeepSpeed writes both: the weights of Transformers are the whole ones. */
static void layout_prefers_the_weights_of_transformers(void **state)
{
    static const struct item items[] = {{"latest", "global_step3"},
                                        {"global_step3", NULL},
                                        {"global_step3/mp_rank_00_model_states.pt", "x"},
                                        {"optimizer.pt", "x"}};
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;

    fixture_folder_mkdir(folder, "d");
    put_items(folder, items);
    fixture_folder_write(folder, "d/model.safetensors", one_float, ONE_FLOAT_BYTES);
    assert_status_err(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_OK, &err);
    assert_string_equal(checkpoint->format, "safetensors");
    evq_checkpoint_close(checkpoint);
}

static void copy_to(const struct fixture_folder *folder, const char *from, const char *to)
{
    static const char *const names[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};

    fixture_folder_mkdir(folder, to);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char source[512];
        char target[128];
        size_t bytes = 0;
        (void)snprintf(source, sizeof(source), EVQ_TEST_DATA "/checkpoints/made/%s/%s", from,
                       names[i]);
        (void)snprintf(target, sizeof(target), "%s/%s", to, names[i]);
        uint8_t *data = fixture_file_load(source, &bytes);
        fixture_folder_write(folder, target, data, bytes);
        free(data);
    }
}

static void layout_takes_the_folder_of_the_variant(void **state)
{
    const struct evq_checkpoint_options ema = {.variant = "ema"};
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;

    fixture_folder_mkdir(folder, "d");
    copy_to(folder, "dcp", "d/pytorch_model_fsdp_0");
    assert_status_err(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_OK, &err);
    assert_int_equal(checkpoint->tensor_count, 6);
    evq_checkpoint_close(checkpoint);
    assert_status(evq_checkpoint_open(folder->fd, "d", &ema, &checkpoint, &err), EVQ_E_NOT_FOUND);
    assert_holds(err.message, "holds no EMA weights (pytorch_ema_model_fsdp_0)");
    copy_to(folder, "dcp_grid", "d/pytorch_ema_model_fsdp_0"); // Two of its four files.
    assert_status(evq_checkpoint_open(folder->fd, "d", &ema, &checkpoint, &err), EVQ_E_INCOMPLETE);
    assert_holds(err.message, "'pytorch_ema_model_fsdp_0/.metadata': '__2_0.distcp' is not there");
    assert_status(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_OK);
    evq_checkpoint_close(checkpoint);
}

static void layout_refuses_flat_parameters_of_fsdp(void **state)
{
    static const struct {
        const char *name;
        bool refused;
    } names[] = {{"flat_param", true},
                 {"_flat_param", true},
                 {"_fsdp_wrapped_module.layers.0._flat_param", true},
                 {"model.flat_param_0", true},
                 {"flat_params", false},
                 {"flat_param.weight", false},
                 {"flat_param_scale", false}};
    const struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_error err;
        uint8_t file[256] = {0};
        int bytes = snprintf((char *)file + 8, sizeof(file) - 8,
                             "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                             names[i].name);
        file[0] = (uint8_t)bytes;
        fixture_folder_write(folder, "x.safetensors", file, 8 + (size_t)bytes);
        enum evq_status status =
            evq_checkpoint_open(folder->fd, "x.safetensors", NULL, &checkpoint, &err);
        assert_int_equal(status, names[i].refused ? EVQ_E_UNSUPPORTED : EVQ_OK);
        if (names[i].refused) {
            assert_holds(err.message, "a flat parameter of FSDP (LOCAL_STATE_DICT)");
            assert_holds(err.message, "`prepare`");
        }
        evq_checkpoint_close(checkpoint);
    }
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(layout_reads_deepspeed_by_latest_by_step_and_by_file),
        TEST(layout_refuses_what_is_incomplete_or_needs_a_prepare_command),
        TEST(layout_prefers_the_weights_of_transformers),
        TEST(layout_takes_the_folder_of_the_variant),
        TEST(layout_refuses_flat_parameters_of_fsdp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
