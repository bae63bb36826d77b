/*
 * A supervisor reads the queue's classes again until it knows all of them, because it never claims
 * jobs of an unknown class. It sends heartbeats for all jobs that it holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fixture/memory.h"
#include "tests/fixture/queue.h"
#include "worker/supervisor/supervisor.h"

#define DAY_MS INT64_C(86400000)
#define JOBS   600 // A worker may have 1,024 slots, which is more than one heartbeat call can hold.

struct scene {
    struct fixture *fx;
    struct evq_options options;
    struct evq_suite suite;
    struct evq_config config;
    struct evq_backoff pause;
    bool offered;
    double seconds;
    struct evq_slot slot;
    struct evq_supervisor supervisor;
};

static bool starving; // The next check of which classes fit a slot fails with EVQ_E_NOMEM.

/* tests/links/memory.cmake defines these names for the linker. */
enum evq_status __real_evq_suite_registry_fit(const struct evq_suite_registry *offer,
                                              struct evq_slot *slot);
enum evq_status __wrap_evq_suite_registry_fit(const struct evq_suite_registry *offer,
                                              struct evq_slot *slot);

enum evq_status __wrap_evq_suite_registry_fit(const struct evq_suite_registry *offer,
                                              struct evq_slot *slot)
{
    if (!starving) {
        return __real_evq_suite_registry_fit(offer, slot);
    }
    starving = false;
    fixture_memory_refuse(0, SIZE_MAX - 1);
    const enum evq_status status = __real_evq_suite_registry_fit(offer, slot);
    assert_true(fixture_memory_give() > 0);
    return status;
}

/* Creates an idle worker with one slot that offers the suite "own". */
static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    struct evq_supervisor *supervisor = &scene->supervisor;

    assert_non_null(scene);
    scene->fx = fixture_open(NULL);
    scene->offered = true;
    scene->suite = (struct evq_suite){.name = "own",
                                      .digest = "0123456789abcdef0123456789abcdef",
                                      .definition = "{}",
                                      .evaluator = "native",
                                      .prepare = "",
                                      .shards = 1,
                                      .every = 1};
    scene->config.suites = &scene->suite;
    scene->config.suite_count = 1;
    evq_slot_init(&scene->slot, 0);
    scene->slot.state = EVQ_SLOT_IDLE;
    supervisor->options = &scene->options;
    supervisor->config = &scene->config;
    supervisor->registry = (struct evq_suite_registry){
        .config = &scene->config, .suites = &scene->offered, .where = "here", .version = -1};
    (void)strcpy(supervisor->name, "worker-1");
    supervisor->lease_ms = 15000;
    supervisor->heartbeat_ms = DAY_MS;
    supervisor->beat_due_ms = INT64_MAX;
    supervisor->redis.conn = scene->fx->conn;
    supervisor->redis.queue = scene->fx->queue;
    supervisor->redis.call_timeout_ms = 5000;
    supervisor->slots = &scene->slot;
    supervisor->slot_count = 1;
    supervisor->suite_seconds = &scene->seconds;
    supervisor->disk_pauses = &scene->pause;
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    starving = false;
    (void)fixture_memory_give();
    fixture_close(scene->fx);
    free(scene);
    return 0;
}

/* Runs one round at once. */
static void round_run(struct scene *scene)
{
    scene->supervisor.redis.backoff.until_ms = 0;
    scene->supervisor.classes_retry_ms = 0;
    evq_redis_round_run(&scene->supervisor);
    evq_redis_session_wait_drop(&scene->supervisor.redis); // The fixture uses this connection too.
}

/* Asserts which classes the supervisor knows, and that it need not read them again. */
static void assert_knows(const struct scene *scene, uint32_t classes)
{
    assert_int_equal(scene->supervisor.registry.class_count, classes);
    assert_false(scene->supervisor.classes_stale);
}

static void slot_whose_check_found_no_memory_is_checked_again(void **state)
{
    struct scene *scene = *state;

    starving = true;
    round_run(scene);
    assert_false(starving);
    assert_int_equal(scene->slot.fits, 0);
    assert_true(scene->supervisor.classes_stale);
    // The worker does not ask as fast as Redis answers.
    assert_true(evq_redis_round_due_ms(&scene->supervisor) > 0);
    round_run(scene);
    assert_int_not_equal(scene->slot.fits, 0);
    assert_knows(scene, 2); // One of them is the fixture's connection.
}

static void class_that_came_is_read_after_the_next_heartbeat(void **state)
{
    struct scene *scene = *state;

    round_run(scene);
    assert_knows(scene, 2);
    (void)fixture_suite(scene->fx, "later");
    scene->supervisor.claim_due = false; // A claim would report the class too.
    round_run(scene);
    assert_knows(scene, 2);
    scene->supervisor.beat_due_ms = 0;
    round_run(scene);
    round_run(scene);
    assert_knows(scene, 3);
}

static void classes_are_read_again_after_a_claim_was_refused(void **state)
{
    struct scene *scene = *state;
    struct fixture *fx = scene->fx;

    round_run(scene);
    (void)fixture_suite(fx, "later");
    evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, "block"), "rubbish", NULL));
    scene->supervisor.claim_due = true;
    round_run(scene);
    assert_int_equal(scene->supervisor.registry.class_count, 2);
    assert_true(scene->supervisor.redis.backoff.until_ms > 0);
    evq_reply_free(fixture_call(fx->raw, "DEL", fixture_key(fx, "block"), NULL));
    scene->supervisor.claim_due = false;
    round_run(scene);
    assert_knows(scene, 3);
}

/* Otherwise it would claim and wait as fast as Redis answers. */
static void worker_that_may_not_wait_for_markers_claims_now_and_then(void **state)
{
    struct scene *scene = *state;
    struct evq_supervisor *supervisor = &scene->supervisor;
    struct fixture *fx = scene->fx;

    round_run(scene);
    for (uint32_t i = 0; i < supervisor->registry.class_count; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "wake:%u", supervisor->registry.classes[i].number);
        evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, key), NULL));
        evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, key), "rubbish", NULL));
    }
    supervisor->claim_due = false;
    evq_redis_round_run(supervisor);
    assert_non_null(supervisor->redis.waiting);
    FIXTURE_UNTIL((evq_redis_round_wake(supervisor, true), supervisor->redis.waiting == NULL));
    assert_true(supervisor->claim_due);
    assert_true(evq_redis_round_due_ms(supervisor) > 0);
    (void)fixture_submit(fx, "r/1/regular/own"); // This creates the marker of the class again.
    assert_int_equal(fixture_bad_entries(fx), 1);
}

/* Submits and claims JOBS jobs. */
static void leases_take(struct scene *scene)
{
    struct evq_supervisor *supervisor = &scene->supervisor;
    struct fixture *fx = scene->fx;
    char id[64];

    (void)fixture_suite(fx, "own");
    for (int i = 0; i < JOBS; i++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/own", i);
        (void)fixture_submit(fx, id);
        struct evq_lease *lease = evq_lease_new(fixture_claim(fx), &scene->suite, supervisor->name);
        assert_non_null(lease);
        lease->state = EVQ_LEASE_RUNNING;
        lease->next = supervisor->leases;
        supervisor->leases = lease;
    }
    scene->slot.state = EVQ_SLOT_RUNNING;
}

static void leases_drop(struct evq_supervisor *supervisor)
{
    while (supervisor->leases != NULL) {
        evq_lease_list_remove(supervisor, supervisor->leases);
    }
}

static void every_lease_is_beaten_for_however_many_there_are(void **state)
{
    struct scene *scene = *state;
    struct fixture *fx = scene->fx;
    char id[64];

    round_run(scene);
    leases_take(scene);
    scene->supervisor.beat_due_ms = 0;
    round_run(scene);
    for (int i = 0; i < JOBS; i++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/own", i);
        assert_string_equal(fixture_job_field(fx, id, "hb").text, "1");
    }
    leases_drop(&scene->supervisor);
}

/*
 * After the data are lost, the worker keeps all leases, no matter which call carried their
 * heartbeat.
 */
static void leases_of_a_lost_keyspace_are_adopted_however_many_there_are(void **state)
{
    struct scene *scene = *state;
    struct evq_supervisor *supervisor = &scene->supervisor;
    size_t count = 0;

    round_run(scene);
    leases_take(scene);
    round_run(scene); // The worker stays connected, so only the answers show the loss.
    fixture_reset(scene->fx);
    supervisor->beat_due_ms = 0;
    round_run(scene);
    assert_true(supervisor->adopt_due);
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        count++;
    }
    assert_int_equal(count, JOBS);
    leases_drop(supervisor);
}

/* The answer to a claim for two slots was lost. By now, one of the slots is busy or out of use. */
static void claim_repeated_for_fewer_slots_takes_what_it_was_given(void **state)
{
    struct scene *scene = *state;
    struct evq_supervisor *supervisor = &scene->supervisor;
    struct fixture *fx = scene->fx;
    struct evq_claim *claims[2];
    struct evq_claimed claimed = {0};
    const struct evq_claim_request request = {.worker = supervisor->name,
                                              .request = "lost",
                                              .lease_ms = 15000,
                                              .claims_max = 2,
                                              .classes = fx->classes,
                                              .class_count = fx->class_count};

    round_run(scene);
    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    assert_status(evq_queue_claim(fx->queue, &request, claims, &claimed, NULL), EVQ_OK);
    assert_int_equal(claimed.count, 2);
    (void)strcpy(supervisor->request, "lost");
    supervisor->claim_due = true;
    round_run(scene);
    assert_string_equal(supervisor->request, "");
    // The suite is not offered here, and the worker logs this for each job.
    for (int i = 0; i < 2; i++) {
        fixture_assert_state(fx, claims[i]->id, "delayed");
        evq_claim_free(claims[i]);
    }
    assert_null(supervisor->leases);
}

#define DISPATCH_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DISPATCH_TEST(slot_whose_check_found_no_memory_is_checked_again),
        DISPATCH_TEST(class_that_came_is_read_after_the_next_heartbeat),
        DISPATCH_TEST(classes_are_read_again_after_a_claim_was_refused),
        DISPATCH_TEST(worker_that_may_not_wait_for_markers_claims_now_and_then),
        DISPATCH_TEST(every_lease_is_beaten_for_however_many_there_are),
        DISPATCH_TEST(leases_of_a_lost_keyspace_are_adopted_however_many_there_are),
        DISPATCH_TEST(claim_repeated_for_fewer_slots_takes_what_it_was_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
