#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/datasets/token_file.h"

#define HEADER_BYTES 1024

struct file { // A token file while it is put together.
    uint8_t data[4096];
    size_t bytes;
};

static void put(struct file *file, uint32_t value, size_t bytes)
{
    assert_true(file->bytes + bytes <= sizeof(file->data));
    for (size_t i = 0; i < bytes; i++) {
        file->data[file->bytes++] = (uint8_t)(value >> (8 * i));
    }
}

static void put_header(struct file *file, uint32_t magic, uint32_t version, uint32_t count)
{
    put(file, magic, 4);
    put(file, version, 4);
    put(file, count, 4);
    while (file->bytes < HEADER_BYTES) {
        put(file, 0, 4);
    }
}

static void put_npy(struct file *file, const char *descr, const char *shape)
{
    char text[128];

    const int bytes =
        snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }\n",
                 descr, shape);
    memcpy(file->data, "\x93NUMPY\1\0", 8);
    file->bytes = 8;
    put(file, (uint32_t)bytes, 2);
    memcpy(file->data + file->bytes, text, (size_t)bytes);
    file->bytes += (size_t)bytes;
}

static enum evq_status read_tokens(const struct fixture_folder *folder, const struct file *file,
                                   const char *dtype, size_t limit, struct evq_tokens *tokens,
                                   struct evq_error *err)
{
    char path[128];

    fixture_folder_write(folder, "x", file->data, file->bytes);
    (void)snprintf(path, sizeof(path), "%s/x", folder->path);
    const struct evq_token_file_source source = {path, dtype, 1000, limit};
    return evq_token_file_read(&source, tokens, err);
}

/* The file must hold 7, 300, 50256. */
static void expect(const struct fixture_folder *folder, const struct file *file, const char *dtype)
{
    struct evq_tokens tokens = {0};
    struct evq_error err = {.status = EVQ_OK};

    assert_status_err(read_tokens(folder, file, dtype, 0, &tokens, &err), EVQ_OK, &err);
    assert_int_equal(tokens.count, 3);
    assert_int_equal(tokens.ids[0], 7);
    assert_int_equal(tokens.ids[1], 300);
    assert_int_equal(tokens.ids[2], 50256);
    assert_status_err(read_tokens(folder, file, dtype, 2, &tokens, &err), EVQ_OK, &err);
    assert_int_equal(tokens.count, 5); // Appended, two of them.
    assert_int_equal(tokens.ids[4], 300);
    evq_tokens_free(&tokens);
}

static void put_three(struct file *file, size_t bytes)
{
    put(file, 7, bytes);
    put(file, 300, bytes);
    put(file, 50256, bytes);
}

static void tokens_are_read_from_every_kind_of_file(void **state)
{
    const struct fixture_folder *folder = *state;
    struct file file = {.bytes = 0};

    put_three(&file, 2);
    expect(folder, &file, "u16");
    file.bytes = 0;
    put_three(&file, 4);
    expect(folder, &file, "u32");
    file.bytes = 0;
    put_header(&file, 20240520, 1, 3);
    put_three(&file, 2);
    expect(folder, &file, "");
    expect(folder, &file, "u16");
    file.bytes = 0;
    put_header(&file, 20240801, 7, 3);
    put_three(&file, 4);
    expect(folder, &file, "");
    put_npy(&file, "<u2", "3,");
    put_three(&file, 2);
    expect(folder, &file, "");
    put_npy(&file, "<i4", "3,");
    put_three(&file, 4);
    expect(folder, &file, "");
    put_npy(&file, "<u4", "3,");
    put_three(&file, 4);
    expect(folder, &file, "");
}

static size_t refused;

static void refuse(const struct fixture_folder *folder, const struct file *file, const char *dtype,
                   enum evq_status want, const char *holds)
{
    struct evq_tokens tokens = {0};
    struct evq_error err = {.status = EVQ_OK};

    const enum evq_status status = read_tokens(folder, file, dtype, 0, &tokens, &err);
    if (status != want || strstr(err.message, holds) == NULL) {
        fail_msg("%s '%s', wanted %s '%s'", evq_status_name(status), err.message,
                 evq_status_name(want), holds);
    }
    assert_int_equal(tokens.count, 0);
    evq_tokens_free(&tokens);
    refused++;
}

static void tokens_of_a_file_with_a_wrong_header_are_refused(void **state)
{
    const struct fixture_folder *folder = *state;
    struct file file = {.bytes = 0};

    put_header(&file, 20240520, 2, 3);
    refuse(folder, &file, "", EVQ_E_UNSUPPORTED, "version 2, expected 1");
    file.bytes = 0;
    put_header(&file, 20240801, 1, 3);
    refuse(folder, &file, "", EVQ_E_UNSUPPORTED, "version 1, expected 7");
    file.bytes = 0;
    put_header(&file, 20240522, 1, 3);
    refuse(folder, &file, "", EVQ_E_UNSUPPORTED, "file of choices");
    file.bytes = 0;
    put_header(&file, 20240520, 1, 3);
    refuse(folder, &file, "", EVQ_E_CORRUPT, "holds 1024 bytes, expected 1030");
    put_three(&file, 2);
    put(&file, 0, 1);
    refuse(folder, &file, "", EVQ_E_CORRUPT, "holds 1031 bytes, expected 1030");
    file.bytes--;
    refuse(folder, &file, "u32", EVQ_E_INVALID, "u16 tokens by its header, not u32");
    file.bytes = 0;
    put_header(&file, 20240520, 1, 0);
    refuse(folder, &file, "", EVQ_E_INVALID, "no tokens");
    file.bytes = 0;
    put_header(&file, 20240520, 1, UINT32_MAX);
    refuse(folder, &file, "", EVQ_E_CORRUPT, "expected 8589935614");
    file.bytes = 0;
    put_header(&file, 20240520, 1, 1001);
    for (size_t i = 0; i < 1001; i++) {
        put(&file, 1, 2);
    }
    refuse(folder, &file, "", EVQ_E_LIMIT, "1001 tokens, expected at most 1000");
}

static void tokens_of_a_plain_file_are_refused_when_they_cannot_be(void **state)
{
    const struct fixture_folder *folder = *state;
    struct file file = {.bytes = 0};

    refuse(folder, &file, "u16", EVQ_E_INVALID, "no tokens");
    put_three(&file, 2);
    refuse(folder, &file, "", EVQ_E_INVALID, "set dtype: u16 or dtype: u32");
    refuse(folder, &file, "u32", EVQ_E_CORRUPT, "6 bytes, which is not a whole number of u32");
    refuse(folder, &file, "int8", EVQ_E_INVALID, "dtype 'int8'");
    put(&file, 0, 1);
    refuse(folder, &file, "u16", EVQ_E_CORRUPT, "7 bytes");
    file.bytes = 0;
    put(&file, 1, 4);
    put(&file, 0x80000000u, 4);
    refuse(folder, &file, "u32", EVQ_E_CORRUPT, "token 1 is 2147483648, expected 0 to 2147483647");
}

static void tokens_of_an_npy_file_are_refused_when_they_are_none(void **state)
{
    const struct fixture_folder *folder = *state;
    struct file file = {.bytes = 0};

    put_npy(&file, "<f4", "1,");
    put(&file, 0, 4);
    refuse(folder, &file, "", EVQ_E_UNSUPPORTED, "expected whole numbers in one");
    put_npy(&file, "<i4", "1, 1");
    put(&file, 0, 4);
    refuse(folder, &file, "", EVQ_E_UNSUPPORTED, "2 dimensions");
    put_npy(&file, "<i4", "2,");
    put(&file, 0, 4);
    put(&file, UINT32_MAX, 4);
    refuse(folder, &file, "", EVQ_E_CORRUPT, "token 1 is -1");
    put_npy(&file, "<i4", "2,");
    put(&file, 0, 4);
    refuse(folder, &file, "", EVQ_E_CORRUPT, "bytes of values");
    put_npy(&file, "<u2", "1001,");
    for (size_t i = 0; i < 1001; i++) {
        put(&file, 1, 2);
    }
    refuse(folder, &file, "", EVQ_E_LIMIT, "1001 tokens");
    memcpy(file.data, "\x93NUMPY\1\0", 8);
    file.bytes = 8;
    refuse(folder, &file, "", EVQ_E_CORRUPT, "ends too early");
}

static void tokens_of_no_file_are_refused(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_tokens tokens = {0};
    struct evq_error err = {.status = EVQ_OK};
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/none", folder->path);
    struct evq_token_file_source source = {path, "u16", 1000, 0};
    assert_status(evq_token_file_read(&source, &tokens, &err), EVQ_E_NOT_FOUND);
    assert_holds(err.message, path);
    source.path = folder->path;
    assert_status(evq_token_file_read(&source, &tokens, &err), EVQ_E_INVALID);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokens_are_read_from_every_kind_of_file),
        TEST(tokens_of_a_file_with_a_wrong_header_are_refused),
        TEST(tokens_of_a_plain_file_are_refused_when_they_cannot_be),
        TEST(tokens_of_an_npy_file_are_refused_when_they_are_none),
        TEST(tokens_of_no_file_are_refused),
    };

    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("%zu files of tokens refused\n", refused);
    return failed;
}
