#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/golden.h"

static const struct fixture_golden fixtures[] = {
    {"torch_legacy/simple_legacy.pt", "", 3},  {"torch_legacy/legacy_shared_storage.pt", "", 3},
    {"made/legacy.pth.tar", "state_dict.", 2}, {"made/legacy_dtypes.pt", "", 15},
    {"made/legacy_empty.pt", "", 1},           {"made/legacy_module.pt", "", 8},
    {"made/legacy_protocol4.pt", "", 2},       {"made/legacy_views.pt", "", 11},
};

static void legacy_reads_what_torch_reads_from_every_fixture(void **state)
{
    (void)state;
    fixture_golden_check_all(fixtures, sizeof(fixtures) / sizeof(fixtures[0]));
}

static void legacy_takes_the_dict_that_key_asks_for_and_finds_scalars(void **state)
{
    const struct evq_checkpoint_options optimizer = {.key = "optimizer"};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_scalar scalar;
    int root_fd = fixture_golden_root();

    (void)state;
    assert_int_equal(fixture_golden_check("made/legacy.pth.tar", "optimizer.", &optimizer), 1);
    assert_status(evq_checkpoint_open(root_fd, "made/legacy.pth.tar", NULL, &checkpoint, NULL),
                  EVQ_OK);
    assert_true(evq_checkpoint_scalar(checkpoint, "optimizer.state.0.step", &scalar));
    assert_int_equal(scalar.integer, 7);
    evq_checkpoint_close(checkpoint);
    (void)close(root_fd);
}

static void legacy_is_incomplete_when_cut_at_any_byte(void **state)
{
    const struct fixture_folder *folder = *state;
    size_t cuts = 0;

    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); i++) {
        char path[512];
        size_t bytes = 0;
        (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/checkpoints/%s", fixtures[i].file);
        uint8_t *data = fixture_file_load(path, &bytes);
        for (size_t left = bytes <= 3000 ? bytes - 1 : 0; left >= 32;
             left--) { // The magic is there.
            struct evq_error err;
            fixture_folder_write(folder, "x.pt", data, left);
            assert_status_err(evq_checkpoint_check_complete(folder->fd, "x.pt", &err),
                              EVQ_E_INCOMPLETE, &err);
            cuts++;
        }
        free(data);
    }
    assert_true(cuts > 2000);
    print_message("%zu cuts\n", cuts);
}

#define MAGIC              "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define PROTOCOL           "\x80\2M\xe9\3."
#define LITTLE             "\x80\2}X\x0d\0\0\0little_endian\x88s."
#define TEXT(length, text) "X" length "\0\0\0" text
#define STORAGE(type, key, numel, part)                                                            \
    "(" TEXT("\7", "storage") "ctorch\n" type "\n" TEXT("\1", key) TEXT("\3", "cpu") numel part "tQ"
#define TENSOR(storage, offset, size)                                                              \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage offset size "\x85K\1\x85\x89}tR"
#define ONE(tensor) "\x80\2}" TEXT("\1", "w") tensor "s."
#define FLOATS2     STORAGE("FloatStorage", "0", "K\2", "N")
#define GOOD        ONE(TENSOR(FLOATS2, "K\0", "K\2"))
#define KEYS        "\x80\2]" TEXT("\1", "0") "a."
#define COUNT2      "\2\0\0\0\0\0\0\0"
#define DATA2       "\0\0\x80\x3f\0\0\0\x40"

static const struct {
    const char *stream;
    size_t bytes;
    enum evq_status status;
    const char *holds;
} streams[] = {
#define CASE(stream, status, holds)                                                                \
    {                                                                                              \
        stream, sizeof(stream) - 1, status, holds                                                  \
    }
    CASE(MAGIC, EVQ_E_INCOMPLETE, "still being written"),
    CASE(MAGIC PROTOCOL, EVQ_E_INCOMPLETE, "still being written"),
    CASE(MAGIC PROTOCOL LITTLE, EVQ_E_INCOMPLETE, "still being written"),
    CASE(MAGIC PROTOCOL LITTLE GOOD, EVQ_E_INCOMPLETE, "still being written"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS, EVQ_E_INCOMPLETE, "ends before all storages"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS "\2\0\0", EVQ_E_INCOMPLETE, "ends before all storages"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS COUNT2, EVQ_E_INCOMPLETE, "ends inside a storage"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS COUNT2 "\0\0\x80\x3f", EVQ_E_INCOMPLETE,
         "ends inside a storage"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS COUNT2 DATA2 "x", EVQ_E_CORRUPT,
         "1 bytes follow the last storage"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS "\1\0\0\0\0\0\0\0" DATA2, EVQ_E_CORRUPT,
         "storage '0' has another count of elements in the stream"),
    CASE(MAGIC PROTOCOL LITTLE GOOD KEYS "\xff\xff\xff\xff\xff\xff\xff\xff" DATA2, EVQ_E_CORRUPT,
         "has another count of elements"),
    CASE(MAGIC PROTOCOL LITTLE GOOD "\x80\2]." COUNT2 DATA2, EVQ_E_CORRUPT,
         "storage '0' is not in the stream"),
    CASE(MAGIC PROTOCOL LITTLE GOOD "\x80\2}." COUNT2 DATA2, EVQ_E_CORRUPT,
         "its storage keys are no list"),
    CASE(MAGIC PROTOCOL LITTLE GOOD "\x80\2N." COUNT2 DATA2, EVQ_E_CORRUPT,
         "its storage keys are no list"),
    CASE(MAGIC PROTOCOL LITTLE GOOD "\x80\2]" TEXT("\1", "1") "a." COUNT2 DATA2, EVQ_E_CORRUPT,
         "storage '1' is listed, but no tensor names it"),
    CASE(MAGIC PROTOCOL LITTLE GOOD "\x80\2]K\0a." COUNT2 DATA2, EVQ_E_CORRUPT,
         "storage '(no text)' is listed"),
    CASE(MAGIC PROTOCOL LITTLE GOOD "\x80\2](" TEXT("\1", "0")
             TEXT("\1", "0") "e." COUNT2 DATA2 COUNT2 DATA2,
         EVQ_E_CORRUPT, "storage '0' is listed twice"),
    CASE(MAGIC "\x80\2K\1." LITTLE GOOD KEYS COUNT2 DATA2, EVQ_E_UNSUPPORTED,
         "its protocol number is not 1001"),
    CASE(MAGIC "\x80\2N." LITTLE GOOD KEYS COUNT2 DATA2, EVQ_E_UNSUPPORTED,
         "its protocol number is not 1001"),
    CASE(MAGIC PROTOCOL "\x80\2}." GOOD KEYS COUNT2 DATA2, EVQ_E_CORRUPT,
         "does not say whether it is little_endian"),
    CASE(MAGIC PROTOCOL "\x80\2]." GOOD KEYS COUNT2 DATA2, EVQ_E_CORRUPT,
         "does not say whether it is little_endian"),
    CASE(MAGIC PROTOCOL "\x80\2}X\x0d\0\0\0little_endianK\1s." GOOD KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "does not say whether it is little_endian"),
    CASE(MAGIC PROTOCOL "\x80\2}X\x0d\0\0\0little_endian\x89s." GOOD KEYS COUNT2 DATA2,
         EVQ_E_UNSUPPORTED, "it is not little-endian"),
    CASE(MAGIC "\x80\1.", EVQ_E_CORRUPT, "expected one protocol number of 2 to 5"),
    CASE(MAGIC "I1\n.", EVQ_E_CORRUPT, "expected a protocol number first"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2(.", EVQ_E_CORRUPT, "exactly one value at the end"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2"
                               "cos\nsystem\n" TEXT("\2", "id") "\x85R.",
         EVQ_E_INVALID, "'os.system', which no checkpoint needs"),
    // The object.
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(FLOATS2, "K\0", "K\3")) KEYS COUNT2 DATA2, EVQ_E_CORRUPT,
         "tensor 'w': it reaches to element 2 of a storage that has 2"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(FLOATS2, "K\1", "K\2")) KEYS COUNT2 DATA2, EVQ_E_CORRUPT,
         "it reaches to element 2 of a storage that has 2"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(STORAGE("FloatStorage", "0", "K\2", ""), "K\0", "K\3"))
             KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "it reaches to element 2"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(STORAGE("QInt8Storage", "0", "K\2", "N"), "K\0", "K\2"))
             KEYS COUNT2 DATA2,
         EVQ_E_UNSUPPORTED, "legacy stream: its storage is of type QInt8Storage"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(STORAGE("FloatStorage", "0", "K\2", "K\1"), "K\0", "K\2"))
             KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "a part that reaches outside the whole"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(
             STORAGE("FloatStorage", "0", "K\2", TEXT("\1", "v") "K\1K\2\x87"), "K\0", "K\1"))
             KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "a part that reaches outside the whole"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(
             STORAGE("FloatStorage", "0", "K\2", TEXT("\1", "v") "K\3K\0\x87"), "K\0", "K\1"))
             KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "a part that reaches outside the whole"),
    CASE(MAGIC PROTOCOL LITTLE ONE(
             TENSOR(STORAGE("FloatStorage", "0", "K\2", TEXT("\1", "v") "J\xff\xff\xff\xffK\1\x87"),
                    "K\0", "K\1")) KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "a part that reaches outside the whole"),
    CASE(MAGIC PROTOCOL LITTLE ONE(TENSOR(
             STORAGE("FloatStorage", "0", "K\2", TEXT("\1", "v") "K\1K\1\x87"), "K\0", "K\2"))
             KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "it reaches to element 1 of a storage that has 1"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2(" STORAGE("FloatStorage", "0", "K\2", "N")
             STORAGE("FloatStorage", "0", "K\3", "N") "t." KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "storage '0' is said to have two sizes"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2(" STORAGE("FloatStorage", "0", "K\2", "N")
             STORAGE("DoubleStorage", "0", "K\2", "N") "t." KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "storage '0' is said to have two sizes"),
    CASE(MAGIC PROTOCOL LITTLE
         "\x80\2" STORAGE("FloatStorage", "0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
                          "N") "." KEYS COUNT2 DATA2,
         EVQ_E_CORRUPT, "storage '0' has a size that overflows"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2NQ." KEYS COUNT2 DATA2, EVQ_E_CORRUPT,
         "its storage is not ('storage'"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2)Q." KEYS COUNT2 DATA2, EVQ_E_CORRUPT,
         "its storage is not ('storage'"),
    CASE(MAGIC PROTOCOL LITTLE "\x80\2}.\x80\2].", EVQ_E_NOT_FOUND, "holds no tensors"),
    CASE(MAGIC PROTOCOL LITTLE
         "\x80\2" STORAGE("FloatStorage", "0", "K\2", "N") "." KEYS COUNT2 DATA2,
         EVQ_E_NOT_FOUND, "holds no tensors"), // A storage is none.
};

static void legacy_refuses_every_hostile_stream_with_the_fault(void **state)
{
    static const char good[] = MAGIC PROTOCOL LITTLE GOOD KEYS COUNT2 DATA2;
    static const char part[] = MAGIC PROTOCOL LITTLE ONE(
        TENSOR(STORAGE("FloatStorage", "0", "K\2", TEXT("\1", "v") "K\1K\1\x87"), "K\0", "K\1"))
        KEYS COUNT2 DATA2;
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    float values[2] = {0, 0};

    fixture_folder_write(folder, "x.pt", good, sizeof(good) - 1); // What the others are bent from.
    assert_status_err(evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err), EVQ_OK,
                      &err);
    assert_status(evq_checkpoint_read_f32(checkpoint, &checkpoint->tensors[0], values, 2, NULL),
                  EVQ_OK);
    assert_true(values[0] == 1.0f && values[1] == 2.0f);
    evq_checkpoint_close(checkpoint);
    fixture_folder_write(folder, "x.pt", part, sizeof(part) - 1); // A part of a storage.
    assert_status_err(evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err), EVQ_OK,
                      &err);
    assert_status(evq_checkpoint_read_f32(checkpoint, &checkpoint->tensors[0], values, 1, NULL),
                  EVQ_OK);
    assert_true(values[0] == 2.0f);
    evq_checkpoint_close(checkpoint);
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        checkpoint = NULL;
        fixture_folder_write(folder, "x.pt", streams[i].stream, streams[i].bytes);
        enum evq_status status = evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err);
        if (status != streams[i].status || strstr(err.message, streams[i].holds) == NULL) {
            fail_msg("stream %zu: %s '%s', wanted %s '%s'", i, evq_status_name(status),
                     status == EVQ_OK ? "" : err.message, evq_status_name(streams[i].status),
                     streams[i].holds);
        }
        assert_holds(err.message, "x.pt");
        assert_null(checkpoint);
    }
    print_message("%zu hostile streams refused\n", sizeof(streams) / sizeof(streams[0]));
}

/* Pickles larger than the first window, and larger than is allowed. */
static void legacy_reads_pickles_larger_than_its_first_window(void **state)
{
    static const char head[] = MAGIC PROTOCOL LITTLE "\x80\2}(" TEXT("\4", "note") "X";
    static const char tail[] = TEXT("\1", "w") TENSOR(FLOATS2, "K\0", "K\2") "u." KEYS COUNT2 DATA2;
    const struct fixture_folder *folder = *state;
    const struct evq_checkpoint_options small = {.header_bytes_max = 2 << 20};
    const uint32_t text_bytes = 5u << 20;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_buffer stream;
    struct evq_error err;

    evq_buffer_init(&stream, 0);
    evq_buffer_append(&stream, head, sizeof(head) - 1);
    const uint8_t length[4] = {0, 0, 0x50, 0}; // text_bytes, little-endian.
    evq_buffer_append(&stream, length, sizeof(length));
    char *text = calloc(1, text_bytes);
    memset(text, 'n', text_bytes);
    evq_buffer_append(&stream, text, text_bytes);
    free(text);
    evq_buffer_append(&stream, tail, sizeof(tail) - 1);
    fixture_folder_write(folder, "x.pt", stream.data, stream.bytes);
    assert_status_err(evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err), EVQ_OK,
                      &err);
    assert_int_equal(checkpoint->tensor_count, 1);
    evq_checkpoint_close(checkpoint);
    assert_status(evq_checkpoint_open(folder->fd, "x.pt", &small, &checkpoint, &err), EVQ_E_LIMIT);
    assert_holds(err.message, "its pickles take more than 2097152 bytes");
    evq_buffer_free(&stream);
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(legacy_reads_what_torch_reads_from_every_fixture),
        TEST(legacy_takes_the_dict_that_key_asks_for_and_finds_scalars),
        TEST(legacy_is_incomplete_when_cut_at_any_byte),
        TEST(legacy_refuses_every_hostile_stream_with_the_fault),
        TEST(legacy_reads_pickles_larger_than_its_first_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
