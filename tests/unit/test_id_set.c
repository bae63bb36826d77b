/* The ids of a run's results: exact also where most of them lie on disk. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "logger/sinks/id_set.h"
#include "tests/fixture/check.h"
#include "tests/fixture/limit.h"
#include "tests/fixture/redis.h"

#define MEMORY_SLOTS ((size_t)8192)

static void add(struct evq_id_set *set, int number)
{
    char id[32];
    struct evq_error err;

    (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", number);
    assert_status_err(evq_id_set_add(set, id, strlen(id), &err), EVQ_OK, &err);
}

static bool has(const struct evq_id_set *set, int number)
{
    char id[32];
    struct evq_error err;
    bool found = false;

    (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", number);
    assert_status_err(evq_id_set_has(set, id, strlen(id), &found, &err), EVQ_OK, &err);
    return found;
}

static void id_set_knows_exactly_what_was_added_when_it_grows(void **state)
{
    (void)state;
    char directory[64];

    fixture_dir_make(directory);
    struct evq_id_set *set = evq_id_set_new(directory);
    assert_non_null(set);
    for (int i = 0; i < 200000; i += 2) {
        add(set, i);
        if (i % 4 == 0) {
            add(set, i / 2 / 2 * 2); // One that is there already, mostly on disk.
        }
    }
    for (int i = 0; i < 200000; i++) {
        assert_int_equal(has(set, i), i % 2 == 0);
    }
    assert_true(set->table.count > 90000); // They went to disk,
    assert_true(set->slot_count <= MEMORY_SLOTS);
    assert_true(2 * set->table.count <= set->table.slot_count); // which grew.
    evq_id_set_free(set);
    fixture_dir_remove(directory);
}

/* Each new result is looked for: most of them must not cost a read. */
static void id_set_reads_nothing_for_most_that_is_not_there(void **state)
{
    (void)state;
    char directory[64];
    int reads = 0;

    fixture_dir_make(directory);
    struct evq_id_set *set = evq_id_set_new(directory);
    assert_non_null(set);
    for (int i = 0; i < 100000; i++) {
        add(set, i);
    }
    const int fd = set->table.fd;
    set->table.fd = open("/dev/null", O_RDONLY); // Every read fails.
    for (int i = 100000; i < 110000; i++) {
        char id[32];
        bool found = false;
        (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", i);
        reads += evq_id_set_has(set, id, strlen(id), &found, NULL) != EVQ_OK;
        assert_false(found);
    }
    assert_in_range(reads, 500, 1500); // A tenth: (1 - e^-0.36)^2.
    (void)close(set->table.fd);
    set->table.fd = fd;
    evq_id_set_free(set);
    fixture_dir_remove(directory);
}

static void id_set_says_when_there_is_no_room_on_disk_and_goes_on_after(void **state)
{
    (void)state;
    char directory[64];
    struct evq_error err = {0};
    int added = 0;

    fixture_dir_make(directory);
    struct evq_id_set *set = evq_id_set_new(directory);
    assert_non_null(set);
    fixture_limit_files(1000);
    for (enum evq_status status = EVQ_OK; status == EVQ_OK && added < 100000;) {
        char id[32];
        (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", added);
        status = evq_id_set_add(set, id, strlen(id), &err);
        added += status == EVQ_OK ? 1 : 0;
    }
    fixture_limit_files(UINT64_MAX);
    assert_int_equal(err.status, EVQ_E_IO);
    assert_holds(err.message, "result ids");
    assert_true(added > 1000 && added < (int)MEMORY_SLOTS);
    for (int i = 0; i < added + 2; i++) {
        assert_int_equal(has(set, i), i < added);
    }
    for (int i = added; i < 20000; i++) {
        add(set, i);
    }
    for (int i = 0; i < 20002; i++) {
        assert_int_equal(has(set, i), i < 20000);
    }
    evq_id_set_free(set);
    fixture_dir_remove(directory);
}

static void id_set_says_when_its_directory_is_gone(void **state)
{
    (void)state;
    struct evq_error err = {0};
    enum evq_status status = EVQ_OK;
    struct evq_id_set *set = evq_id_set_new("/tmp/evalq-no-such-directory");

    assert_non_null(set);
    for (int i = 0; i < (int)MEMORY_SLOTS && status == EVQ_OK; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "%d", i);
        status = evq_id_set_add(set, id, strlen(id), &err);
    }
    assert_int_equal(status, EVQ_E_IO);
    assert_holds(err.message, "/tmp/evalq-no-such-directory");
    evq_id_set_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(id_set_knows_exactly_what_was_added_when_it_grows),
        cmocka_unit_test(id_set_reads_nothing_for_most_that_is_not_there),
        cmocka_unit_test(id_set_says_when_there_is_no_room_on_disk_and_goes_on_after),
        cmocka_unit_test(id_set_says_when_its_directory_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
