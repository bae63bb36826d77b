#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/checkpoint/root_open.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"

static void populate(const struct fixture_folder *folder)
{
    fixture_folder_mkdir(folder, "root");
    fixture_folder_mkdir(folder, "root/step-1");
    fixture_folder_mkdir(folder, "outside");
    fixture_folder_write(folder, "outside/secret", "s", 1);
    fixture_folder_write(folder, "root/step-1/model", "m", 1);
    assert_int_equal(symlinkat("step-1", folder->fd, "root/latest"), 0);
    assert_int_equal(symlinkat("../root/step-1", folder->fd, "root/roundabout"), 0);
    assert_int_equal(symlinkat("../outside", folder->fd, "root/out"), 0);
    assert_int_equal(symlinkat("../../outside/secret", folder->fd, "root/step-1/out"), 0);
    assert_int_equal(symlinkat("/etc/hostname", folder->fd, "root/absolute"), 0);
    assert_int_equal(symlinkat("/proc/self/root", folder->fd, "root/magic"), 0);
    assert_int_equal(symlinkat("loop", folder->fd, "root/loop"), 0);
    assert_int_equal(mkfifoat(folder->fd, "root/fifo", 0644), 0);
}

static int open_root(const struct fixture_folder *folder)
{
    int fd = openat(folder->fd, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static void beneath_open_takes_files_and_links_that_stay_inside(void **state)
{
    static const char *const files[] = {"step-1/model", "./step-1/model", "step-1//model",
                                        "latest/model"};
    static const char *const folders[] = {"", ".", "step-1", "step-1/", "latest"};

    populate(*state);
    int root_fd = open_root(*state);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct evq_error err;
        int fd = -1;
        assert_status_err(evq_root_open(root_fd, files[i], false, &fd, &err), EVQ_OK, &err);
        assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        (void)close(fd);
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        struct evq_error err;
        int fd = -1;
        assert_status_err(evq_root_open(root_fd, folders[i], true, &fd, &err), EVQ_OK, &err);
        (void)close(fd);
    }
    (void)close(root_fd);
}

static void beneath_open_refuses_what_leaves_or_is_no_regular_file(void **state)
{
    static const struct {
        const char *path;
        enum evq_status status;
        const char *holds;
    } cases[] = {
        {"../outside/secret", EVQ_E_INVALID, "holds '..'"},
        {"step-1/../../outside/secret", EVQ_E_INVALID, "holds '..'"},
        {"step-1/..", EVQ_E_INVALID, "holds '..'"},
        {"..", EVQ_E_INVALID, "holds '..'"},
        {"/etc/hostname", EVQ_E_INVALID, "is absolute"},
        {"out/secret", EVQ_E_INVALID, "symbolic link"},
        {"step-1/out", EVQ_E_INVALID, "symbolic link"},
        {"roundabout/model", EVQ_E_INVALID, "symbolic link"},
        {"absolute", EVQ_E_INVALID, "symbolic link"},
        {"magic/etc/hostname", EVQ_E_INVALID, "symbolic link"},
        {"loop", EVQ_E_INVALID, "symbolic link"},
        {"fifo", EVQ_E_INVALID, "is not a regular file"},
        {"step-1", EVQ_E_INVALID, "is not a regular file"},
        {"nothing", EVQ_E_GONE, "'nothing' does not exist"},
        {"step-1/model/x", EVQ_E_GONE, "not a directory"},
        {"step-1/\x1b[31m", EVQ_E_GONE, "\\x1b"},
    };

    populate(*state);
    int root_fd = open_root(*state);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_error err;
        int fd = -7;
        assert_status_err(evq_root_open(root_fd, cases[i].path, false, &fd, &err), cases[i].status,
                          &err);
        assert_holds(err.message, cases[i].holds);
        assert_int_equal(fd, -7);
    }
    int fd = -7;
    assert_status(evq_root_open(root_fd, "step-1/model", true, &fd, NULL), EVQ_E_INVALID);
    (void)close(root_fd);
}

/* Where openat2 is missing no symbolic link at all is followed. */
static void beneath_walk_follows_no_link(void **state)
{
    static const struct {
        const char *path;
        int error;
    } cases[] = {
        {"step-1/model", 0},
        {"step-1//model", 0},
        {"./step-1/model", 0},
        {"step-1/", 0},
        {".", 0},
        {"latest/model", ENOTDIR},
        {"out/secret", ENOTDIR},
        {"step-1/out", ELOOP},
        {"absolute", ELOOP},
        {"magic/etc/hostname", ENOTDIR},
        {"nothing/x", ENOENT},
    };

    populate(*state);
    int root_fd = open_root(*state);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        errno = 0;
        int fd = evq_root_open_stepwise(root_fd, cases[i].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (cases[i].error == 0) {
            assert_true(fd >= 0);
            (void)close(fd);
        } else {
            assert_int_equal(fd, -1);
            assert_int_equal(errno, cases[i].error);
        }
    }
    (void)close(root_fd);
}

static void beneath_open_refuses_a_socket_and_a_name_too_long(void **state)
{
    const struct fixture_folder *folder = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct evq_error err;
    char name[400];
    int fd = -1;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", folder->path);
    int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(socket_fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_status(evq_root_open(folder->fd, "socket", false, &fd, &err), EVQ_E_INVALID);
    assert_holds(err.message, "is not a regular file");
    (void)close(socket_fd);
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_status(evq_root_open(folder->fd, name, false, &fd, &err), EVQ_E_INVALID);
    assert_holds(err.message, "longer than a path may be");
    assert_int_equal(evq_root_open_stepwise(folder->fd, name, O_RDONLY), -1);
    assert_int_equal(errno, ENAMETOOLONG);
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(beneath_open_takes_files_and_links_that_stay_inside),
        TEST(beneath_open_refuses_what_leaves_or_is_no_regular_file),
        TEST(beneath_walk_follows_no_link),
        TEST(beneath_open_refuses_a_socket_and_a_name_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
