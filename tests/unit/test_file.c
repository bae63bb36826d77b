/*
 * Whole reads and writes, replacing a file, making directories.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "tests/fixture/redis.h"

struct place {
    char dir[64];
    char path[96];
    struct evq_buffer text;
    struct evq_error err;
};

static int setup(void **state)
{
    static struct place place;

    fixture_dir_make(place.dir);
    (void)snprintf(place.path, sizeof place.path, "%s/file", place.dir);
    evq_buffer_init(&place.text, 0);
    *state = &place;
    return 0;
}

static int teardown(void **state)
{
    struct place *place = *state;

    evq_buffer_free(&place->text);
    fixture_dir_remove(place->dir);
    return 0;
}

static void file_read_refuses_what_is_absent_long_or_no_file(void **state)
{
    struct place *place = *state;

    assert_status(evq_file_read(AT_FDCWD, place->path, 0, 9, &place->text, &place->err),
                  EVQ_E_NOT_FOUND);
    assert_status(evq_file_read(AT_FDCWD, place->dir, 0, 9, &place->text, &place->err),
                  EVQ_E_INVALID);
    assert_int_equal(mkfifo(place->path, 0600), 0);
    assert_status(evq_file_read(AT_FDCWD, place->path, 0, 9, &place->text, &place->err),
                  EVQ_E_INVALID);
    assert_status_err(evq_file_replace(place->path, "0123456789", 10, 0600, &place->err), EVQ_OK,
                      &place->err);
    assert_status(evq_file_read(AT_FDCWD, place->path, 0, 9, &place->text, &place->err),
                  EVQ_E_LIMIT);
    assert_int_equal(place->text.bytes, 0);
    assert_status_err(evq_file_read(AT_FDCWD, place->path, 0, 10, &place->text, &place->err),
                      EVQ_OK, &place->err);
    assert_string_equal(evq_buffer_string(&place->text), "0123456789");
}

static void file_read_follows_no_link_when_told(void **state)
{
    struct place *place = *state;
    char link[96];

    (void)snprintf(link, sizeof link, "%s/link", place->dir);
    assert_status(evq_file_replace(place->path, "x", 1, 0600, &place->err), EVQ_OK);
    assert_int_equal(symlink("file", link), 0);
    assert_status(evq_file_read(AT_FDCWD, link, O_NOFOLLOW, 9, &place->text, &place->err),
                  EVQ_E_IO);
    assert_status(evq_file_read(AT_FDCWD, link, 0, 9, &place->text, &place->err), EVQ_OK);
}

static void file_replace_takes_the_mode_and_leaves_nothing_beside(void **state)
{
    struct place *place = *state;
    char beside[104];
    struct stat info;

    (void)snprintf(beside, sizeof beside, "%s.tmp", place->path);
    assert_status(evq_file_replace(place->path, "old", 3, 0644, &place->err), EVQ_OK);
    assert_status(evq_file_replace(place->path, "new", 3, 0600, &place->err), EVQ_OK);
    assert_int_equal(stat(place->path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_size, 3);
    assert_int_not_equal(access(beside, F_OK), 0);
    assert_status(evq_file_replace("/nowhere/at/all", "new", 3, 0600, &place->err), EVQ_E_IO);
}

static void file_read_at_and_write_at_move_all_bytes_or_say_so(void **state)
{
    struct place *place = *state;
    char out[8] = "";

    const int fd = open(place->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_status(evq_file_write(fd, "abc", 3, "f", &place->err), EVQ_OK);
    assert_status(evq_file_write_at(fd, "XY", 2, 2, "f", &place->err), EVQ_OK);
    assert_status(evq_file_read_at(fd, out, 4, 0, "f", &place->err), EVQ_OK);
    assert_memory_equal(out, "abXY", 4);
    assert_status(evq_file_read_at(fd, out, 4, 1, "f", &place->err), EVQ_E_CORRUPT);
    assert_int_equal(close(fd), 0);
    assert_status(evq_file_write(-1, "abc", 3, "f", &place->err), EVQ_E_IO);
}

static void file_make_directories_makes_what_is_missing_again_and_again(void **state)
{
    struct place *place = *state;
    char deep[160];
    struct stat info;

    (void)snprintf(deep, sizeof deep, "%s/a//b/c/", place->dir);
    for (int i = 0; i < 2; i++) {
        assert_status_err(evq_file_make_directories(deep, 0700, &place->err), EVQ_OK, &place->err);
    }
    assert_int_equal(stat(deep, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    assert_status(evq_file_replace(place->path, "x", 1, 0600, &place->err), EVQ_OK);
    (void)snprintf(deep, sizeof deep, "%s/file/below", place->dir);
    assert_status(evq_file_make_directories(deep, 0700, &place->err), EVQ_E_IO);
    assert_status(evq_file_make_directories("", 0700, &place->err), EVQ_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(file_read_refuses_what_is_absent_long_or_no_file, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(file_read_follows_no_link_when_told, setup, teardown),
        cmocka_unit_test_setup_teardown(file_replace_takes_the_mode_and_leaves_nothing_beside,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(file_read_at_and_write_at_move_all_bytes_or_say_so, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(file_make_directories_makes_what_is_missing_again_and_again,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
