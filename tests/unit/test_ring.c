/*
 * The submit ring: wrap-around, torn records, two owners, full.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/pins/tree_copy.h"
#include "producer/client/submit_log/ring.h"
#include "producer/client/submit_log/ring_directory.h"
#include "producer/client/submit_log/ring_file.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"

struct scratch {
    char directory[64];
};

static int scratch_make(void **state)
{
    struct scratch *scratch = calloc(1, sizeof(*scratch));

    assert_non_null(scratch);
    strcpy(scratch->directory, "/tmp/evalq-ring-XXXXXX");
    assert_non_null(mkdtemp(scratch->directory));
    *state = scratch;
    return 0;
}

static int scratch_remove(void **state)
{
    struct scratch *scratch = *state;

    assert_status(evq_tree_remove(AT_FDCWD, scratch->directory, NULL), EVQ_OK);
    free(scratch);
    return 0;
}

static struct evq_ring *ring_of(const struct scratch *scratch, size_t bytes)
{
    struct evq_ring *ring = NULL;
    struct evq_error error = {.status = EVQ_OK};

    assert_status_err(evq_ring_open(scratch->directory, "main", "digits", bytes, &ring, &error),
                      EVQ_OK, &error);
    return ring;
}

/* A payload whose bytes follow from its number and length. */
static void payload_fill(uint8_t *out, uint64_t number, size_t bytes)
{
    memcpy(out, &number, sizeof(number));
    for (size_t at = sizeof(number); at < bytes; at++) {
        out[at] = (uint8_t)(number * 31 + at * 7);
    }
}

static void assert_payload(const uint8_t *data, size_t bytes, uint64_t number)
{
    uint8_t want[EVQ_RING_PAYLOAD_BYTES_MAX];

    payload_fill(want, number, bytes);
    assert_memory_equal(data, want, bytes);
}

static void ring_keeps_order_when_it_wraps(void **state)
{
    struct evq_ring *ring = ring_of(*state, EVQ_RING_BYTES_MIN);
    uint64_t seed = fixture_seed();
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    uint64_t pushed = 0;
    uint64_t taken = 0;
    uint64_t cursor = 0;
    size_t bytes = 0;

    while (taken < 20000) {
        size_t length = 8 + fixture_random(&seed) % 3000;
        payload_fill(payload, pushed, length);
        enum evq_status status = evq_ring_push(ring, payload, length);
        if (status == EVQ_OK) {
            pushed++;
        } else {
            assert_int_equal(status, EVQ_E_FULL);
        }
        if (status == EVQ_E_FULL || fixture_random(&seed) % 2 == 0) {
            assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
            assert_payload(payload, bytes, taken++);
            evq_ring_release(ring, cursor);
        }
    }
    assert_true(evq_ring_head(ring) > 100 * EVQ_RING_BYTES_MIN); // It did wrap.
    evq_ring_close(ring, true);
}

static void ring_says_full_when_nothing_is_released(void **state)
{
    struct evq_ring *ring = ring_of(*state, EVQ_RING_BYTES_MIN);
    uint8_t payload[1000] = {1};
    uint64_t cursor = 0;
    size_t bytes = 0;
    int count = 0;

    while (evq_ring_push(ring, payload, sizeof(payload)) == EVQ_OK) {
        count++;
    }
    assert_int_equal(count, EVQ_RING_BYTES_MIN / 1056); // 32 of head, 1,000, rounded up to 32.
    assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_E_FULL);
    assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
    assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_E_FULL); // Taken, not done.
    evq_ring_release(ring, cursor);
    assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_OK);
    assert_status(evq_ring_push(ring, payload, 0), EVQ_E_LIMIT);
    assert_status(evq_ring_push(ring, payload, EVQ_RING_PAYLOAD_BYTES_MAX + 1), EVQ_E_LIMIT);
    evq_ring_close(ring, false);
}

/* As it looks to a thread that stood still between its two looks: the tail of before, and the head
 * behind what others pushed meanwhile. */
static void ring_is_not_full_when_its_head_is_newer_than_its_tail(void **state)
{
    struct evq_ring *ring = ring_of(*state, EVQ_RING_BYTES_MIN);
    const uint8_t payload[64] = {0};

    assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_OK);
    evq_ring_release(ring, evq_ring_tail(ring) + 4096);
    assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_OK);
    evq_ring_close(ring, true);
}

static int64_t disk_bytes(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? (int64_t)info.st_blocks * 512 : -1;
}

/* Runs that nobody opens again leave a ring each: without end, if nobody looked after them. */
static void sweep_bounds_what_dead_owners_left(void **state)
{
    static const int64_t keep_ms = 1000000;
    struct scratch *scratch = *state;
    uint8_t payload[3000];
    uint8_t out[EVQ_RING_PAYLOAD_BYTES_MAX];
    uint64_t cursor = 0;
    size_t bytes = 0;
    char path[PATH_MAX];
    char spool[PATH_MAX];

    // Something is in it, around the end of the data: it stays, and takes no more room than that.
    struct evq_ring *ring = ring_of(scratch, EVQ_RING_BYTES_DEFAULT);
    snprintf(path, sizeof(path), "%s", evq_ring_path(ring));
    payload_fill(payload, 0, sizeof(payload));
    for (int at = 0; at < 345; at++) {
        assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_OK);
        assert_status(evq_ring_take(ring, &cursor, out, &bytes), EVQ_OK);
        evq_ring_release(ring, cursor);
    }
    for (int at = 0; at < 3; at++) {
        payload_fill(payload, (uint64_t)at, sizeof(payload));
        assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_OK);
    }
    assert_int_equal(evq_ring_sweep(scratch->directory, keep_ms), 0); // It has an owner.
    assert_true(disk_bytes(path) >= EVQ_RING_BYTES_DEFAULT);
    evq_ring_close(ring, false);
    assert_int_equal(evq_ring_sweep(scratch->directory, keep_ms), 0);
    assert_in_range(disk_bytes(path), 1, 40000);

    // Its next owner has the records, and all of its room again.
    ring = ring_of(scratch, EVQ_RING_BYTES_DEFAULT);
    assert_true(disk_bytes(path) >= EVQ_RING_BYTES_DEFAULT);
    cursor = evq_ring_head(ring);
    for (uint64_t at = 0; at < 3; at++) {
        assert_status(evq_ring_take(ring, &cursor, out, &bytes), EVQ_OK);
        assert_payload(out, bytes, at);
    }
    while (evq_ring_push(ring, payload, sizeof(payload)) == EVQ_OK) {
    }
    evq_ring_close(ring, false);

    // Older than that it goes, with its spool; but not while its spool is young.
    const struct timespec old[2] = {{.tv_sec = 1600000000}, {.tv_sec = 1600000000}};
    snprintf(spool, sizeof(spool), "%.*s.spool", (int)(strlen(path) - strlen(".ring")), path);
    int fd = open(spool, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(evq_ring_sweep(scratch->directory, keep_ms), 0);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(futimens(fd, old), 0);
    close(fd);
    assert_int_equal(evq_ring_sweep(scratch->directory, keep_ms), 1);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_not_equal(access(spool, F_OK), 0);

    // Its owner lived until now, whatever the file system makes of writes through a mapping.
    ring = ring_of(scratch, EVQ_RING_BYTES_DEFAULT);
    assert_status(evq_ring_push(ring, payload, sizeof(payload)), EVQ_OK);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    evq_ring_touch(ring);
    evq_ring_close(ring, false);
    assert_int_equal(evq_ring_sweep(scratch->directory, keep_ms), 0);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);

    // With nothing in it, it goes at once: its owner was killed.
    ring = ring_of(scratch, EVQ_RING_BYTES_DEFAULT);
    evq_ring_close(ring, false);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(evq_ring_sweep(scratch->directory, keep_ms), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void ring_keeps_records_when_its_owner_dies(void **state)
{
    struct scratch *scratch = *state;
    uint8_t payload[256];
    uint64_t cursor = 0;
    size_t bytes = 0;

    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct evq_ring *ring = NULL;
        if (evq_ring_open(scratch->directory, "main", "digits", EVQ_RING_BYTES_MIN, &ring, NULL) !=
            EVQ_OK) {
            _exit(1);
        }
        for (uint64_t number = 0; number < 50; number++) {
            payload_fill(payload, number, sizeof(payload));
            if (evq_ring_push(ring, payload, sizeof(payload)) != EVQ_OK) {
                _exit(1);
            }
        }
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    struct evq_ring *ring = ring_of(scratch, 4 * EVQ_RING_BYTES_MIN);
    assert_int_equal(evq_ring_bytes(ring), EVQ_RING_BYTES_MIN); // The file keeps its size.
    for (uint64_t number = 0; number < 50; number++) {
        assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
        assert_payload(payload, bytes, number);
    }
    assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_E_NOT_FOUND);
    evq_ring_close(ring, false);
}

static void file_copy(const char *from, const char *to)
{
    uint8_t *data = malloc(1 << 20);
    int in = open(from, O_RDONLY);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t bytes = read(in, data, 1 << 20);

    assert_true(bytes > 0);
    assert_int_equal(write(out, data, (size_t)bytes), bytes);
    close(in);
    close(out);
    free(data);
}

/*
 * The writer of the middle one of three records dies after its reservation and `written` bytes of
 * what it would have written, in any byte of it. The others must be read, the torn one never.
 */
static void ring_skips_torn_record_at_every_byte(void **state)
{
    struct scratch *scratch = *state;
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    const size_t length = 100;
    const size_t span = 160; // 32 + 100, rounded up to 32.
    char image[128];
    char path[128];

    struct evq_ring *ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
    snprintf(path, sizeof(path), "%s", evq_ring_path(ring));
    snprintf(image, sizeof(image), "%s/image", scratch->directory);
    for (uint64_t number = 0; number < 3; number++) {
        payload_fill(payload, number, length);
        assert_status(evq_ring_push(ring, payload, length), EVQ_OK);
    }
    evq_ring_close(ring, false);
    file_copy(path, image);

    // The commit word is written last: `written` counts the bytes after it, then it.
    for (size_t written = 0; written <= 132; written++) {
        file_copy(image, path);
        int fd = open(path, O_RDWR);
        uint8_t *map = mmap(NULL, EVQ_RING_HEADER_BYTES + EVQ_RING_BYTES_MIN,
                            PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(map != MAP_FAILED);
        uint8_t *record = map + EVQ_RING_HEADER_BYTES + span;
        size_t body = written <= 124 ? written : 124;
        uint8_t before[132];
        memcpy(before, record, sizeof(before));
        memset(record + 8 + body, 0, 124 - body);
        if (written <= 124) {
            memset(record, 0, 8);
        } else {
            memset(record + (written - 124), 0, 8 - (written - 124));
        }
        // The nonce is random: bytes that were zero anyway leave the record whole.
        const bool whole = memcmp(before, record, sizeof(before)) == 0;
        munmap(map, EVQ_RING_HEADER_BYTES + EVQ_RING_BYTES_MIN);
        close(fd);

        uint64_t cursor = 0;
        size_t bytes = 0;
        ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
        assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
        assert_payload(payload, bytes, 0);
        assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
        assert_true(whole || written < 132);
        if (whole) {
            assert_payload(payload, bytes, 1);
            assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
        }
        assert_payload(payload, bytes, 2);
        assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_E_NOT_FOUND);
        evq_ring_release(ring, cursor);
        payload_fill(payload, 3, length);
        assert_status(evq_ring_push(ring, payload, length), EVQ_OK); // Life goes on behind it.
        assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
        assert_payload(payload, bytes, 3);
        evq_ring_close(ring, false);
    }
}

static void ring_refuses_damaged_payload_at_every_byte(void **state)
{
    struct scratch *scratch = *state;
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    const size_t length = 100;

    for (size_t damaged = 0; damaged < 32 + length; damaged++) {
        struct evq_ring *ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
        uint64_t cursor = 0;
        size_t bytes = 0;
        payload_fill(payload, 1, length);
        assert_status(evq_ring_push(ring, payload, length), EVQ_OK);
        payload_fill(payload, 2, length);
        assert_status(evq_ring_push(ring, payload, length), EVQ_OK);
        ring->data[damaged] ^= 0x40;
        ring->inherited = evq_ring_tail(ring);
        if (damaged >= 12 && damaged < 16) { // The reserved word is not looked at.
            ring->data[damaged] ^= 0x40;
            ring->data[0] ^= 1;
        }
        assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
        assert_payload(payload, bytes, 2);
        evq_ring_release(ring, evq_ring_tail(ring));
        evq_ring_close(ring, true);
    }
}

static void ring_goes_to_own_file_when_another_process_owns_the_run(void **state)
{
    struct scratch *scratch = *state;
    struct evq_ring *first = ring_of(scratch, EVQ_RING_BYTES_MIN);
    struct evq_ring *second = ring_of(scratch, EVQ_RING_BYTES_MIN);
    struct evq_ring *left[4];
    uint8_t payload[64] = {7};
    size_t count = 0;

    assert_string_not_equal(evq_ring_path(first), evq_ring_path(second));
    assert_status(evq_ring_push(second, payload, sizeof(payload)), EVQ_OK);
    assert_status(evq_ring_adopt(scratch->directory, "main", "digits", left, 4, &count, NULL),
                  EVQ_OK);
    assert_int_equal(count, 0); // Both live.
    evq_ring_close(second, true);
    assert_status(evq_ring_adopt(scratch->directory, "main", "digits", left, 4, &count, NULL),
                  EVQ_OK);
    assert_int_equal(count, 1);
    assert_int_equal(evq_ring_tail(left[0]) - evq_ring_head(left[0]), 96);
    evq_ring_release(left[0], evq_ring_tail(left[0]));
    evq_ring_close(left[0], true);
    assert_status(evq_ring_adopt(scratch->directory, "main", "other", left, 4, &count, NULL),
                  EVQ_OK);
    assert_int_equal(count, 0);
    evq_ring_close(first, true);
}

static void ring_sets_foreign_file_aside_when_it_is_no_ring(void **state)
{
    struct scratch *scratch = *state;
    char path[128];
    char aside[160];

    struct evq_ring *ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
    snprintf(path, sizeof(path), "%s", evq_ring_path(ring));
    evq_ring_close(ring, true);
    assert_int_not_equal(access(path, F_OK), 0); // Empty: removed.
    const size_t sizes[] = {1, 4095, 4096, EVQ_RING_HEADER_BYTES + EVQ_RING_BYTES_MIN};
    for (size_t at = 0; at < sizeof(sizes) / sizeof(sizes[0]); at++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(write(fd, "x", 1), 1);
        assert_int_equal(ftruncate(fd, (off_t)sizes[at]), 0);
        close(fd);
        ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
        assert_int_equal(evq_ring_tail(ring), 0);
        snprintf(aside, sizeof(aside), "%s.bad", path);
        assert_int_equal(access(aside, F_OK), 0);
        assert_int_equal(unlink(aside), 0);
        evq_ring_close(ring, true);
    }
}

/* With another nonce no record would be one: its file is kept for people to look at. */
static void ring_sets_its_file_aside_when_its_header_is_damaged(void **state)
{
    struct scratch *scratch = *state;
    char path[128];
    char aside[160];
    const size_t end = offsetof(struct evq_ring_header, checksum) + sizeof(uint64_t);
    uint8_t byte = 0;

    for (off_t at = 0; at < (off_t)end; at++) {
        struct evq_ring *ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
        assert_status(evq_ring_push(ring, "payload", 7), EVQ_OK);
        snprintf(path, sizeof(path), "%s", evq_ring_path(ring));
        evq_ring_close(ring, false);
        const int fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        ring = ring_of(scratch, EVQ_RING_BYTES_MIN);
        assert_int_equal(evq_ring_tail(ring), 0);
        evq_ring_close(ring, true);
        snprintf(aside, sizeof(aside), "%s.bad", path);
        assert_int_equal(unlink(aside), 0);
    }
}

static void ring_directory_is_private_when_made(void **state)
{
    struct scratch *scratch = *state;
    char path[128];
    struct stat info;

    snprintf(path, sizeof(path), "%s/a/b/c", scratch->directory);
    assert_status(evq_ring_directory_make(path, NULL), EVQ_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(chmod(path, 0755), 0); // Made by another program.
    assert_status(evq_ring_directory_make(path, NULL), EVQ_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    snprintf(path, sizeof(path), "%s/file", scratch->directory);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    struct evq_error error = {.status = EVQ_OK};
    assert_status(evq_ring_directory_make(path, &error), EVQ_E_INVALID);
    assert_holds(error.message, path);
}

static void count_run(void *context, const char *queue, const char *run)
{
    int *count = context;

    assert_string_equal(queue, "main");
    assert_true(strcmp(run, "digits") == 0 || strcmp(run, "a.b-c_d") == 0);
    *count += 1;
}

static void ring_list_names_each_run_once(void **state)
{
    struct scratch *scratch = *state;
    struct evq_ring *first = ring_of(scratch, EVQ_RING_BYTES_MIN);
    struct evq_ring *second = ring_of(scratch, EVQ_RING_BYTES_MIN);
    struct evq_ring *other = NULL;
    int count = 0;

    assert_status(evq_ring_open(scratch->directory, "main", "a.b-c_d", 0, &other, NULL), EVQ_OK);
    assert_status(evq_ring_list(scratch->directory, count_run, &count, NULL), EVQ_OK);
    assert_int_equal(count, 2);
    evq_ring_close(other, true);
    evq_ring_close(second, true);
    evq_ring_close(first, true);
}

#define THREADS    4
#define PER_THREAD 20000

struct pusher {
    struct evq_ring *ring;
    uint64_t number;
    uint64_t full;
};

static void *push_all(void *argument)
{
    struct pusher *pusher = argument;
    uint8_t payload[200];

    for (uint64_t at = 0; at < PER_THREAD; at++) {
        size_t bytes = 16 + at % 180;
        uint64_t number = pusher->number << 32 | at;
        payload_fill(payload, number, bytes);
        while (evq_ring_push(pusher->ring, payload, bytes) == EVQ_E_FULL) {
            pusher->full++;
        }
    }
    return NULL;
}

static void ring_loses_nothing_when_threads_push_at_once(void **state)
{
    struct evq_ring *ring = ring_of(*state, EVQ_RING_BYTES_MIN);
    struct pusher pushers[THREADS];
    pthread_t threads[THREADS];
    uint64_t next[THREADS] = {0};
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    uint64_t cursor = 0;
    size_t bytes = 0;

    for (uint64_t at = 0; at < THREADS; at++) {
        pushers[at] = (struct pusher){.ring = ring, .number = at};
        assert_int_equal(pthread_create(&threads[at], NULL, push_all, &pushers[at]), 0);
    }
    int64_t deadline = fixture_now_ms() + fixture_patience_ms();
    for (uint64_t taken = 0; taken < THREADS * PER_THREAD;) {
        if (evq_ring_take(ring, &cursor, payload, &bytes) != EVQ_OK) {
            assert_true(fixture_now_ms() < deadline);
            continue;
        }
        uint64_t number = 0;
        memcpy(&number, payload, sizeof(number));
        assert_true(number >> 32 < THREADS);
        assert_int_equal(number & 0xffffffff, next[number >> 32]++); // Each thread's in its order.
        assert_payload(payload, bytes, number);
        evq_ring_release(ring, cursor);
        taken++;
    }
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
    }
    assert_int_equal(evq_ring_head(ring), evq_ring_tail(ring));
    evq_ring_close(ring, true);
}

/* A record whose end lies past the end of what its owner left, and past it holds the very word with
 * which the next record begins: its checksum is right, yet it must not swallow that record. */
static void ring_keeps_what_was_left_apart_from_what_comes(void **state)
{
    struct evq_ring *ring = ring_of(*state, EVQ_RING_BYTES_MIN);
    const uint64_t word = EVQ_RING_ALIGN ^ ring->nonce;
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    uint64_t cursor = 0;
    size_t bytes = 0;

    assert_status(evq_ring_push(ring, &word, sizeof(word)), EVQ_OK);
    atomic_store(&ring->header->tail, EVQ_RING_ALIGN);
    evq_ring_close(ring, false);
    ring = ring_of(*state, EVQ_RING_BYTES_MIN);
    assert_status(evq_ring_push(ring, "ours", 4), EVQ_OK);
    assert_status(evq_ring_take(ring, &cursor, payload, &bytes), EVQ_OK);
    assert_int_equal(bytes, 4);
    assert_memory_equal(payload, "ours", 4);
    evq_ring_close(ring, true);
}

int main(void)
{
#define RING_TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, scratch_remove)
    const struct CMUnitTest tests[] = {
        RING_TEST(ring_keeps_what_was_left_apart_from_what_comes),
        RING_TEST(ring_keeps_order_when_it_wraps),
        RING_TEST(ring_says_full_when_nothing_is_released),
        RING_TEST(ring_is_not_full_when_its_head_is_newer_than_its_tail),
        cmocka_unit_test_setup_teardown(sweep_bounds_what_dead_owners_left, scratch_make,
                                        scratch_remove),
        RING_TEST(ring_keeps_records_when_its_owner_dies),
        RING_TEST(ring_skips_torn_record_at_every_byte),
        RING_TEST(ring_refuses_damaged_payload_at_every_byte),
        RING_TEST(ring_goes_to_own_file_when_another_process_owns_the_run),
        RING_TEST(ring_sets_its_file_aside_when_its_header_is_damaged),
        RING_TEST(ring_sets_foreign_file_aside_when_it_is_no_ring),
        RING_TEST(ring_directory_is_private_when_made),
        RING_TEST(ring_list_names_each_run_once),
        RING_TEST(ring_loses_nothing_when_threads_push_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
