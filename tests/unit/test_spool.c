/*
 * The spool: order, bounds, torn and damaged records, files that are none.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/pins/tree_copy.h"
#include "producer/client/submit_log/spool.h"
#include "tests/fixture/check.h"
#include "tests/fixture/memory.h"

#define BYTES_MAX (1 << 20)

struct scene {
    char directory[64];
    char ring[96];
    char spool[96];
};

static int scene_make(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));

    assert_non_null(scene);
    strcpy(scene->directory, "/tmp/evalq-spool-XXXXXX");
    assert_non_null(mkdtemp(scene->directory));
    snprintf(scene->ring, sizeof(scene->ring), "%s/main@digits.ring", scene->directory);
    snprintf(scene->spool, sizeof(scene->spool), "%s/main@digits.spool", scene->directory);
    *state = scene;
    return 0;
}

static int scene_free(void **state)
{
    struct scene *scene = *state;

    assert_status(evq_tree_remove(AT_FDCWD, scene->directory, NULL), EVQ_OK);
    free(scene);
    return 0;
}

static struct evq_spool *spool_of(const struct scene *scene, int64_t bytes_max)
{
    struct evq_spool *spool = NULL;

    assert_status(evq_spool_open(scene->ring, bytes_max, &spool, NULL), EVQ_OK);
    return spool;
}

static void append(struct evq_spool *spool, int number)
{
    char text[64];

    snprintf(text, sizeof(text), "record %d", number);
    assert_status(evq_spool_append(spool, text, strlen(text), NULL), EVQ_OK);
}

static void assert_next(struct evq_spool *spool, uint64_t *offset, int number)
{
    struct evq_buffer record;
    char text[64];

    snprintf(text, sizeof(text), "record %d", number);
    evq_buffer_init(&record, 0);
    assert_status(evq_spool_read(spool, offset, &record, NULL), EVQ_OK);
    assert_int_equal(record.bytes, strlen(text));
    assert_memory_equal(record.data, text, record.bytes);
    evq_buffer_free(&record);
}

static void assert_end(struct evq_spool *spool, uint64_t *offset)
{
    struct evq_buffer record;

    evq_buffer_init(&record, 0);
    assert_status(evq_spool_read(spool, offset, &record, NULL), EVQ_E_NOT_FOUND);
    evq_buffer_free(&record);
}

static void spool_replays_in_order_when_opened_again(void **state)
{
    struct scene *scene = *state;
    struct evq_spool *spool = spool_of(scene, BYTES_MAX);
    uint64_t offset = 0;

    for (int number = 0; number < 10; number++) {
        append(spool, number);
    }
    assert_status(evq_spool_sync(spool, NULL), EVQ_OK);
    for (int number = 0; number < 4; number++) {
        assert_next(spool, &offset, number);
    }
    evq_spool_release(spool, offset, 4);
    evq_spool_close(spool);

    spool = spool_of(scene, BYTES_MAX);
    assert_int_equal(evq_spool_records(spool), 6);
    offset = 0;
    for (int number = 4; number < 10; number++) {
        assert_next(spool, &offset, number);
    }
    assert_end(spool, &offset);
    evq_spool_release(spool, offset, 6);
    assert_int_equal(evq_spool_records(spool), 0);
    append(spool, 10); // Used again from its beginning.
    offset = 0;
    assert_next(spool, &offset, 10);
    evq_spool_release(spool, offset, 1);
    evq_spool_close(spool);
    assert_int_not_equal(access(scene->spool, F_OK), 0); // Empty: removed.
}

static void spool_says_full_when_past_its_bound(void **state)
{
    struct scene *scene = *state;
    struct evq_spool *spool = spool_of(scene, 200);
    struct evq_error error = {.status = EVQ_OK};
    char text[100] = "x";

    assert_status(evq_spool_append(spool, text, sizeof(text), NULL), EVQ_OK);
    assert_status(evq_spool_append(spool, text, sizeof(text), &error), EVQ_E_FULL);
    assert_holds(error.message, scene->spool);
    assert_int_equal(evq_spool_records(spool), 1);
    evq_spool_close(spool);
    assert_int_equal(access(scene->spool, F_OK), 0);
}

/* The file is cut at every byte of its last record: the earlier ones are read, the torn one is not.
 */
static void spool_skips_torn_record_at_every_byte(void **state)
{
    struct scene *scene = *state;
    struct evq_spool *spool = spool_of(scene, BYTES_MAX);
    struct stat info;

    append(spool, 1);
    append(spool, 2);
    assert_int_equal(stat(scene->spool, &info), 0);
    off_t two = info.st_size;
    append(spool, 3);
    assert_int_equal(stat(scene->spool, &info), 0);
    off_t three = info.st_size;
    evq_spool_close(spool);
    for (off_t bytes = three - 1; bytes >= two; bytes--) {
        uint64_t offset = 0;
        assert_int_equal(truncate(scene->spool, bytes), 0);
        spool = spool_of(scene, BYTES_MAX);
        assert_int_equal(evq_spool_records(spool), 2);
        assert_next(spool, &offset, 1);
        assert_next(spool, &offset, 2);
        assert_end(spool, &offset);
        evq_spool_close(spool);
    }
}

static void spool_goes_on_behind_damage_at_every_byte(void **state)
{
    struct scene *scene = *state;
    struct evq_spool *spool = spool_of(scene, BYTES_MAX);
    const off_t first = 32;    // After the header.
    const off_t span = 24 + 8; // "record 1"

    append(spool, 1);
    append(spool, 2);
    evq_spool_close(spool);
    for (off_t at = first; at < first + span; at++) {
        uint8_t byte = 0;
        uint64_t offset = 0;
        int fd = open(scene->spool, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x20;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        spool = spool_of(scene, BYTES_MAX);
        assert_int_equal(evq_spool_records(spool), 1);
        assert_next(spool, &offset, 2);
        assert_end(spool, &offset);
        evq_spool_close(spool);
        byte ^= 0x20;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
    }
}

/* What a dead owner left torn lacks the very bytes with which the next record begins: it is torn
 * all the same, and takes nothing of what came since. */
static void spool_keeps_what_was_left_apart_from_what_comes(void **state)
{
    struct scene *scene = *state;
    struct evq_spool *spool = spool_of(scene, BYTES_MAX);
    uint64_t offset = 0;
    struct stat info;

    append(spool, 1);
    assert_status(evq_spool_append(spool, "record EQRC", 11, NULL), EVQ_OK);
    evq_spool_close(spool);
    assert_int_equal(stat(scene->spool, &info), 0);
    assert_int_equal(truncate(scene->spool, info.st_size - 4), 0);
    spool = spool_of(scene, BYTES_MAX);
    append(spool, 3);
    assert_next(spool, &offset, 1);
    assert_next(spool, &offset, 3);
    assert_end(spool, &offset);
    evq_spool_close(spool);
}

/* Want of memory is no damage: the record stays, is counted, and is read when there is some. */
static void spool_keeps_records_when_there_is_no_memory(void **state)
{
    struct scene *scene = *state;
    struct evq_spool *spool = spool_of(scene, BYTES_MAX);
    struct evq_buffer record;
    uint64_t offset = 0;

    append(spool, 1);
    append(spool, 2);
    evq_spool_close(spool);
    fixture_memory_refuse(1, 4096);
    spool = spool_of(scene, BYTES_MAX);
    assert_int_equal(evq_spool_records(spool), 2);
    evq_buffer_init(&record, 0);
    for (int number = 1; number <= 2; number++) {
        fixture_memory_refuse(1, 4096);
        assert_status(evq_spool_read(spool, &offset, &record, NULL), EVQ_E_NOMEM);
        assert_int_equal(fixture_memory_give(), 1);
        assert_next(spool, &offset, number);
    }
    assert_end(spool, &offset);
    evq_buffer_free(&record);
    evq_spool_release(spool, offset, 2);
    evq_spool_close(spool);
}

static void spool_sets_foreign_file_aside_when_it_is_none(void **state)
{
    struct scene *scene = *state;
    char aside[128];

    FILE *file = fopen(scene->spool, "w");
    assert_true(fputs("this is a text, and a long enough one to be a header", file) >= 0);
    assert_int_equal(fclose(file), 0);
    struct evq_spool *spool = spool_of(scene, BYTES_MAX);
    assert_int_equal(evq_spool_records(spool), 0);
    append(spool, 1);
    evq_spool_close(spool);
    snprintf(aside, sizeof(aside), "%s.bad", scene->spool);
    assert_int_equal(access(aside, F_OK), 0);
}

int main(void)
{
#define SPOOL_TEST(name) cmocka_unit_test_setup_teardown(name, scene_make, scene_free)
    const struct CMUnitTest tests[] = {
        SPOOL_TEST(spool_replays_in_order_when_opened_again),
        SPOOL_TEST(spool_says_full_when_past_its_bound),
        SPOOL_TEST(spool_skips_torn_record_at_every_byte),
        SPOOL_TEST(spool_goes_on_behind_damage_at_every_byte),
        SPOOL_TEST(spool_keeps_what_was_left_apart_from_what_comes),
        SPOOL_TEST(spool_keeps_records_when_there_is_no_memory),
        SPOOL_TEST(spool_sets_foreign_file_aside_when_it_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
