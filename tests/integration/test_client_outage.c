/*
 * Tests libevalq with outages: Redis away, killed or stopped; the trainer killed; ring and spool
 * full.
 */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
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

#include "producer/client/dead_clients.h"
#include "producer/client/submit_log/ring.h"
#include "producer/client/submit_log/spool.h"
#include "shared/queue/codec.h"
#include "tests/fixture/client.h"
#include "tests/fixture/program.h"
#include "tests/fixture/random.h"

static void client_keeps_submits_when_redis_is_away_at_the_start(void **state)
{
    struct scene *scene = *state;

    fixture_redis_kill(scene->fx->redis);
    struct evalq_client *client = scene_client(scene);
    for (int64_t step = 1; step <= 5; step++) {
        submit_step(scene, client, step);
    }
    assert_int_equal(evalq_client_flush(client, 300), EVALQ_UNAVAILABLE);
    // After an outage of one second, the submits are on disk.
    char spool[160];
    snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    FIXTURE_UNTIL(access(spool, F_OK) == 0);
    assert_true(stats_of(client).pending > 0);
    submit_step(scene, client, 6);
    scene_reconnect(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 6);
    assert_int_equal(stats_of(client).sent, 6);
    assert_int_equal(warnings_with(scene, "are kept in"), 1);
    evalq_client_close(client);
    assert_int_not_equal(access(spool, F_OK), 0);
    fixture_audit(scene->fx);
}

static atomic_int opens_short;   // So many of the next opens of a spool fail with EVQ_E_NOMEM.
static atomic_int rings_touched; // How often the client has touched a ring's file.
static atomic_int reads_short;   // So many of the next reads of a spool fail with EVQ_E_NOMEM.
static atomic_int decodes_short; // So many of the next decodings of a job fail with EVQ_E_NOMEM.

/* The linker calls the real function __real_NAME, and the one that replaces it __wrap_NAME. */
enum evq_status __real_evq_spool_open(const char *ring_path, int64_t bytes_max,
                                      struct evq_spool **ret_spool, struct evq_error *err);
void __real_evq_ring_touch(struct evq_ring *ring);
enum evq_status __wrap_evq_spool_open(const char *ring_path, int64_t bytes_max,
                                      struct evq_spool **ret_spool, struct evq_error *err);
void __wrap_evq_ring_touch(struct evq_ring *ring);
enum evq_status __real_evq_spool_read(struct evq_spool *spool, uint64_t *offset,
                                      struct evq_buffer *out, struct evq_error *err);
enum evq_status __real_evq_codec_job_decode(const uint8_t *data, size_t bytes,
                                            struct evq_job **ret_job, struct evq_error *err);
enum evq_status __wrap_evq_spool_read(struct evq_spool *spool, uint64_t *offset,
                                      struct evq_buffer *out, struct evq_error *err);
enum evq_status __wrap_evq_codec_job_decode(const uint8_t *data, size_t bytes,
                                            struct evq_job **ret_job, struct evq_error *err);

enum evq_status __wrap_evq_spool_open(const char *ring_path, int64_t bytes_max,
                                      struct evq_spool **ret_spool, struct evq_error *err)
{
    if (atomic_load(&opens_short) > 0) {
        atomic_fetch_sub(&opens_short, 1);
        return evq_error_set(err, EVQ_E_NOMEM, "spool of '%s'", ring_path);
    }
    return __real_evq_spool_open(ring_path, bytes_max, ret_spool, err);
}

void __wrap_evq_ring_touch(struct evq_ring *ring)
{
    atomic_fetch_add(&rings_touched, 1);
    __real_evq_ring_touch(ring);
}

enum evq_status __wrap_evq_spool_read(struct evq_spool *spool, uint64_t *offset,
                                      struct evq_buffer *out, struct evq_error *err)
{
    if (atomic_load(&reads_short) > 0) {
        atomic_fetch_sub(&reads_short, 1);
        return evq_error_set(err, EVQ_E_NOMEM, "a spooled job");
    }
    return __real_evq_spool_read(spool, offset, out, err);
}

enum evq_status __wrap_evq_codec_job_decode(const uint8_t *data, size_t bytes,
                                            struct evq_job **ret_job, struct evq_error *err)
{
    if (atomic_load(&decodes_short) > 0) {
        atomic_fetch_sub(&decodes_short, 1);
        return evq_error_set(err, EVQ_E_NOMEM, "message");
    }
    return __real_evq_codec_job_decode(data, bytes, ret_job, err);
}

/* If there is no memory, submits stay on disk, and are not called damaged. */
static void client_sends_what_is_spooled_when_there_is_memory_again(void **state)
{
    struct scene *scene = *state;

    fixture_redis_kill(scene->fx->redis);
    struct evalq_client *client = scene_client(scene);
    for (int64_t step = 1; step <= 5; step++) {
        submit_step(scene, client, step);
    }
    char spool[160];
    snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    FIXTURE_UNTIL(access(spool, F_OK) == 0);
    atomic_store(&reads_short, 2);
    atomic_store(&decodes_short, 2);
    scene_reconnect(scene);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 5);
    assert_flushed(client);
    assert_int_equal(atomic_load(&reads_short), 0);
    assert_int_equal(atomic_load(&decodes_short), 0);
    assert_int_equal(stats_of(client).sent, 5);
    assert_int_equal(warnings_with(scene, "is damaged"), 0);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

/*
 * No address was given, and the process is in a network namespace without a server at the default
 * address.
 */
static void client_names_evalq_up_when_no_address_was_given(void **state)
{
    struct scene *scene = *state;
    int status = 0;

    checkpoint_write(scene, "step-1.safetensors", 1);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct evalq_options options = scene_options(scene);
        struct evalq_client *client = NULL;
        options.url = NULL;
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
            _exit(77);
        }
        if (evalq_client_open(&options, &client) != EVALQ_OK ||
            submit(scene, client, "step-1.safetensors", 1) != EVALQ_OK) {
            _exit(1);
        }
        const int64_t end_ms = fixture_now_ms() + fixture_patience_ms();
        while (warnings_with(scene, "are kept in") == 0 && fixture_now_ms() < end_ms) {
            (void)evalq_client_flush(client, 20);
        }
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        skip(); // This user may not create a network namespace.
    }
    assert_int_equal(status, 0);
    assert_int_equal(warnings_with(scene, "no `evalq up` runs in this directory"), 1);
}

static void client_loses_nothing_when_redis_dies_in_the_middle(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    checkpoint_write(scene, "step-1.safetensors", 1);
    for (int64_t step = 0; step < 300; step++) {
        assert_int_equal(submit_link(scene, client, step), EVALQ_OK);
        if (step == 100) {
            FIXTURE_UNTIL(stats_of(client).sent > 0);
            fixture_redis_kill(scene->fx->redis);
        }
        if (step == 200) {
            scene_reconnect(scene);
        }
    }
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 300);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

static pid_t trainer_killed_after(const struct scene *scene, int64_t first, int64_t count)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct evalq_options options = scene_options(scene);
        struct evalq_client *client = NULL;
        if (evalq_client_open(&options, &client) != EVALQ_OK) {
            _exit(1);
        }
        for (int64_t step = first; step < first + count; step++) {
            if (submit_link(scene, client, step) != EVALQ_OK) {
                _exit(2);
            }
        }
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    return child;
}

static void client_sends_what_killed_trainer_left_when_run_is_opened_again(void **state)
{
    struct scene *scene = *state;

    checkpoint_write(scene, "step-1.safetensors", 1);
    fixture_redis_suspend(scene->fx->redis); // A stopped Redis receives nothing before the kill.
    (void)trainer_killed_after(scene, 0, 20);
    (void)trainer_killed_after(scene, 20, 20);
    fixture_redis_resume(scene->fx->redis);
    for (int64_t step = 40; step < 60; step += 5) {
        (void)trainer_killed_after(scene, step, 5); // The first client has sent some of these.
    }
    struct evalq_client *client = scene_client(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 60);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

#define KILLS 25

/*
 * The trainer submits in a loop and is killed at any moment, also between the reservation of space
 * in the ring and its commit. All accepted submits must arrive. At most one more, whose call had
 * not returned, may arrive too.
 */
static void client_keeps_what_it_accepted_when_trainer_is_killed_anywhere(void **state)
{
    struct scene *scene = *state;
    uint64_t seed = fixture_seed();
    int64_t accepted = 0;

    void *page = mmap(NULL, sizeof(_Atomic int64_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    _Atomic int64_t *count = page;
    checkpoint_write(scene, "step-1.safetensors", 1);
    fixture_redis_suspend(scene->fx->redis);
    for (int64_t round = 0; round < KILLS; round++) {
        int status = 0;
        atomic_store(count, 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct evalq_options options = scene_options(scene);
            struct evalq_client *client = NULL;
            options.ring_bytes = 16 << 20;
            if (evalq_client_open(&options, &client) != EVALQ_OK) {
                _exit(1);
            }
            for (int64_t step = 0; step < 400; step++) {
                if (submit_link(scene, client, round * 1000 + step) != EVALQ_OK) {
                    _exit(2);
                }
                atomic_fetch_add(count, 1);
            }
            while (true) {
                pause();
            }
        }
        const int64_t kill_at = (int64_t)(fixture_random(&seed) % 300);
        FIXTURE_UNTIL(atomic_load(count) >= kill_at);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        accepted += atomic_load(count);
    }
    munmap(page, sizeof(*count));
    assert_true(accepted > 0);
    fixture_redis_resume(scene->fx->redis);
    struct evalq_client *client = scene_client(scene);
    assert_flushed(client);
    int64_t arrived = jobs_in(scene, EVQ_JOB_QUEUED);
    assert_true(arrived >= accepted && arrived <= accepted + KILLS);
    // An entry that was cut by the kill does not count as damaged.
    assert_int_equal(warnings_with(scene, "damaged"), 0);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

static void client_sends_spool_of_killed_trainer_when_run_is_opened_again(void **state)
{
    struct scene *scene = *state;
    char spool[160];
    int status = 0;

    checkpoint_write(scene, "step-1.safetensors", 1);
    fixture_redis_kill(scene->fx->redis);
    snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct evalq_options options = scene_options(scene);
        struct evalq_client *client = NULL;
        if (evalq_client_open(&options, &client) != EVALQ_OK ||
            submit(scene, client, "step-1.safetensors", 1) != EVALQ_OK) {
            _exit(1);
        }
        while (true) {
            pause();
        }
    }
    struct stat info;
    FIXTURE_UNTIL(stat(spool, &info) == 0 && info.st_size > 100);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    scene_reconnect(scene);
    struct evalq_client *client = scene_client(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
    evalq_client_close(client);
    assert_int_not_equal(access(spool, F_OK), 0);
}

/*
 * A second process of the run has spooled a submit. The next client must send it soon, even if
 * memory is short when it starts.
 */
static void client_sends_spool_of_a_dead_owner_when_there_is_memory_again(void **state)
{
    struct scene *scene = *state;
    char spool[160];
    struct stat info;

    fixture_redis_kill(scene->fx->redis);
    struct evalq_client *first = scene_client(scene);
    struct evalq_client *second = scene_client(scene);
    submit_step(scene, second, 1);
    snprintf(spool, sizeof(spool), "%s/main@digits@1.spool", scene->rings);
    FIXTURE_UNTIL(stat(spool, &info) == 0 && info.st_size > 100);
    evalq_client_close(second);
    evalq_client_close(first);
    atomic_store(&opens_short, 4); // The first two opens of each spool fail.
    atomic_store(&rings_touched, 0);
    struct evalq_client *client = scene_client(scene);
    FIXTURE_UNTIL(atomic_load(&rings_touched) == 2);
    scene_reconnect(scene);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 1);
    assert_flushed(client);
    FIXTURE_UNTIL(access(spool, F_OK) != 0);
    assert_int_equal(atomic_load(&opens_short), 0);
    evalq_client_close(client);
}

static void leftovers_are_sent_when_nobody_opens_their_runs(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evq_dead_clients left;

    checkpoint_write(scene, "step-1.safetensors", 1);
    assert_status(evq_dead_clients_send(&options, "main", fixture_patience_ms(), &left, NULL),
                  EVQ_OK);
    assert_int_equal(left.runs + left.sent, 0); // The directory does not exist yet.
    fixture_redis_suspend(scene->fx->redis);
    (void)trainer_killed_after(scene, 0, 10);
    options.run = NULL;
    assert_status(evq_dead_clients_send(&options, "other", fixture_patience_ms(), &left, NULL),
                  EVQ_OK);
    assert_int_equal(left.runs, 0);
    fixture_redis_resume(scene->fx->redis);
    assert_status(evq_dead_clients_send(&options, "main", fixture_patience_ms(), &left, NULL),
                  EVQ_OK);
    assert_int_equal(left.runs, 1);
    assert_int_equal(left.sent, 10);
    assert_int_equal(left.kept, 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 10);
}

/* Runs whose submits cannot be sent yet neither slow down nor block the runs behind them. */
static void leftovers_take_no_longer_for_many_runs_than_for_one(void **state)
{
    struct scene *scene = *state;
    static const char *const runs[] = {"one", "two", "three"};
    struct evalq_options options = scene_options(scene);
    struct evq_dead_clients left;
    char path[160];
    int status = 0;

    checkpoint_write(scene, "step-1.safetensors", 1);
    checkpoint_write(scene, "step-2.safetensors", 2);
    fixture_redis_suspend(scene->fx->redis);
    for (int at = 0; at < 3; at++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct evalq_client *client = NULL;
            options.run = runs[at];
            _exit(evalq_client_open(&options, &client) != EVALQ_OK ||
                  (at == 0 ? submit(scene, client, "step-2.safetensors", 2)
                           : submit(scene, client, "step-1.safetensors", 1)) != EVALQ_OK);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    fixture_redis_resume(scene->fx->redis);
    (void)snprintf(path, sizeof(path), "%s/out/step-1.safetensors", scene->directory);
    assert_int_equal(truncate(path, 60),
                     0); // This checkpoint looks unfinished, so the client waits for it.
    options.run = NULL;
    assert_status(evq_dead_clients_send(&options, "main", 12000, &left, NULL), EVQ_OK);
    assert_int_equal(left.unseen, 0);
    assert_int_equal(left.kept, 2);
    assert_int_equal(left.sent, 1);
    assert_status(evq_dead_clients_send(&options, "main", 200, &left, NULL), EVQ_OK);
    assert_int_equal(left.kept, 1);
    assert_int_equal(left.unseen, 1);
}

static void client_flush_and_close_end_in_time_when_redis_stands_still(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    fixture_redis_suspend(scene->fx->redis);
    submit_step(scene, client, 1);
    int64_t start = fixture_now_ms();
    int code = evalq_client_flush(client, 300);
    int64_t spent = fixture_now_ms() - start;
    assert_true(code == EVALQ_TIMEOUT || code == EVALQ_UNAVAILABLE);
    // A call that waits for Redis would wait for ten seconds.
    assert_true(spent >= 290 && spent < 5000);
    start = fixture_now_ms();
    assert_int_not_equal(evalq_client_poll(client, NULL, NULL, 200), EVALQ_OK);
    assert_true(fixture_now_ms() - start < 5000);
    start = fixture_now_ms();
    evalq_client_close(client);
    spent = fixture_now_ms() - start;
    assert_true(spent < 20000); // The limit is ten seconds; a busy machine may add some.
    assert_int_equal(warnings_with(scene, "ends with 1 of its submits unsent"), 1);
    fixture_redis_resume(scene->fx->redis);
    client = scene_client(scene); // The new client sends what the old one left.
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
    evalq_client_close(client);
    assert_int_equal(warnings_with(scene, "unsent"), 1);
}

/* close() once waited for only one second. On a busy machine, a short script then sent nothing. */
static void client_close_waits_until_what_is_ready_was_sent(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    assert_flushed(client);
    // Redis is slow but reachable: each answer takes so many ms.
    evq_reply_free(fixture_call(scene->fx->raw, "CLIENT", "PAUSE", "1600", "ALL", NULL));
    submit_step(scene, client, 1);
    evalq_client_close(client);
    assert_int_equal(warnings_with(scene, "unsent"), 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
}

/* close() does not wait for a save, because it may never end. */
static void client_close_does_not_wait_for_an_unfinished_save(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    assert_flushed(client);
    fixture_file_write(scene->directory, "out/unfinished.safetensors", "");
    assert_int_equal(submit(scene, client, "unfinished.safetensors", 7), EVALQ_OK);
    const int64_t start = fixture_now_ms();
    evalq_client_close(client);
    assert_true(fixture_now_ms() - start < 6000); // It takes 0.7 s; a busy machine may add some.
    assert_int_equal(warnings_with(scene, "ends with 1 of its submits unsent"), 1);
}

static void client_says_full_once_when_ring_and_spool_are(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;
    int dropped = 0;

    fixture_redis_kill(scene->fx->redis);
    options.ring_bytes = 1;
    options.spool_bytes_max = 4096;
    assert_int_equal(evalq_client_open(&options, &client), EVALQ_OK);
    checkpoint_write(scene, "step-1.safetensors", 1);
    int64_t end = fixture_now_ms() + fixture_patience_ms();
    for (int64_t step = 0; dropped < 50; step++) {
        int code = submit_link(scene, client, step);
        dropped += code == EVALQ_FULL;
        assert_true(code == EVALQ_OK || code == EVALQ_FULL);
        assert_true(fixture_now_ms() < end);
    }
    assert_holds(evalq_client_error(client), "full");
    assert_int_equal(stats_of(client).dropped, 50);
    FIXTURE_UNTIL(warnings_with(scene, "is full, so a submit was dropped") == 1);
    FIXTURE_UNTIL(warnings_with(scene, "what the ring cannot hold") == 1);
    uint64_t kept = stats_of(client).submitted;
    scene_reconnect(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), kept);
    assert_int_equal(warnings_with(scene, "is full, so a submit was dropped"), 1);
    evalq_client_close(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(client_keeps_submits_when_redis_is_away_at_the_start),
        SCENE_TEST(client_sends_what_is_spooled_when_there_is_memory_again),
        SCENE_TEST(client_names_evalq_up_when_no_address_was_given),
        SCENE_TEST(client_loses_nothing_when_redis_dies_in_the_middle),
        SCENE_TEST(client_sends_what_killed_trainer_left_when_run_is_opened_again),
        SCENE_TEST(client_keeps_what_it_accepted_when_trainer_is_killed_anywhere),
        SCENE_TEST(client_sends_spool_of_killed_trainer_when_run_is_opened_again),
        SCENE_TEST(client_sends_spool_of_a_dead_owner_when_there_is_memory_again),
        SCENE_TEST(leftovers_are_sent_when_nobody_opens_their_runs),
        SCENE_TEST(leftovers_take_no_longer_for_many_runs_than_for_one),
        SCENE_TEST(client_flush_and_close_end_in_time_when_redis_stands_still),
        SCENE_TEST(client_close_waits_until_what_is_ready_was_sent),
        SCENE_TEST(client_close_does_not_wait_for_an_unfinished_save),
        SCENE_TEST(client_says_full_once_when_ring_and_spool_are),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
