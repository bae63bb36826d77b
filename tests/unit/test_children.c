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

#include "tests/fixture/memory.h"
#include "tests/fixture/queue.h"
#include "worker/supervisor.h"

#define ID "digits/100/regular/quick"

struct scene {
    struct evq_task_config task;
    struct evq_suite suite;
    struct evq_config config;
    struct evq_room room;
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
    scene->supervisor.rooms = &scene->room;
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
    assert_false(evq_lease_publish(lease, fixture_result(lease->claim, "t", 0.5)));
    assert_true(evq_lease_end(lease, EVQ_OUTBOX_COMPLETE));
    assert_int_equal(fixture_memory_give(), 2);
    assert_non_null(lease->first);
    assert_int_equal(lease->first->kind, EVQ_OUTBOX_COMPLETE);
}

static void lease_that_failed_says_so_without_memory(void **state)
{
    struct scene *scene = *state;

    fixture_memory_refuse(0, SIZE_MAX - 1);
    assert_true(evq_lease_fail(scene->lease, EVQ_FAIL_RETRY, "out of memory", NULL));
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
    evq_slot_set(&scene->slot, EVQ_SLOT_RUNNING);
}

static void job_with_its_result_completes(void **state)
{
    struct scene *scene = *state;

    child_finishes(scene);
    evq_children_read(&scene->supervisor, &scene->slot);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_PUBLISH);
    assert_int_equal(scene->lease->first->next->kind, EVQ_OUTBOX_COMPLETE);
}

static void job_whose_result_was_lost_for_want_of_memory_does_not_complete(void **state)
{
    struct scene *scene = *state;

    child_finishes(scene);
    outbox_refuse();
    evq_children_read(&scene->supervisor, &scene->slot);
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
    evq_children_read(&scene->supervisor, &scene->slot);
    assert_true(fixture_memory_give() > 0);
    evq_children_read(&scene->supervisor, &scene->slot);
    assert_null(scene->lease->first);
    assert_ptr_equal(scene->slot.lease, scene->lease);
}

static void child_that_can_no_longer_be_heard_is_killed(void **state)
{
    struct scene *scene = *state;
    int wait_status = 0;

    const pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(60); // Should the test fail and leave it.
        (void)pause();
        _exit(0);
    }
    assert_true(pid > 0);
    scene->slot.pid = pid;
    evq_slot_set(&scene->slot, EVQ_SLOT_IDLE);
    assert_status(evq_channel_send(&scene->child, "hello", NULL, 0, NULL), EVQ_OK);
    fixture_memory_refuse(0, SIZE_MAX - 1); // Of what it says nothing can be taken in.
    evq_children_read(&scene->supervisor, &scene->slot);
    assert_true(fixture_memory_give() > 0);
    scene->slot.pid = 0;
    (void)alarm(60); // One that lives is waited for in vain.
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    (void)alarm(0);
    assert_true(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);
}

/* Its end is not reaped yet: else job after job is claimed and given back, as fast as Redis can. */
static void dead_child_is_given_no_further_job(void **state)
{
    struct scene *scene = *state;

    evq_channel_close(&scene->child);
    evq_slot_set(&scene->slot, EVQ_SLOT_IDLE);
    evq_children_work(&scene->supervisor, &scene->slot, scene->lease);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_RELEASE);
    assert_null(scene->slot.lease);
    assert_int_not_equal(scene->slot.state, EVQ_SLOT_IDLE);
}

/* The slot runs the job, and its child says that it failed. */
static void child_fails(struct scene *scene, enum evq_status status)
{
    const struct evq_field fields[] = {
        evq_channel_integer("status", status), evq_channel_integer("crash", 0),
        evq_channel_text("message", "failed"), evq_channel_text("detail", "")};

    scene->slot.lease = scene->lease;
    evq_slot_set(&scene->slot, EVQ_SLOT_RUNNING);
    assert_status(evq_channel_send(&scene->child, "error", fields, 4, NULL), EVQ_OK);
    evq_children_read(&scene->supervisor, &scene->slot);
}

/* A machine without room is not its job's fault. */
static void job_that_found_no_room_goes_back_and_its_suite_waits(void **state)
{
    struct scene *scene = *state;

    assert_false(evq_room_held(&scene->supervisor, &scene->suite));
    child_fails(scene, EVQ_E_FULL);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_RELEASE);
    assert_int_equal(scene->slot.state, EVQ_SLOT_IDLE);
    assert_true(evq_room_held(&scene->supervisor, &scene->suite));
    scene->supervisor.claim_due = false;
    evq_room_tick(&scene->supervisor, evq_room_due_ms(&scene->supervisor));
    assert_true(scene->supervisor.claim_due);
    assert_false(evq_room_held(&scene->supervisor, &scene->suite));
    evq_room_found(&scene->supervisor, &scene->suite);
    assert_false(evq_room_lacks(&scene->supervisor));
}

/* Slots that began before one of them found out are the same try. */
static void slots_that_find_no_room_at_once_wait_as_one(void **state)
{
    struct scene *scene = *state;

    child_fails(scene, EVQ_E_FULL);
    const int64_t due_ms = evq_room_due_ms(&scene->supervisor);
    evq_room_lack(&scene->supervisor, &scene->suite, "no room");
    assert_int_equal(evq_room_due_ms(&scene->supervisor), due_ms);
    assert_int_equal(scene->room.tries, 1);
}

static void job_that_fails_of_its_own_has_found_room(void **state)
{
    struct scene *scene = *state;

    evq_room_lack(&scene->supervisor, &scene->suite, "no room");
    child_fails(scene, EVQ_E_CORRUPT);
    assert_int_equal(scene->lease->first->kind, EVQ_OUTBOX_FAIL);
    assert_false(evq_room_lacks(&scene->supervisor));
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
        CHILDREN_TEST(job_that_found_no_room_goes_back_and_its_suite_waits),
        CHILDREN_TEST(slots_that_find_no_room_at_once_wait_as_one),
        CHILDREN_TEST(job_that_fails_of_its_own_has_found_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
