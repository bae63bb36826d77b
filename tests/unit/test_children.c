/*
 * What the supervisor makes of its children when memory, or a child, is gone: a lease can always be
 * ended, a job whose result was lost does not complete, nobody is given work who cannot hear of it.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/base/child_environment.h"
#include "tests/fixture/memory.h"
#include "tests/fixture/queue.h"
#include "worker/supervisor/supervisor.h"

#define ID "digits/100/regular/quick"

struct scene {
    struct evq_task_config task;
    struct evq_suite suite;
    struct evq_config config;
    struct evq_backoff pause;
    bool offered; // The suite, by the worker.
    double seconds;
    struct evq_supervisor supervisor;
    struct evq_slot slot;
    struct evq_channel child; // The other end.
    struct evq_lease *lease;
};

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    struct evq_claim *claim = calloc(1, sizeof *claim);
    int pair[2];

    assert_non_null(scene);
    assert_non_null(claim);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    (void)strcpy(claim->id, ID);
    (void)strcpy(claim->token, "1.abc");
    claim->job = fixture_job(ID);
    claim->attempt = 1;
    claim->shard = -1;
    scene->task = (struct evq_task_config){.name = "t"};
    scene->suite.name = "quick";
    (void)strcpy(scene->suite.digest, "0123456789abcdef0123456789abcdef");
    scene->suite.evaluator = "native";
    scene->suite.prepare = "";
    scene->suite.tasks = &scene->task;
    scene->suite.task_count = 1;
    scene->config.suites = &scene->suite;
    scene->config.suite_count = 1;
    scene->supervisor.config = &scene->config;
    scene->supervisor.registry.config = &scene->config;
    scene->supervisor.registry.suites = &scene->offered;
    scene->supervisor.disk_pauses = &scene->pause;
    scene->supervisor.suite_seconds = &scene->seconds;
    scene->supervisor.slots = &scene->slot;
    scene->supervisor.slot_count = 1;
    evq_slot_init(&scene->slot, 0);
    evq_channel_open(&scene->slot.channel, pair[0]);
    evq_channel_open(&scene->child, pair[1]);
    scene->lease = evq_lease_new(claim, &scene->suite, "worker-1");
    assert_non_null(scene->lease);
    scene->supervisor.leases = scene->lease;
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    (void)fixture_memory_give();
    evq_lease_free(scene->lease);
    evq_channel_close(&scene->slot.channel);
    evq_channel_close(&scene->child);
    free(scene);
    return 0;
}

static void outbox_refuse(void)
{
    fixture_memory_refuse(sizeof(struct evq_outbox_item), sizeof(struct evq_outbox_item));
}

static void lease_has_the_memory_for_its_end_since_its_claim(void **state)
{
    struct scene *scene = *state;
    struct evq_lease *lease = scene->lease;

    outbox_refuse();
    assert_false(evq_lease_queue_publish(lease, fixture_result(lease->claim, "t", 0.5)));
    assert_true(evq_lease_queue_end(lease, EVQ_OUTBOX_COMPLETE));
    assert_int_equal(fixture_memory_give(), 2);
    assert_non_null(lease->first);
    assert_int_equal(lease->first->kind, EVQ_OUTBOX_COMPLETE);
}

static void lease_that_failed_says_so_without_memory(void **state)
{
    struct scene *scene = *state;

    fixture_memory_refuse(0, SIZE_MAX - 1);
    assert_true(evq_lease_queue_fail(scene->lease, EVQ_FAIL_RETRY, "out of memory", NULL));
    (void)fixture_memory_give();
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_FAIL);
    assert_string_equal(scene->lease->first->reason, "out of memory");
}

/* The slot runs the job, and its child hands over a result, then says that it is done. */
static void child_finishes(struct scene *scene)
{
    struct evq_buffer record;
    struct evq_result *result = fixture_result(scene->lease->claim, "t", 0.5);

    evq_buffer_init(&record, 0);
    assert_status(evq_codec_result_encode(result, &record, NULL), EVQ_OK);
    const struct evq_field field = evq_channel_bytes("result", record.data, record.bytes);
    assert_status(evq_channel_send(&scene->child, "task", &field, 1, NULL), EVQ_OK);
    assert_status(evq_channel_send(&scene->child, "done", NULL, 0, NULL), EVQ_OK);
    evq_buffer_free(&record);
    evq_result_free(result);
    scene->slot.lease = scene->lease;
    scene->slot.state = EVQ_SLOT_RUNNING;
}

static void job_with_its_result_completes(void **state)
{
    struct scene *scene = *state;

    child_finishes(scene);
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_PUBLISH);
    assert_int_equal(scene->lease->first->next->kind, EVQ_OUTBOX_COMPLETE);
}

static void job_whose_result_was_lost_for_want_of_memory_does_not_complete(void **state)
{
    struct scene *scene = *state;

    child_finishes(scene);
    outbox_refuse();
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_int_equal(fixture_memory_give(), 2);
    assert_non_null(scene->lease->first);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_FAIL);
    assert_int_equal(scene->lease->first->fail, EVQ_FAIL_RETRY);
    assert_null(scene->lease->first->next);
}

/* The result's note cannot be read, the next one could: its child is killed, and what it said is
 * looked at once more when it has died. */
static void job_whose_result_could_not_be_read_does_not_complete(void **state)
{
    struct scene *scene = *state;

    child_finishes(scene);
    evq_channel_fill(&scene->slot.channel);
    fixture_memory_refuse(0, SIZE_MAX - 1);
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_true(fixture_memory_give() > 0);
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_null(scene->lease->first);
    assert_ptr_equal(scene->slot.lease, scene->lease);
}

/* A process that does nothing. */
static pid_t child_fork(void)
{
    const pid_t pid = fork();

    if (pid == 0) {
        (void)alarm(60); // Should the test fail and leave it.
        (void)pause();
        _exit(0);
    }
    assert_true(pid > 0);
    return pid;
}

/* The slot's process was killed: it is reaped here. */
static void child_killed(struct evq_slot *slot)
{
    const pid_t pid = slot->pid;
    int wait_status = 0;

    slot->pid = 0;
    (void)alarm(60); // One that lives is waited for in vain.
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    (void)alarm(0);
    assert_true(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);
}

static void child_that_can_no_longer_be_heard_is_killed(void **state)
{
    struct scene *scene = *state;

    scene->slot.pid = child_fork();
    scene->slot.state = EVQ_SLOT_IDLE;
    assert_status(evq_channel_send(&scene->child, "hello", NULL, 0, NULL), EVQ_OK);
    fixture_memory_refuse(0, SIZE_MAX - 1); // Of what it says nothing can be taken in.
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_true(fixture_memory_give() > 0);
    child_killed(&scene->slot);
}

/* Its end is not reaped yet: else job after job is claimed and given back, as fast as Redis can. */
static void dead_child_is_given_no_further_job(void **state)
{
    struct scene *scene = *state;

    evq_channel_close(&scene->child);
    scene->slot.state = EVQ_SLOT_IDLE;
    evq_child_notes_send_job(&scene->supervisor, &scene->slot, scene->lease);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_RELEASE);
    assert_null(scene->slot.lease);
    assert_int_not_equal(scene->slot.state, EVQ_SLOT_IDLE);
}

/* Else what the slot could run would never be claimed for it. */
static void class_whose_needs_found_no_memory_is_asked_for_again(void **state)
{
    struct scene *scene = *state;
    struct evq_suite_registry *offer = &scene->supervisor.registry;
    bool offered = true;

    offer->config = &scene->config;
    offer->suites = &offered;
    offer->class_count = 1;
    offer->classes[0].number = 3;
    (void)strcpy(offer->classes[0].suite, "quick");
    fixture_memory_refuse(0, SIZE_MAX - 1);
    assert_status(evq_suite_registry_fit(offer, &scene->slot), EVQ_E_NOMEM);
    assert_true(fixture_memory_give() > 0);
    assert_int_equal(scene->slot.fits, 0);
    assert_status(evq_suite_registry_fit(offer, &scene->slot), EVQ_OK);
    assert_int_equal(scene->slot.fits, evq_suite_registry_bit(3));
}

/* The slot runs the job, and its child says that it failed. */
static void child_fails(struct scene *scene, enum evq_status status, bool crash)
{
    const struct evq_field fields[] = {
        evq_channel_integer("status", status), evq_channel_integer("crash", crash),
        evq_channel_text("message", "failed"), evq_channel_text("detail", "")};

    scene->slot.lease = scene->lease;
    scene->slot.state = EVQ_SLOT_RUNNING;
    assert_status(evq_channel_send(&scene->child, "error", fields, 4, NULL), EVQ_OK);
    evq_child_notes_read(&scene->supervisor, &scene->slot);
}

/* A machine without room is not its job's fault. */
static void job_that_found_the_disk_full_goes_back_and_its_suite_pauses(void **state)
{
    struct scene *scene = *state;

    assert_false(evq_disk_pause_active(&scene->supervisor, &scene->suite));
    child_fails(scene, EVQ_E_FULL, false);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_RELEASE);
    assert_int_equal(scene->slot.state, EVQ_SLOT_IDLE);
    assert_true(evq_disk_pause_active(&scene->supervisor, &scene->suite));
    scene->supervisor.claim_due = false;
    evq_disk_pause_tick(&scene->supervisor, evq_disk_pause_due_ms(&scene->supervisor));
    assert_true(scene->supervisor.claim_due);
    assert_false(evq_disk_pause_active(&scene->supervisor, &scene->suite));
    evq_disk_pause_end(&scene->supervisor, &scene->suite);
    assert_false(evq_disk_pause_any(&scene->supervisor));
}

/* Slots that began before one of them found out are the same try. */
static void slots_that_find_the_disk_full_together_pause_once(void **state)
{
    struct scene *scene = *state;

    child_fails(scene, EVQ_E_FULL, false);
    const int64_t due_ms = evq_disk_pause_due_ms(&scene->supervisor);
    evq_disk_pause_begin(&scene->supervisor, &scene->suite, "disk full");
    assert_int_equal(evq_disk_pause_due_ms(&scene->supervisor), due_ms);
    assert_int_equal(scene->pause.tries, 1);
}

static void job_that_fails_by_itself_ends_the_pause(void **state)
{
    struct scene *scene = *state;

    evq_disk_pause_begin(&scene->supervisor, &scene->suite, "disk full");
    child_fails(scene, EVQ_E_CORRUPT, false);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_FAIL);
    assert_false(evq_disk_pause_any(&scene->supervisor));
}

/* What comes in after the lease is gone is no result of ours, and no end of it either. */
static void job_that_is_no_longer_ours_publishes_nothing(void **state)
{
    struct scene *scene = *state;

    child_finishes(scene);
    scene->slot.ending = EVQ_CAUSE_CANCELLED;
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_null(scene->supervisor.leases); // Left, not ended: nothing of it is said to Redis.
    scene->lease = NULL;
}

/* The result of a job that was cancelled does not even wait in the outbox. */
static void result_of_a_cancelled_job_is_dropped(void **state)
{
    struct scene *scene = *state;
    struct evq_buffer record;
    struct evq_result *result = fixture_result(scene->lease->claim, "t", 0.5);

    evq_buffer_init(&record, 0);
    assert_status(evq_codec_result_encode(result, &record, NULL), EVQ_OK);
    const struct evq_field field = evq_channel_bytes("result", record.data, record.bytes);
    assert_status(evq_channel_send(&scene->child, "task", &field, 1, NULL), EVQ_OK);
    scene->slot.lease = scene->lease;
    scene->slot.state = EVQ_SLOT_RUNNING;
    scene->slot.ending = EVQ_CAUSE_CANCELLED;
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_null(scene->lease->first);
    evq_buffer_free(&record);
    evq_result_free(result);
}

/* A job that is stopped for its time limit, and whose lease is lost meanwhile, is no longer ours to
 * speak of. */
static void job_that_was_lost_while_it_was_stopped_is_not_spoken_of(void **state)
{
    struct scene *scene = *state;

    scene->slot.state = EVQ_SLOT_RUNNING;
    scene->slot.lease = scene->lease;
    evq_slot_cancel(&scene->slot, EVQ_CAUSE_TIMEOUT, 1000);
    assert_int_equal(scene->slot.ending, EVQ_CAUSE_TIMEOUT);
    evq_slot_cancel(&scene->slot, EVQ_CAUSE_STALE, 1000);
    assert_int_equal(scene->slot.ending, EVQ_CAUSE_STALE);
    evq_slot_cancel(&scene->slot, EVQ_CAUSE_TIMEOUT, 1000);
    assert_int_equal(scene->slot.ending, EVQ_CAUSE_STALE);
    scene->slot.lease = NULL;
}

static void result_of_no_task_of_the_suite_is_not_kept(void **state)
{
    struct scene *scene = *state;
    struct scene other = {.task = {.name = "other"}};

    child_finishes(scene);
    scene->suite.tasks = &other.task;
    evq_child_notes_read(&scene->supervisor, &scene->slot);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_FAIL);
    assert_null(scene->lease->first->next);
}

/* It is the job that is sick, however often it crashes. */
static void worker_is_sick_of_different_jobs_alone(void **state)
{
    struct scene *scene = *state;

    for (int i = 0; i < 2 * EVQ_CAUSE_CRASHED_JOBS_MAX; i++) {
        child_fails(scene, EVQ_E_RETRY, true);
    }
    assert_false(scene->supervisor.sick);
    for (int i = 1; i < EVQ_CAUSE_CRASHED_JOBS_MAX; i++) {
        scene->lease->claim->id[0]++; // Another job.
        child_fails(scene, EVQ_E_RETRY, true);
    }
    assert_true(scene->supervisor.sick);
}

static void job_starts_only_where_its_needs_fit(void **state)
{
    struct scene *scene = *state;
    struct evq_job *job = scene->lease->claim->job;

    job->needs_given = true;
    job->needs = (struct evq_needs){.gpus = 2, .gpu_memory_bytes = 1000};
    scene->slot.gpus = 2;
    scene->slot.memory_bytes = 1000;
    assert_true(evq_claim_rules_fit(&scene->supervisor, job, &scene->slot));
    scene->slot.gpus = 1;
    assert_false(evq_claim_rules_fit(&scene->supervisor, job, &scene->slot));
    scene->slot.gpus = 2;
    scene->slot.memory_bytes = 999;
    assert_false(evq_claim_rules_fit(&scene->supervisor, job, &scene->slot));
}

/* A child gets no address and no password of Redis, whatever the worker was given. */
static void child_is_told_nothing_of_redis(void **state)
{
    char line[] = "CUDA_VISIBLE_DEVICES=7";
    size_t kept = 0;

    (void)state;
    assert_int_equal(setenv("EVALQ_URL", "redis://user:told-to-nobody@host", 1), 0);
    assert_int_equal(setenv("EVALQ_REDIS_PASSWORD", "told-to-nobody", 1), 0);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0", 1), 0);
    assert_int_equal(setenv("EVALQ_TEST_KEPT", "1", 1), 0);
    char **environment = evq_child_environment(line);
    assert_non_null(environment);
    for (char **at = environment; *at != NULL; at++) {
        assert_null(strstr(*at, "told-to-nobody"));
        assert_string_not_equal(*at, "CUDA_VISIBLE_DEVICES=0");
        kept += strcmp(*at, "EVALQ_TEST_KEPT=1") == 0 || strcmp(*at, line) == 0;
    }
    assert_int_equal(kept, 2);
    free(environment);
    (void)unsetenv("EVALQ_URL"); // Names that are well formed.
    (void)unsetenv("EVALQ_REDIS_PASSWORD");
}

/* The time limit, then silence: the child is asked to stop, and killed when it does not. */
static void job_ends_at_its_limit_and_of_silence(void **state)
{
    struct scene *scene = *state;
    struct evq_slot *slot = &scene->slot;

    slot->lease = scene->lease;
    slot->state = EVQ_SLOT_RUNNING;
    slot->last_note_ms = 1000;
    slot->limit_ms = 2000;
    evq_children_tick(&scene->supervisor, 1999);
    assert_int_equal(slot->ending, EVQ_CAUSE_NONE);
    evq_children_tick(&scene->supervisor, 2000);
    assert_int_equal(slot->ending, EVQ_CAUSE_TIMEOUT);
    assert_int_equal(slot->state, EVQ_SLOT_ENDING);
    slot->state = EVQ_SLOT_RUNNING;
    slot->ending = EVQ_CAUSE_NONE;
    slot->kill_ms = 0;
    slot->limit_ms = INT64_MAX;
    evq_children_tick(&scene->supervisor, 1000 + EVQ_SLOT_HANG_MS - 1);
    assert_int_equal(slot->ending, EVQ_CAUSE_NONE);
    evq_children_tick(&scene->supervisor, 1000 + EVQ_SLOT_HANG_MS);
    assert_int_equal(slot->ending, EVQ_CAUSE_HANG);
    const int64_t kill_ms = slot->kill_ms;
    assert_true(kill_ms > 0);
    slot->pid = child_fork();
    evq_children_tick(&scene->supervisor, kill_ms - 1);
    assert_int_equal(slot->kill_ms, kill_ms);
    evq_children_tick(&scene->supervisor, kill_ms);
    child_killed(slot);
    slot->lease = NULL;
}

/* The table of slot.h, written down a second time. Every other move leaves the state. */
static void slot_moves_as_its_table_says(void **state)
{
    static const struct {
        enum evq_slot_state from;
        enum evq_slot_event event;
        enum evq_slot_state to;
    } moves[] = {
        {EVQ_SLOT_NO_GPUS, EVQ_SLOT_ON_GPUS_GIVEN, EVQ_SLOT_DOWN},
        {EVQ_SLOT_DOWN, EVQ_SLOT_ON_STARTED, EVQ_SLOT_STARTING},
        {EVQ_SLOT_DOWN, EVQ_SLOT_ON_GPUS_LOST, EVQ_SLOT_NO_GPUS},
        {EVQ_SLOT_STARTING, EVQ_SLOT_ON_HELLO, EVQ_SLOT_IDLE},
        {EVQ_SLOT_IDLE, EVQ_SLOT_ON_JOB, EVQ_SLOT_RUNNING},
        {EVQ_SLOT_RUNNING, EVQ_SLOT_ON_END_JOB, EVQ_SLOT_ENDING},
        {EVQ_SLOT_RUNNING, EVQ_SLOT_ON_JOB_OVER, EVQ_SLOT_IDLE},
        {EVQ_SLOT_ENDING, EVQ_SLOT_ON_JOB_OVER, EVQ_SLOT_IDLE},
        {EVQ_SLOT_LOSING_GPUS, EVQ_SLOT_ON_CHILD_DIED, EVQ_SLOT_NO_GPUS},
    };
    struct evq_slot slot;

    (void)state;
    for (int from = 0; from < EVQ_SLOT_STATE_COUNT; from++) {
        for (int event = 0; event < EVQ_SLOT_EVENT_COUNT; event++) {
            const bool child = from >= EVQ_SLOT_STARTING && from <= EVQ_SLOT_LEAVING;
            int to = from;
            to = child && event == EVQ_SLOT_ON_LEAVES ? EVQ_SLOT_LEAVING : to;
            to = child && event == EVQ_SLOT_ON_GPUS_LOST ? EVQ_SLOT_LOSING_GPUS : to;
            to = child && event == EVQ_SLOT_ON_CHILD_DIED ? EVQ_SLOT_DOWN : to;
            for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++) {
                const bool this = (int)moves[i].from == from && (int)moves[i].event == event;
                to = this ? (int)moves[i].to : to;
            }
            evq_slot_init(&slot, 0);
            slot.state = (enum evq_slot_state)from;
            evq_slot_move(&slot, (enum evq_slot_event)event);
            assert_int_equal(slot.state, to);
        }
    }
}

/* A device that fails leaves the slot without a child for longer and longer. */
static void waits_grow_to_the_limit_of_their_cause(void **state)
{
    uint64_t seed = 7;
    struct evq_backoff backoff = {0};

    (void)state;
    assert_int_equal(evq_cause_wait_ms(EVQ_CAUSE_SLOT_OUT, 0, NULL), 30000);
    assert_int_equal(evq_cause_wait_ms(EVQ_CAUSE_SLOT_OUT, 1, NULL), 60000);
    assert_int_equal(evq_cause_wait_ms(EVQ_CAUSE_SLOT_OUT, 90, NULL), 600000);
    assert_int_equal(evq_cause_wait_ms(EVQ_CAUSE_DISK_FULL, 90, NULL), 30000);
    for (uint32_t tries = 0; tries < 20; tries++) {
        const int64_t wait_ms = evq_cause_wait_ms(EVQ_CAUSE_REDIS_AWAY, tries, &seed);
        assert_true(wait_ms >= 75 && wait_ms <= 6250);
    }
    assert_true(evq_cause_count_failure(EVQ_CAUSE_DISK_FULL, &backoff, &seed));
    assert_false(evq_cause_count_failure(EVQ_CAUSE_DISK_FULL, &backoff, &seed));
    assert_int_equal(backoff.tries, 2);
}

/* Faults in a row, of a device or of the start, are counted once each. */
static void device_fault_is_counted_and_its_child_gets_no_job(void **state)
{
    struct scene *scene = *state;

    child_fails(scene, EVQ_E_DEVICE, false);
    assert_int_equal(scene->slot.state, EVQ_SLOT_LEAVING);
    assert_int_equal(scene->slot.failures, 1);
    assert_string_equal(scene->slot.note, "failed");
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_FAIL);
}

int main(void)
{
#define CHILDREN_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CHILDREN_TEST(lease_has_the_memory_for_its_end_since_its_claim),
        CHILDREN_TEST(lease_that_failed_says_so_without_memory),
        CHILDREN_TEST(job_with_its_result_completes),
        CHILDREN_TEST(job_whose_result_was_lost_for_want_of_memory_does_not_complete),
        CHILDREN_TEST(job_whose_result_could_not_be_read_does_not_complete),
        CHILDREN_TEST(child_that_can_no_longer_be_heard_is_killed),
        CHILDREN_TEST(dead_child_is_given_no_further_job),
        CHILDREN_TEST(class_whose_needs_found_no_memory_is_asked_for_again),
        CHILDREN_TEST(job_that_found_the_disk_full_goes_back_and_its_suite_pauses),
        CHILDREN_TEST(slots_that_find_the_disk_full_together_pause_once),
        CHILDREN_TEST(job_that_fails_by_itself_ends_the_pause),
        CHILDREN_TEST(job_that_is_no_longer_ours_publishes_nothing),
        CHILDREN_TEST(result_of_a_cancelled_job_is_dropped),
        CHILDREN_TEST(job_that_was_lost_while_it_was_stopped_is_not_spoken_of),
        CHILDREN_TEST(result_of_no_task_of_the_suite_is_not_kept),
        CHILDREN_TEST(worker_is_sick_of_different_jobs_alone),
        CHILDREN_TEST(job_starts_only_where_its_needs_fit),
        CHILDREN_TEST(child_is_told_nothing_of_redis),
        CHILDREN_TEST(job_ends_at_its_limit_and_of_silence),
        CHILDREN_TEST(slot_moves_as_its_table_says),
        CHILDREN_TEST(waits_grow_to_the_limit_of_their_cause),
        CHILDREN_TEST(device_fault_is_counted_and_its_child_gets_no_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
