/*
 * What was prepared and is no longer in use goes, least recently used first, and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/config/config.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/child/kept_directory.h"
#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/prepare.h"

static const char *replaced = ""; // A lock that another worker makes anew just before it is taken.
static const char *removed = "";  // A directory that another worker removes just before its use.

/* The linker's names for what stands behind and before a wrapped function. */
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation)
{
    if (operation == (LOCK_EX | LOCK_NB) && replaced[0] != '\0') {
        assert_int_equal(unlink(replaced), 0);
        const int other = open(replaced, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(other >= 0);
        assert_int_equal(close(other), 0);
        replaced = "";
    }
    if (operation == (LOCK_SH | LOCK_NB) && removed[0] != '\0' && access(removed, F_OK) == 0) {
        const char *path = removed;
        removed = "";
        assert_true(evq_kept_directory_remove(path));
    }
    return __real_flock(fd, operation);
}

static bool is_there(const struct fixture_folder *folder, const char *name)
{
    return faccessat(folder->fd, name, F_OK, 0) == 0;
}

/* Two workers prune at once: one removes the oldest and its lock, and a third prepares it again
 * before the other has the lock that it had opened. */
static void prepared_of_another_stays_when_its_lock_was_made_anew(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_config config = {0};
    const struct evq_eval_request request = {.config = &config};
    const struct evq_eval_report report = {0};
    struct evq_prepared prepared = {.lock_fd = -1};
    struct evq_failure failure = {0};
    struct evq_error err;
    char lock[96];
    char name[32];

    config.worker.scratch = folder->path;
    fixture_folder_mkdir(folder, "prepared");
    for (int i = 0; i <= EVQ_PREPARE_KEPT + 1; i++) { // Two are too many.
        const struct timespec used[2] = {{.tv_sec = 1600000000 + i}, {.tv_sec = 1600000000 + i}};
        (void)snprintf(name, sizeof(name), "prepared/k%d.lock", i);
        fixture_folder_write(folder, name, "", 0);
        name[strlen(name) - strlen(".lock")] = '\0';
        fixture_folder_mkdir(folder, name);
        assert_int_equal(utimensat(folder->fd, name, used, 0), 0);
    }
    (void)snprintf(lock, sizeof(lock), "%s/prepared/k0.lock", folder->path);
    replaced = lock;
    (void)snprintf(name, sizeof(name), "k%d", EVQ_PREPARE_KEPT + 1);
    assert_status_err(
        evq_prepare_open(NULL, NULL, name, &request, &report, &prepared, &failure, &err), EVQ_OK,
        &err);
    evq_prepare_close(&prepared);
    assert_string_equal(replaced, "");
    assert_true(is_there(folder, "prepared/k0"));
    assert_true(is_there(folder, "prepared/k0.lock"));
    assert_false(is_there(folder, "prepared/k1"));
    assert_false(is_there(folder, "prepared/k1.lock"));
    assert_true(is_there(folder, "prepared/k2"));
}

static enum evq_status progress_ok(void *context, int64_t done, int64_t total, const char *status)
{
    (void)context;
    (void)done;
    (void)total;
    (void)status;
    return EVQ_OK;
}

/* The directory is removed between its making and its use. It is made again, and is then locked for
 * others that would remove it, but not for others that use it. */
static void prepared_is_made_again_when_it_was_removed_before_its_use(void **state)
{
    static const char *const argv[] = {
        "/bin/sh", "-c",
        "[ -e ${EVALQ_OUTPUT%.partial}.lock ] && echo x >>$RUNS && echo x >$EVALQ_OUTPUT/x", NULL};
    const struct fixture_folder *folder = *state;
    struct evq_config config = {0};
    const struct evq_suite suite = {.name = "s", .limit_seconds = 600};
    const struct evq_eval_report report = {.progress = progress_ok};
    const struct evq_program_place place = {.devices = ""};
    struct evq_prepared prepared = {.lock_fd = -1};
    struct evq_failure failure = {0};
    struct evq_error err;
    struct stat info;
    char runs[96];
    char path[96];
    char lock[128];

    config.worker.scratch = folder->path;
    (void)snprintf(runs, sizeof(runs), "%s/runs", folder->path);
    (void)snprintf(path, sizeof(path), "%s/prepared/k", folder->path);
    (void)snprintf(lock, sizeof(lock), "%s.lock", path);
    const struct evq_pair env = {"RUNS", runs};
    const struct evq_evaluator evaluator = {.name = "p",
                                            .argv = argv,
                                            .argc = 3,
                                            .env = &env,
                                            .env_count = 1,
                                            .directory = "",
                                            .results = "",
                                            .settings = ""};
    const struct evq_eval_request request = {.config = &config,
                                             .suite = &suite,
                                             .root_path = folder->path,
                                             .path = ".",
                                             .prepared = "",
                                             .shard = -1,
                                             .scratch = folder->path,
                                             .attempt = 1};
    fixture_folder_mkdir(folder, "prepared");
    removed = path;
    assert_status_err(
        evq_prepare_open(&evaluator, &place, "k", &request, &report, &prepared, &failure, &err),
        EVQ_OK, &err);
    assert_string_equal(removed, "");
    assert_int_equal(stat(runs, &info), 0);
    assert_int_equal(info.st_size, 4); // It ran twice.
    assert_true(is_there(folder, "prepared/k/x"));
    const int other = open(lock, O_RDWR | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(__real_flock(other, LOCK_SH | LOCK_NB), 0);
    assert_int_equal(close(other), 0);
    assert_false(evq_kept_directory_remove(path));
    evq_prepare_close(&prepared);
    assert_true(evq_kept_directory_remove(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(prepared_of_another_stays_when_its_lock_was_made_anew,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(prepared_is_made_again_when_it_was_removed_before_its_use,
                                        fixture_folder_setup, fixture_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
