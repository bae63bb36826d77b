/*
 * If Redis lacks functions or permissions for a while, the worker keeps its calls of all kinds, and
 * repeats them later. A job that ends meanwhile does not become dead.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "shared/queue/function_library.h"
#include "tests/fixture/queue.h"
#include "worker/supervisor/supervisor.h"

#define SHARDS 2

static const struct evq_task_config task = {.name = "t"};
static const struct evq_suite suite = {.name = "quick",
                                       .digest = "0123456789abcdef0123456789abcdef",
                                       .evaluator = "native",
                                       .prepare = "",
                                       .shards = SHARDS,
                                       .tasks = &task,
                                       .task_count = 1};

static struct evq_claim *claim_split(struct fixture *fx)
{
    struct evq_claim *claim = fixture_claim(fx);

    assert_status(evq_queue_split(fx->queue, claim->id, claim->token, SHARDS, NULL), EVQ_OK);
    evq_claim_free(claim);
    return fixture_claim(fx);
}

/* All shards of the job are done. */
static struct evq_claim *claim_merge(struct fixture *fx, struct evq_claim *shard)
{
    for (int i = 0; i < SHARDS; i++) {
        assert_status(evq_queue_complete_shard(fx->queue, shard->id, shard->token, "part", 4, NULL),
                      EVQ_OK);
        evq_claim_free(shard);
        shard = fixture_claim(fx);
    }
    assert_true(shard->merge);
    return shard;
}

/* The job whose worker makes this call. */
static struct evq_lease *lease_with(struct fixture *fx, const char *id, enum evq_outbox_kind kind)
{
    (void)fixture_submit(fx, id);
    struct evq_claim *claim = kind == EVQ_OUTBOX_COMPLETE_SHARD || kind == EVQ_OUTBOX_MERGE
                                  ? claim_split(fx)
                                  : fixture_claim(fx);
    claim = kind == EVQ_OUTBOX_MERGE ? claim_merge(fx, claim) : claim;
    struct evq_lease *lease = evq_lease_new(claim, &suite, fx->worker);
    assert_non_null(lease);
    if (kind == EVQ_OUTBOX_PUBLISH) {
        assert_true(evq_lease_queue_publish(lease, fixture_result(claim, "t", 0.5)));
        assert_true(evq_lease_queue_end(lease, EVQ_OUTBOX_COMPLETE));
    } else if (kind == EVQ_OUTBOX_FAIL) {
        assert_true(evq_lease_queue_fail(lease, EVQ_FAIL_RETRY, "it broke", NULL));
    } else {
        assert_true(evq_lease_queue_end(lease, kind));
    }
    evq_buffer_text(&lease->part, "part");
    return lease;
}

static void refuse_all(struct fixture *fx, bool library)
{
    evq_reply_free(
        library ? fixture_call(fx->raw, "FUNCTION", "FLUSH", NULL)
                : fixture_call(fx->raw, "ACL", "SETUSER", "default", "-fcall", "-fcall_ro", NULL));
}

static void allow_all(struct fixture *fx)
{
    struct evq_error err;
    int64_t build = 0;

    evq_reply_free(fixture_call(fx->raw, "ACL", "SETUSER", "default", "+@all", NULL));
    assert_status_err(evq_function_library_install(fx->raw, &build, &err), EVQ_OK, &err);
}

static void what_is_refused_waits(struct fixture *fx, bool library)
{
    static const struct {
        enum evq_outbox_kind kind;
        const char *state; // The state of the job at the end.
    } words[] = {{EVQ_OUTBOX_PUBLISH, "done"},  {EVQ_OUTBOX_COMPLETE, "done"},
                 {EVQ_OUTBOX_FAIL, "delayed"},  {EVQ_OUTBOX_RELEASE, "queued"},
                 {EVQ_OUTBOX_SPLIT, "running"}, {EVQ_OUTBOX_COMPLETE_SHARD, "running"},
                 {EVQ_OUTBOX_MERGE, "running"}};
    struct evq_supervisor supervisor = {.draining = true};
    char id[64];

    supervisor.redis.conn = fx->conn;
    supervisor.redis.queue = fx->queue;
    for (int i = 0; i < (int)(sizeof(words) / sizeof(words[0])); i++) {
        (void)snprintf(id, sizeof(id), "r/%d/regular/quick", i + 1);
        struct evq_lease *lease = lease_with(fx, id, words[i].kind);
        supervisor.leases = lease;
        refuse_all(fx, library);
        assert_false(evq_result_outbox_flush(&supervisor));
        assert_ptr_equal(supervisor.leases, lease);
        assert_int_equal(lease->first->kind, words[i].kind);
        allow_all(fx);
        if (words[i].kind != EVQ_OUTBOX_MERGE) { // The job has no parts here.
            assert_true(evq_result_outbox_flush(&supervisor));
            assert_null(supervisor.leases);
        } else {
            evq_lease_free(lease);
        }
        fixture_assert_state(fx, id, words[i].state);
        evq_reply_free(fixture_call(fx->raw, "FCALL", "evalq_v1_cancel", "1", fixture_key(fx, ""),
                                    id, "", NULL)); // The next claim must get the next job.
    }
    assert_int_equal(fixture_results_published(fx), 1);
    assert_int_equal(fixture_ends(fx, "dead"), 0);
    fixture_audit(fx);
}

static void outbox_waits_while_the_library_is_missing(void **state)
{
    what_is_refused_waits(*state, true);
}

static void outbox_waits_while_the_permission_is_missing(void **state)
{
    what_is_refused_waits(*state, false);
}

/* One call completes several jobs; each of them fails by itself. */
static void outbox_waits_while_a_function_may_not_do_its_work(void **state)
{
    struct fixture *fx = *state;
    struct evq_supervisor supervisor = {.draining = true};

    supervisor.redis.conn = fx->conn;
    supervisor.redis.queue = fx->queue;
    supervisor.leases = lease_with(fx, "r/1/regular/quick", EVQ_OUTBOX_COMPLETE);
    supervisor.leases->next = lease_with(fx, "r/2/regular/quick", EVQ_OUTBOX_COMPLETE);
    evq_reply_free(fixture_call(fx->raw, "ACL", "SETUSER", "default", "-zrem", NULL));
    assert_false(evq_result_outbox_flush(&supervisor));
    assert_non_null(supervisor.leases->next);
    allow_all(fx);
    assert_true(evq_result_outbox_flush(&supervisor));
    assert_int_equal(fixture_ends(fx, "done"), 2);
    assert_int_equal(fixture_ends(fx, NULL), 2);
    fixture_audit(fx);
}

/*
 * The job's hash keeps 64 bytes of a reason. The cause is among them, and the path after it is cut.
 */
static void outbox_keeps_the_cause_of_a_long_reason(void **state)
{
    struct fixture *fx = *state;
    const char *id = "r/1/regular/quick";
    struct evq_supervisor supervisor = {.draining = true};

    supervisor.redis.conn = fx->conn;
    supervisor.redis.queue = fx->queue;
    (void)fixture_submit(fx, id);
    struct evq_lease *lease = evq_lease_new(fixture_claim(fx), &suite, fx->worker);
    assert_non_null(lease);
    assert_true(evq_lease_queue_fail(
        lease, EVQ_FAIL_FATAL,
        "open '/checkpoints/of/a/long/name/step-100/weights.bin': permission denied", NULL));
    supervisor.leases = lease;
    assert_true(evq_result_outbox_flush(&supervisor));
    fixture_assert_state(fx, id, "dead");
    assert_int_equal(strncmp(fixture_job_field(fx, id, "reason").text,
                             "open: permission denied ('/checkpoints/", 39),
                     0);
}

int main(void)
{
#define OUTBOX_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        OUTBOX_TEST(outbox_waits_while_the_library_is_missing),
        OUTBOX_TEST(outbox_waits_while_the_permission_is_missing),
        OUTBOX_TEST(outbox_waits_while_a_function_may_not_do_its_work),
        OUTBOX_TEST(outbox_keeps_the_cause_of_a_long_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
