#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/json.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/golden.h"

static void safetensors_reads_what_the_reference_reads_from_every_fixture(void **state)
{
    static const char *const files[] = {"safetensors/a.safetensors",
                                        "safetensors/b.safetensors",
                                        "safetensors/empty.safetensors",
                                        "safetensors/mnist_cnn.safetensors",
                                        "safetensors/multi_layer.safetensors",
                                        "safetensors/small_mixed.safetensors",
                                        "made/dtypes.safetensors",
                                        "made/sharded_safetensors"};
    size_t tensors = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        tensors += fixture_golden_check(files[i], "", NULL);
    }
    assert_int_equal(tensors, 68);
}

static void put(const struct fixture_folder *folder, const char *name, const char *header,
                size_t data_bytes)
{
    size_t length = strlen(header);
    uint8_t *bytes = calloc(1, 8 + length + data_bytes);

    for (unsigned i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    fixture_folder_write(folder, name, bytes, 8 + length + data_bytes);
    free(bytes);
}

static enum evq_status open_named(const struct fixture_folder *folder, const char *name,
                                  struct evq_checkpoint **ret, struct evq_error *err)
{
    return evq_checkpoint_open(folder->fd, name, NULL, ret, err);
}

static void safetensors_accepts_unusual_but_valid_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        size_t tensors;
    } cases[] = {
        {"{}", 0, 0},
        {"  \n{ }\t ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\",\"\":\"\"},\"a\":{\"dtype\":\"U8\",\"shape\":[],"
         "\"data_offsets\":[0,1]}}",
         1, 1},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},\"b\":{\"dtype\":"
         "\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, 2},
        {"{\"z\":{\"shape\":[3],\"data_offsets\":[2,5],\"dtype\":\"I8\"},\"a\":{\"dtype\":\"I8\","
         "\"shape\":[2],\"data_offsets\":[0,2]}}",
         5, 2},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":{\"x\":[1,-2.5e3,"
         "null,true]}}}",
         1, 1},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, 1},
        {"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[0,3]}}", 3,
         1},
        {"{\"\\u00fc\\ud83d\\ude00\\n\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         1, 1},
        {"{\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_error err;
        put(*state, "x.safetensors", cases[i].header, cases[i].data_bytes);
        assert_status_err(open_named(*state, "x.safetensors", &checkpoint, &err), EVQ_OK, &err);
        assert_int_equal(checkpoint->tensor_count, cases[i].tensors);
        evq_checkpoint_close(checkpoint);
    }
}

static void safetensors_gives_names_sorted_and_unescaped(void **state)
{
    struct evq_checkpoint *checkpoint = NULL;

    put(*state, "x.safetensors",
        "{\"b\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"\\u0061\\/\\\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        2);
    assert_status(open_named(*state, "x.safetensors", &checkpoint, NULL), EVQ_OK);
    assert_string_equal(checkpoint->format, "safetensors");
    assert_string_equal(checkpoint->tensors[0].name, "a/\"");
    assert_string_equal(checkpoint->tensors[1].name, "b");
    assert_ptr_equal(evq_checkpoint_find(checkpoint, "b"), &checkpoint->tensors[1]);
    assert_null(evq_checkpoint_find(checkpoint, "c"));
    evq_checkpoint_close(checkpoint);
}

static void safetensors_read_f32_handles_unaligned_data(void **state)
{
    const float want[2] = {1.5f, -2.0f};
    const char *header = "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}";
    struct evq_checkpoint *checkpoint = NULL;
    uint8_t bytes[256] = {0};
    size_t length = strlen(header);
    float got[2];

    bytes[0] = (uint8_t)length;
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length + 1, want, sizeof(want));
    fixture_folder_write(*state, "x.safetensors", bytes, 8 + length + 9);
    assert_status(open_named(*state, "x.safetensors", &checkpoint, NULL), EVQ_OK);
    const struct evq_tensor *tensor = evq_checkpoint_find(checkpoint, "b");
    assert_status(evq_checkpoint_read_f32(checkpoint, tensor, got, 2, NULL), EVQ_OK);
    assert_memory_equal(got, want, sizeof(want));
    assert_status(evq_checkpoint_read_f32(checkpoint, tensor, got, 1, NULL), EVQ_E_INVALID);
    evq_checkpoint_close(checkpoint);
}

static void safetensors_read_says_changed_when_the_file_shrinks_or_is_written_to(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    float got[4];

    put(folder, "x.safetensors",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16);
    assert_status(open_named(folder, "x.safetensors", &checkpoint, NULL), EVQ_OK);
    const struct evq_tensor *tensor = &checkpoint->tensors[0];
    assert_status(evq_checkpoint_verify_unchanged(checkpoint, NULL), EVQ_OK);

    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 12345}};
    assert_int_equal(utimensat(folder->fd, "x.safetensors", times, 0), 0);
    assert_status(evq_checkpoint_verify_unchanged(checkpoint, &err), EVQ_E_CHANGED);
    assert_holds(err.message, "written to");

    int fd = openat(folder->fd, "x.safetensors", O_WRONLY | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)(tensor->offset + 15)), 0);
    (void)close(fd);
    assert_status(evq_checkpoint_read_f32(checkpoint, tensor, got, 4, &err), EVQ_E_CHANGED);
    assert_holds(err.message, "'a'");
    assert_status(evq_checkpoint_verify_unchanged(checkpoint, &err), EVQ_E_CHANGED);
    assert_holds(err.message, "bytes when it was opened");
    evq_checkpoint_close(checkpoint);
}

static void safetensors_reads_on_when_the_file_is_unlinked(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    float got[4];

    put(folder, "x.safetensors",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16);
    assert_status(open_named(folder, "x.safetensors", &checkpoint, NULL), EVQ_OK);
    assert_int_equal(unlinkat(folder->fd, "x.safetensors", 0), 0);
    assert_status(evq_checkpoint_read_f32(checkpoint, &checkpoint->tensors[0], got, 4, NULL),
                  EVQ_OK);
    assert_status(evq_checkpoint_verify_unchanged(checkpoint, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_status(open_named(folder, "x.safetensors", &checkpoint, NULL), EVQ_E_GONE);
}

/* A cut at any byte is "still being written", whatever the byte. */
static void safetensors_is_incomplete_when_cut_at_any_byte(void **state)
{
    static const char *const files[] = {"safetensors/a.safetensors",
                                        "safetensors/small_mixed.safetensors",
                                        "made/dtypes.safetensors", "safetensors/empty.safetensors"};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[512];
        size_t bytes = 0;
        (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/checkpoints/%s", files[i]);
        uint8_t *data = fixture_file_load(path, &bytes);
        for (size_t cut = 0; cut < bytes; cut++) {
            struct evq_error err;
            fixture_folder_write(*state, "x.safetensors", data, cut);
            const struct fixture_folder *folder = *state;
            assert_status_err(evq_checkpoint_check_complete(folder->fd, "x.safetensors", &err),
                              EVQ_E_INCOMPLETE, &err);
        }
        fixture_folder_write(*state, "x.safetensors", data, bytes);
        const struct fixture_folder *folder = *state;
        assert_status(evq_checkpoint_check_complete(folder->fd, "x.safetensors", NULL), EVQ_OK);
        free(data);
    }
}

static void copy_sharded(const struct fixture_folder *folder)
{
    static const char *const names[] = {
        "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors", "model.safetensors.index.json"};

    fixture_folder_mkdir(folder, "step-1");
    for (size_t i = 0; i < 4; i++) {
        char path[512];
        size_t bytes = 0;
        (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/checkpoints/made/sharded_safetensors/%s",
                       names[i]);
        uint8_t *data = fixture_file_load(path, &bytes);
        (void)snprintf(path, sizeof(path), "step-1/%s", names[i]);
        fixture_folder_write(folder, path, data, bytes);
        free(data);
    }
}

static void sharded_is_incomplete_until_the_last_shard_is_there(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_error err;

    copy_sharded(folder);
    assert_status(evq_checkpoint_check_complete(folder->fd, "step-1", NULL), EVQ_OK);
    assert_int_equal(unlinkat(folder->fd, "step-1/model-00002-of-00003.safetensors", 0), 0);
    assert_status(evq_checkpoint_check_complete(folder->fd, "step-1", &err), EVQ_E_INCOMPLETE);
    assert_holds(err.message, "'model-00002-of-00003.safetensors' is not there (yet)");
    assert_int_equal(unlinkat(folder->fd, "step-1/model.safetensors.index.json", 0), 0);
    assert_status(evq_checkpoint_check_complete(folder->fd, "step-1", &err), EVQ_E_INCOMPLETE);
    assert_holds(err.message, "not yet their index");
    assert_int_equal(unlinkat(folder->fd, "step-1/model-00001-of-00003.safetensors", 0), 0);
    assert_int_equal(unlinkat(folder->fd, "step-1/model-00003-of-00003.safetensors", 0), 0);
    assert_status(evq_checkpoint_check_complete(folder->fd, "step-1", &err), EVQ_E_UNSUPPORTED);
    assert_holds(err.message, "no weights file");
}

static void layout_takes_the_one_weights_file_and_leaves_the_trainer_state(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;

    fixture_folder_mkdir(folder, "step-2");
    fixture_folder_write(folder, "step-2/optimizer.pt", "x", 1);
    fixture_folder_write(folder, "step-2/training_args.bin", "x", 1);
    fixture_folder_write(folder, "step-2/rng_state_0.pth", "x", 1);
    fixture_folder_write(folder, "step-2/config.json", "{}", 2);
    put(folder, "step-2/weights.safetensors", "{}", 0);
    assert_status_err(open_named(folder, "step-2", &checkpoint, &err), EVQ_OK, &err);
    assert_string_equal(checkpoint->files[0].name, "weights.safetensors");
    evq_checkpoint_close(checkpoint);
    put(folder, "step-2/other.safetensors", "{}", 0);
    assert_status(open_named(folder, "step-2", &checkpoint, &err), EVQ_E_UNSUPPORTED);
    assert_holds(err.message, "name the one to evaluate");
    put(folder, "step-2/model.safetensors", "{}", 0); // The name Transformers looks for decides.
    assert_status_err(open_named(folder, "step-2", &checkpoint, &err), EVQ_OK, &err);
    assert_string_equal(checkpoint->files[0].name, "model.safetensors");
    evq_checkpoint_close(checkpoint);
}

static void match_finds_the_prefix_by_the_expected_names(void **state)
{
    static const struct {
        const char *stored[4];
        const char *prefix; // NULL: refused.
        enum evq_status status;
        const char *holds;
    } cases[] = {
        {{"w", "b"}, "", EVQ_OK, NULL},
        {{"w", "b", "model.w", "model.b"}, "", EVQ_OK, NULL},
        {{"module.w", "module.b"}, "module.", EVQ_OK, NULL},
        {{"_orig_mod.module.w", "_orig_mod.module.b"}, "_orig_mod.module.", EVQ_OK, NULL},
        {{"module.w", "module.b", "ema.w", "ema.b"}, "module.", EVQ_OK, NULL},
        {{"net.body.w", "net.body.b", "net.head.w"}, "net.body.", EVQ_OK, NULL},
        {{"x.w", "x.b", "y.w", "y.b"}, NULL, EVQ_E_CONFLICT, "'x.' and under 'y.'"},
        {{"x.w", "y.b"}, NULL, EVQ_E_NOT_FOUND, "tensor 'b' is missing (under the prefix 'x.'"},
        {{"xw", "xb"}, NULL, EVQ_E_NOT_FOUND, "tensor 'w' is missing"},
    };
    static const char *const expected[] = {"w", "b"};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char header[1024] = "{";
        char prefix[EVQ_CHECKPOINT_PREFIX_BYTES] = "unset";
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_error err;
        for (size_t k = 0; k < 4 && cases[i].stored[k] != NULL; k++) {
            size_t at = strlen(header);
            (void)snprintf(header + at, sizeof(header) - at,
                           "%s\"%s\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                           k == 0 ? "" : ",", cases[i].stored[k], k, k + 1);
        }
        size_t count = 0;
        size_t missing = SIZE_MAX;
        while (count < 4 && cases[i].stored[count] != NULL) {
            count++;
        }
        strcat(header, "}");
        put(*state, "x.safetensors", header, count);
        assert_status(open_named(*state, "x.safetensors", &checkpoint, NULL), EVQ_OK);
        assert_status_err(
            evq_checkpoint_find_prefix(checkpoint, expected, 2, prefix, &missing, &err),
            cases[i].status, &err);
        if (cases[i].prefix != NULL) {
            assert_string_equal(prefix, cases[i].prefix);
            assert_non_null(evq_checkpoint_find_below(checkpoint, prefix, "w"));
        } else {
            assert_string_equal(prefix, "unset");
            assert_holds(err.message, cases[i].holds);
        }
        if (cases[i].status == EVQ_E_NOT_FOUND) { // Named by its place too.
            char named[32];
            (void)snprintf(named, sizeof(named), "tensor '%s'", expected[missing]);
            assert_holds(err.message, named);
        }
        evq_checkpoint_close(checkpoint);
    }
}

/* Eight at a time goes by the processor's instruction where there is one; one at a time never. */
static void convert_gives_every_half_the_same_value_by_ones_and_by_eights(void **state)
{
    enum { HALVES = 65536 };
    uint16_t *halves = malloc(HALVES * sizeof(*halves));
    float *values = malloc(HALVES * sizeof(*values));

    (void)state;
    for (unsigned i = 0; i < HALVES; i++) {
        halves[i] = (uint16_t)i;
    }
    assert_true(evq_convert_f32(EVQ_DTYPE_F16, halves, HALVES, values));
    for (unsigned i = 0; i < HALVES; i++) {
        float one;
        assert_true(evq_convert_f32(EVQ_DTYPE_F16, &halves[i], 1, &one));
        bool nan = (i & 0x7fff) > 0x7c00;
        assert_true(nan ? one != one && values[i] != values[i]
                        : memcmp(&one, &values[i], sizeof(one)) == 0);
    }
    free(halves);
    free(values);
}

static void json_skips_and_stops_at_the_depth_limit(void **state)
{
    char text[300];
    struct evq_json json;
    struct evq_json_token token;
    struct evq_error err;

    (void)state;
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    evq_json_init(&json, text, 128);
    assert_status(evq_json_next(&json, &token, NULL), EVQ_OK);
    assert_status(evq_json_skip(&json, &token, NULL), EVQ_OK);
    assert_status(evq_json_next(&json, &token, NULL), EVQ_OK);
    assert_int_equal(token.kind, EVQ_JSON_END);
    memset(text, '[', 65);
    evq_json_init(&json, text, 65);
    assert_status(evq_json_next(&json, &token, NULL), EVQ_OK);
    assert_status(evq_json_skip(&json, &token, &err), EVQ_E_LIMIT);
}

/* test_safetensors --measure MEGABYTES: how fast a header is read. Prints, asserts nothing. */
static int measure(size_t megabytes, bool shuffled)
{
    size_t limit = megabytes * 1000000;
    char *header = malloc(limit + 9);
    struct evq_checkpoint *checkpoint = NULL;
    struct timespec begin;
    struct timespec end;
    struct evq_error err;
    size_t at = 8;
    unsigned long long count = 0;
    void *state = NULL;

    header[at++] = '{';
    while (at + 250 < limit) {
        unsigned long long place = shuffled ? count * 7919 % 1000003 : count;
        at += (size_t)sprintf(header + at,
                              "%s\"model.layers.%06llu.mlp.experts.%03llu.down_proj.weight\":{"
                              "\"dtype\":\"BF16\",\"shape\":[0,"
                              "2048],\"data_offsets\":[0,0]}",
                              count == 0 ? "" : ",", place / 128, place % 128);
        count++;
    }
    header[at++] = '}';
    for (unsigned i = 0; i < 8; i++) {
        header[i] = (char)((uint64_t)(at - 8) >> (8 * i));
    }
    (void)fixture_folder_setup(&state);
    fixture_folder_write(state, "x.safetensors", header, at);
    free(header);
    // Processor time: what else runs on the machine does not count.
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    enum evq_status status = open_named(state, "x.safetensors", &checkpoint, &err);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    (void)printf("%s: header of %.1f MB, %llu tensors %s: %.3f s of processor time, %.0f MB/s\n",
                 status == EVQ_OK ? "read" : err.message, (double)at * 1e-6, count,
                 shuffled ? "in no order" : "in the order of their names", seconds,
                 (double)at * 1e-6 / seconds);
    evq_checkpoint_close(checkpoint);
    (void)fixture_folder_teardown(&state);
    return status == EVQ_OK ? 0 : 1;
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(safetensors_reads_what_the_reference_reads_from_every_fixture),
        TEST(safetensors_accepts_unusual_but_valid_headers),
        TEST(safetensors_gives_names_sorted_and_unescaped),
        TEST(safetensors_read_f32_handles_unaligned_data),
        TEST(safetensors_read_says_changed_when_the_file_shrinks_or_is_written_to),
        TEST(safetensors_reads_on_when_the_file_is_unlinked),
        TEST(safetensors_is_incomplete_when_cut_at_any_byte),
        TEST(sharded_is_incomplete_until_the_last_shard_is_there),
        TEST(layout_takes_the_one_weights_file_and_leaves_the_trainer_state),
        TEST(match_finds_the_prefix_by_the_expected_names),
        TEST(convert_gives_every_half_the_same_value_by_ones_and_by_eights),
        TEST(json_skips_and_stops_at_the_depth_limit),
    };

    if (argc == 3 && strcmp(argv[1], "--measure") == 0) {
        return measure((size_t)atoi(argv[2]), false) + measure((size_t)atoi(argv[2]), true);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
