/*
 * Remote checkpoints without a store: addresses, the helper's answers, and the cache. A shell
 * script stands for the helper; tests/peers/test_remote.py has the real one and a real store.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/remote/address.h"
#include "shared/remote/remote.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/child/checkpoint_cache.h"
#include "worker/child/kept_directory.h"
#include "worker/child/remote_fetch.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C "cccccccccccccccccccccccccccccccc"

static void address_is_normalized_or_refused(void **state)
{
    static const struct {
        const char *text;
        const char *want; // The address, or a part of the error.
        bool good;
    } cases[] = {
        {"s3://bucket/run/step-5", "s3://bucket/run/step-5", true},
        {"s3://bucket//run/./step-5//", "s3://bucket/run/step-5", true},
        {"gs://bucket", "gs://bucket", true},
        {"hf://org/name@main/step-5", "hf://org/name@main/step-5", true},
        {"sftp://me@host:2222/run", "sftp://me@host:2222/run", true},
        {"https://host:8443/run/a@b:c", "https://host:8443/run/a@b:c", true},
        {"ftp://host/run", "unknown scheme, expected s3, gs, az, abfs, hf, http, https, sftp",
         false},
        {"S3://bucket/run", "unknown scheme", false},
        {"s://bucket/run", "unknown scheme", false},
        {"https://me:planted@host/run", "has a password", false},
        {"https://host/run?X-Amz-Signature=planted", "has a query", false},
        {"https://host/run#planted", "has a query", false},
        {"s3://", "names no bucket or host", false},
        {"s3:///run", "names no bucket or host", false},
        {"s3://./run", "names no bucket or host", false},
        {"s3://bucket/../run", "has the component '..'", false},
        {"s3://bucket/a\tb", "has a control byte", false},
    };
    char out[PATH_MAX];
    char small[8];
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const enum evq_status status = evq_address_normalize(cases[i].text, out, sizeof(out), &err);
        assert_true(evq_address_is(cases[i].text));
        if (cases[i].good) {
            assert_status_err(status, EVQ_OK, &err);
            assert_string_equal(out, cases[i].want);
        } else {
            assert_status(status, EVQ_E_INVALID);
            assert_holds(err.message, cases[i].want);
            assert_null(strstr(err.message, "planted"));
        }
    }
    assert_status(evq_address_normalize("s3://bucket", small, sizeof(small), &err), EVQ_E_LIMIT);
    assert_false(evq_address_is("/s3://bucket"));
    assert_false(evq_address_is("run://") && evq_address_is("://x"));
    assert_false(evq_address_is("C:/x"));
}

static void assert_matches(const struct evq_config *config, const char *address, const char *root,
                           const char *path)
{
    char real[PATH_MAX];
    const struct evq_root *found = NULL;
    const char *tail = NULL;
    struct evq_error err;

    assert_status_err(evq_config_root_resolve(config, address, real, &found, &tail, &err), EVQ_OK,
                      &err);
    assert_string_equal(found->name, root);
    assert_string_equal(tail, path);
}

static void config_matches_an_address_with_the_longest_remote_root(void **state)
{
    char real[PATH_MAX];
    const struct evq_root *found = NULL;
    const char *tail = NULL;
    struct evq_error err;

    (void)state;
    static const char text[] =
        "roots: {all: s3://bucket, run: s3://bucket/run/, here: /data}\n"
        "worker: {python: .venv/bin/python, cache: {directory: cache, bytes: 2GB}}";
    struct evq_config *config = NULL;

    assert_status_err(evq_config_parse(text, strlen(text), "/etc/evalq/evalq.yaml", &config, &err),
                      EVQ_OK, &err);
    assert_true(config->roots[0].is_remote && !config->roots[2].is_remote);
    assert_string_equal(config->roots[1].path, "s3://bucket/run");
    assert_string_equal(config->worker.python, "/etc/evalq/.venv/bin/python");
    assert_string_equal(config->worker.cache, "/etc/evalq/cache");
    assert_int_equal(config->worker.cache_bytes, 2000000000);
    assert_matches(config, "s3://bucket/run/step-5", "run", "step-5");
    assert_matches(config, "s3://bucket/run//./step-5/", "run", "step-5");
    assert_matches(config, "s3://bucket/runner/step-5", "all", "runner/step-5");
    assert_matches(config, "s3://bucket/run", "run", ".");
    assert_matches(config, "/data/x", "here", "x");
    assert_status(
        evq_config_root_resolve(config, "gs://bucket/run-7/step-5", real, &found, &tail, &err),
        EVQ_E_NOT_FOUND);
    assert_holds(err.message, "'gs://bucket/run-7/step-5' lies beneath no root; add to "
                              "/etc/evalq/evalq.yaml: roots: {run-7: gs://bucket/run-7}");
    assert_status(evq_config_root_resolve(config, "gs://bucket", real, &found, &tail, &err),
                  EVQ_E_NOT_FOUND);
    assert_holds(err.message, "roots: {bucket: gs://bucket}");
    assert_status(
        evq_config_root_resolve(config, "https://me:secret@bucket/run", real, &found, &tail, &err),
        EVQ_E_INVALID);
    evq_config_free(config);
}

/* ---- the helper ---- */

/* Writes a program that stands for the interpreter. */
static const char *helper_write(const struct fixture_folder *folder, const char *body)
{
    static char path[96];
    char text[4096];

    (void)snprintf(text, sizeof(text), "#!/bin/sh\ncd '%s' || exit 9\n%s\n", folder->path, body);
    fixture_folder_write(folder, "python", text, strlen(text));
    (void)snprintf(path, sizeof(path), "%s/python", folder->path);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static enum evq_status list_with(const struct fixture_folder *folder, const char *body,
                                 struct evq_remote_listing *listing, struct evq_error *err)
{
    struct evq_remote *remote = NULL;

    assert_status_err(evq_remote_open(helper_write(folder, body), &remote, err), EVQ_OK, err);
    const enum evq_status status = evq_remote_list(remote, "s3://b/x", "r:x", listing, err);
    if (status == EVQ_OK) {
        assert_string_equal(listing->manifest, "a.bin\t5\nb/c\t7\n");
    }
    evq_remote_close(remote);
    return status;
}

static void helper_answers_and_failures_are_told_apart(void **state)
{
    static const struct {
        const char *body;
        enum evq_status status;
        const char *message;
    } cases[] = {
        {"read line; echo; echo noise; printf '@file\\ta.bin\\t5\\n@file\\tb/c\\t7\\n'; "
         "printf '@listing\\t" A "\\t12\\td\\n'; read line",
         EVQ_OK, ""},
        {"read line; printf '@error\\tgone\\tit is not there\\n'; read line", EVQ_E_GONE,
         "it is not there"},
        {"read line; printf '@error\\tsetup\\tno package\\n'; read line", EVQ_E_INCOMPLETE,
         "no package"},
        {"read line; printf '@error\\tinvalid\\tbad\\n'; read line", EVQ_E_INVALID, "bad"},
        {"read line; printf '@error\\tfull\\tfull\\n'; read line", EVQ_E_FULL, "full"},
        {"read line; printf '@error\\tnew kind\\tx\\n'; read line", EVQ_E_RETRY, "x"},
        {"read line; printf '@listing\\tshort\\t12\\td\\n'; read line", EVQ_E_RETRY,
         "a wrong fingerprint"},
        {"echo \"/x/python: No module named evalq\" >&2; exit 1", EVQ_E_INCOMPLETE,
         "No module named evalq; name the interpreter that has evalq[remote] as worker.python"},
        {"read line; head -c 70000 /dev/zero | tr '\\0' x", EVQ_E_RETRY,
         "the helper wrote a line of more than 65536 bytes"},
        {"read line; kill -9 $$", EVQ_E_RETRY, "-m evalq.fetch' ended"},
    };
    struct fixture_folder *folder = *state;
    struct evq_remote_listing listing;
    struct evq_error err;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const enum evq_status status = list_with(folder, cases[i].body, &listing, &err);
        assert_status_err(status, cases[i].status, &err);
        if (status != EVQ_OK) {
            assert_holds(err.message, cases[i].message);
        } else {
            assert_string_equal(listing.fingerprint, A);
            assert_int_equal(listing.bytes, 12);
            assert_false(listing.is_file);
        }
    }
}

static void helper_that_cannot_be_started_is_a_fault_of_the_set_up(void **state)
{
    struct evq_remote *remote = NULL;
    struct evq_error err;

    (void)state;
    assert_status(evq_remote_open("/nowhere/python", &remote, &err), EVQ_E_INCOMPLETE);
    assert_holds(err.message, "'/nowhere/python' cannot be started");
    assert_holds(err.message, "worker.python");
    assert_null(remote);
}

static void helper_gets_no_address_of_redis_and_no_separator(void **state)
{
    struct fixture_folder *folder = *state;
    struct evq_remote *remote = NULL;
    struct evq_error err;
    struct evq_remote_line line;
    const char *const words[] = {"list", "s3://b/a\tb"};

    assert_int_equal(setenv("EVALQ_REDIS_PASSWORD", "planted", 1), 0);
    assert_int_equal(setenv("EVALQ_URL", "redis://planted", 1), 0);
    assert_status_err(
        evq_remote_open(
            helper_write(folder, "env | grep -q planted && printf '@error\\tretry\\tseen\\n' || "
                                 "printf '@end\\t%s\\n' \"$PYTHONSAFEPATH\"; read line"),
            &remote, &err),
        EVQ_OK, &err);
    assert_status(evq_remote_send(remote, words, 2, &err), EVQ_E_INVALID);
    assert_status_err(
        evq_remote_next(remote, fixture_now_ms() + fixture_patience_ms(), &line, &err), EVQ_OK,
        &err);
    assert_string_equal(line.fields[0], "end");
    assert_string_equal(line.fields[1], "1");
    evq_remote_close(remote);
    assert_int_equal(unsetenv("EVALQ_REDIS_PASSWORD"), 0);
    assert_int_equal(unsetenv("EVALQ_URL"), 0);
}

/* ---- the cache ---- */

static enum evq_status progress_ok(void *context, int64_t done, int64_t total, const char *status)
{
    (void)context;
    (void)done;
    (void)total;
    (void)status;
    return EVQ_OK;
}

static enum evq_status progress_stop(void *context, int64_t done, int64_t total, const char *status)
{
    (void)context;
    (void)done;
    (void)total;
    (void)status;
    return EVQ_E_STOPPED;
}

static const struct evq_eval_report report = {.progress = progress_ok};

static bool is_there(const struct fixture_folder *folder, const char *name)
{
    return faccessat(folder->fd, name, F_OK, 0) == 0;
}

/* Puts a checkpoint into the cache, which was used at this time. Returns its shared lock. */
static int cached_make(const struct fixture_folder *folder,
                       const struct evq_checkpoint_cache *cache, const char *fingerprint,
                       int64_t bytes, time_t used)
{
    const struct timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    char path[PATH_MAX + 64];
    struct evq_error err;
    bool made = true;
    int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/%s", cache->directory, fingerprint);
    assert_status_err(evq_kept_directory_lock(path, "x", &report, &fd, &made, &err), EVQ_OK, &err);
    assert_false(made);
    assert_status_err(evq_checkpoint_cache_reserve(cache, fingerprint, fd, bytes, &err), EVQ_OK,
                      &err);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    assert_int_equal(futimens(fd, times), 0);
    (void)folder;
    return fd;
}

static void cache_removes_what_was_used_least_recently_and_is_free(void **state)
{
    struct fixture_folder *folder = *state;
    struct evq_checkpoint_cache cache;
    struct evq_error err;
    bool made = false;
    int fd = -1;
    char path[PATH_MAX + 64];

    assert_status_err(evq_checkpoint_cache_open("", folder->path, 100, &cache, &err), EVQ_OK, &err);
    const int a = cached_make(folder, &cache, A, 40, 1000); // It is the oldest, but stays in use.
    const int b = cached_make(folder, &cache, B, 40, 2000);
    assert_int_equal(close(b), 0);
    (void)snprintf(path, sizeof(path), "%s/" C, cache.directory);
    assert_status_err(evq_kept_directory_lock(path, "x", &report, &fd, &made, &err), EVQ_OK, &err);
    assert_status(evq_checkpoint_cache_reserve(&cache, C, fd, 101, &err), EVQ_E_RETRY);
    assert_string_equal(err.message,
                        "the checkpoint has 101 bytes, but worker.cache.bytes allows 100 here");
    assert_true(is_there(folder, "cache/" B));
    assert_status_err(evq_checkpoint_cache_reserve(&cache, C, fd, 20, &err), EVQ_OK, &err);
    assert_true(is_there(folder, "cache/" B)); // 40 + 40 + 20 fit.
    assert_status_err(evq_checkpoint_cache_reserve(&cache, C, fd, 60, &err), EVQ_OK, &err);
    assert_true(is_there(folder, "cache/" A));
    assert_false(is_there(folder, "cache/" B));
    assert_false(is_there(folder, "cache/" B ".lock"));
    assert_status(evq_checkpoint_cache_reserve(&cache, C, fd, 61, &err), EVQ_E_FULL);
    assert_holds(err.message, "other jobs use 40 of its 100 bytes");
    assert_false(evq_checkpoint_cache_shrink(&cache, C));
    assert_int_equal(close(a), 0);
    assert_true(evq_checkpoint_cache_shrink(&cache, C));
    assert_false(is_there(folder, "cache/" A));
    assert_int_equal(close(fd), 0);
}

static void cache_counts_what_others_have_reserved(void **state)
{
    struct fixture_folder *folder = *state;
    struct evq_checkpoint_cache cache;
    struct evq_error err;
    bool made = false;
    int fds[2];
    static const char *const names[] = {A, B};
    char path[PATH_MAX + 64];

    assert_status_err(evq_checkpoint_cache_open("", folder->path, 100, &cache, &err), EVQ_OK, &err);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", cache.directory, names[i]);
        assert_status_err(evq_kept_directory_lock(path, "x", &report, &fds[i], &made, &err), EVQ_OK,
                          &err);
    }
    assert_status_err(evq_checkpoint_cache_reserve(&cache, A, fds[0], 60, &err), EVQ_OK, &err);
    assert_status(evq_checkpoint_cache_reserve(&cache, B, fds[1], 60, &err), EVQ_E_FULL);
    assert_int_equal(close(fds[0]), 0); // Its process died; the partial files can be removed.
    assert_status_err(evq_checkpoint_cache_reserve(&cache, B, fds[1], 60, &err), EVQ_OK, &err);
    assert_int_equal(close(fds[1]), 0);
}

/* ---- a fetch ---- */

/* Lists a checkpoint of 5 bytes, fetches it, and counts its starts in the file `starts`. */
#define FETCHES                                                                                    \
    "echo x >> starts\n"                                                                           \
    "tab=$(printf '\\t')\n"                                                                        \
    "while IFS=\"$tab\" read -r word address key fingerprint directory; do\n"                      \
    "  if [ $word = list ]; then printf '@listing\\t" A "\\t5\\td\\n'; continue; fi\n"             \
    "  mkdir -p $directory/step-5; printf hello > $directory/step-5/a\n"                           \
    "  printf '@progress\\t5\\t5\\n@end\\n'\n"                                                     \
    "done"

static struct evq_config config_for(const struct fixture_folder *folder, const char *body)
{
    struct evq_config config = {0};

    config.worker.scratch = folder->path;
    config.worker.cache = "";
    config.worker.cache_bytes = 1000;
    config.worker.python = helper_write(folder, body);
    return config;
}

static enum evq_status fetch(const struct fixture_folder *folder, const char *body,
                             const char *fingerprint, const struct evq_eval_report *listener,
                             struct evq_remote_fetched *fetched, struct evq_error *err)
{
    const struct evq_config config = config_for(folder, body);
    const struct evq_root root = {.name = "r", .path = "s3://b/run", .is_remote = true};
    const struct evq_job job = {.root = "r", .path = "step-5", .fingerprint = fingerprint};

    *fetched = (struct evq_remote_fetched){.lock_fd = -1};
    return evq_remote_fetch_open(&config, &root, &job, listener, fetched, err);
}

static size_t starts_of(const struct fixture_folder *folder)
{
    char path[96];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/starts", folder->path);
    free(fixture_file_load(path, &bytes));
    return bytes / 2;
}

static void fetched_once_and_used_again_without_the_helper(void **state)
{
    struct fixture_folder *folder = *state;
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct evq_remote_fetched first;
    struct evq_remote_fetched second;
    struct evq_error err;
    struct stat info;

    assert_status_err(fetch(folder, FETCHES, A, &report, &first, &err), EVQ_OK, &err);
    assert_string_equal(first.name, "step-5");
    assert_true(is_there(folder, "cache/" A "/step-5") && !is_there(folder, "cache/" A ".partial"));
    assert_int_equal(utimensat(folder->fd, "cache/" A ".lock", old, 0), 0);
    assert_status_err(fetch(folder, FETCHES, A, &report, &second, &err), EVQ_OK, &err);
    assert_int_equal(starts_of(folder), 1);
    assert_int_equal(fstatat(folder->fd, "cache/" A ".lock", &info, 0), 0);
    assert_true(info.st_mtim.tv_sec > old[1].tv_sec); // It is removed last now.
    evq_remote_fetch_close(&first);
    assert_false(evq_kept_directory_remove(second.directory)); // The second one uses it.
    evq_remote_fetch_close(&second);
    assert_status_err(fetch(folder, FETCHES, "", &report, &first, &err), EVQ_OK, &err);
    assert_int_equal(starts_of(folder), 2); // Without a fingerprint, the store is asked for it.
    evq_remote_fetch_close(&first);
}

static void another_checkpoint_at_the_address_is_not_fetched(void **state)
{
    struct fixture_folder *folder = *state;
    struct evq_remote_fetched fetched;
    struct evq_error err;

    assert_status(fetch(folder, FETCHES, B, &report, &fetched, &err), EVQ_E_CHANGED);
    assert_holds(err.message, "the files changed after the submit: 's3://b/run/step-5'");
    assert_false(is_there(folder, "cache/" A) || is_there(folder, "cache/" B ".lock"));
}

/* An error of the store is not charged to the job; wrong data is. */
static void fetch_charges_only_wrong_data(void **state)
{
    static const struct {
        const char *body;
        enum evq_status status;
    } cases[] = {{"printf '@error\\tretry\\tbusy\\n'; read line", EVQ_E_INCOMPLETE},
                 {"printf '@error\\tcorrupt\\tdigest\\n'; read line", EVQ_E_RETRY}};
    struct fixture_folder *folder = *state;
    struct evq_remote_fetched fetched;
    struct evq_error err;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_status(fetch(folder, cases[i].body, A, &report, &fetched, &err), cases[i].status);
        assert_int_equal(err.status, cases[i].status);
    }
}

static void cache_of_another_user_is_refused(void **state)
{
    struct fixture_folder *folder = *state;
    struct evq_checkpoint_cache cache;
    struct evq_error err;
    // Only root can give the directory away. For everybody else, / belongs to another user.
    const bool given = geteuid() == 0 && fchown(folder->fd, 12345, (gid_t)-1) == 0;

    assert_status(
        evq_checkpoint_cache_open(given ? folder->path : "/", folder->path, 100, &cache, &err),
        EVQ_E_INCOMPLETE);
    assert_holds(err.message, "does not belong to this worker's user");
    assert_true(!given || fchown(folder->fd, 0, (gid_t)-1) == 0);
}

static void fetch_stops_while_the_store_is_silent(void **state)
{
    static const struct evq_eval_report stopping = {.progress = progress_stop};
    struct fixture_folder *folder = *state;
    struct evq_remote_fetched fetched;
    struct evq_error err;

    assert_status(fetch(folder, "exec sleep 1000", A, &stopping, &fetched, &err), EVQ_E_STOPPED);
    assert_int_equal(fetched.lock_fd, -1);
}

/* The helper finds the disk full once. The checkpoint that was used least recently is removed, and
 * the fetch goes on. */
static void full_disk_removes_what_nobody_uses(void **state)
{
    struct fixture_folder *folder = *state;
    struct evq_checkpoint_cache cache;
    struct evq_remote_fetched fetched;
    struct evq_error err;
    static const char full[] =
        "while read -r word rest; do\n"
        "  if [ $word = list ]; then printf '@listing\\t" A "\\t5\\td\\n'; continue; fi\n"
        "  mkdir -p cache/" A ".partial\n"
        "  if [ -d cache/" B " ]; then printf '@error\\tfull\\tno space\\n'; else echo @end; fi\n"
        "done";

    assert_status_err(evq_checkpoint_cache_open("", folder->path, 1000, &cache, &err), EVQ_OK,
                      &err);
    const int b = cached_make(folder, &cache, B, 40, 2000);
    assert_status(fetch(folder, full, A, &report, &fetched, &err), EVQ_E_FULL);
    assert_string_equal(err.message, "no space");
    assert_false(is_there(folder, "cache/" A ".partial")); // It would fill the disk for others.
    assert_int_equal(close(b), 0);
    assert_status_err(fetch(folder, full, A, &report, &fetched, &err), EVQ_OK, &err);
    assert_false(is_there(folder, "cache/" B));
    evq_remote_fetch_close(&fetched);
}

int main(void)
{
#define FRESH(test)                                                                                \
    cmocka_unit_test_setup_teardown(test, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_is_normalized_or_refused),
        cmocka_unit_test(config_matches_an_address_with_the_longest_remote_root),
        FRESH(helper_answers_and_failures_are_told_apart),
        cmocka_unit_test(helper_that_cannot_be_started_is_a_fault_of_the_set_up),
        FRESH(helper_gets_no_address_of_redis_and_no_separator),
        FRESH(cache_removes_what_was_used_least_recently_and_is_free),
        FRESH(cache_counts_what_others_have_reserved),
        FRESH(fetched_once_and_used_again_without_the_helper),
        FRESH(another_checkpoint_at_the_address_is_not_fetched),
        FRESH(fetch_charges_only_wrong_data),
        FRESH(cache_of_another_user_is_refused),
        FRESH(fetch_stops_while_the_store_is_silent),
        FRESH(full_disk_removes_what_nobody_uses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
