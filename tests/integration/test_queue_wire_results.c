/*
 * Tests the encoding of the calls at an attempt's end and of the results stream, and malformed
 * replies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "tests/fixture/queue.h"

static struct fixture_text entry_field(struct fixture *fx, const char *field)
{
    struct fixture_text text = {""};
    struct evq_reply *reply =
        fixture_call(fx->raw, "XRANGE", fixture_key(fx, "results"), "-", "+", "COUNT", "1", NULL);
    assert_int_equal(reply->item_count, 1);
    const struct evq_reply *fields = reply->items[0]->items[1];
    for (size_t i = 0; i + 1 < fields->item_count; i += 2) {
        if (strcmp(fields->items[i]->text, field) == 0) {
            (void)snprintf(text.text, sizeof text.text, "%s", fields->items[i + 1]->text);
        }
    }
    evq_reply_free(reply);
    return text;
}

static void queue_publish_writes_what_people_read(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    bool duplicate = false;

    (void)fixture_submit(fx, "r/7/ema/quick");
    struct evq_claim *claim = fixture_claim(fx);
    struct evq_result *result = fixture_result(claim, "t", 0.1);
    struct evq_metric *metrics = evq_arena_array(result->arena, 3, sizeof *metrics);
    metrics[0] = result->metrics[0];
    metrics[1] = (struct evq_metric){"acc_norm,none", (double)NAN, -1, (double)NAN};
    metrics[2] = (struct evq_metric){"loss", (double)INFINITY, 0, 0.25};
    result->metrics = metrics;
    result->metric_count = 3;
    assert_status_err(
        evq_queue_publish(fx->queue, claim->id, claim->token, result, &duplicate, &err), EVQ_OK,
        &err);
    assert_false(duplicate);
    assert_string_equal(entry_field(fx, "job").text, "r/7/ema/quick");
    assert_string_equal(entry_field(fx, "task").text, "t");
    assert_string_equal(entry_field(fx, "run").text, "r");
    assert_string_equal(entry_field(fx, "step").text, "7");
    assert_string_equal(entry_field(fx, "variant").text, "ema");
    assert_string_equal(entry_field(fx, "state").text, "done");
    assert_string_equal(entry_field(fx, "metric:accuracy").text, "0.10000000000000001");
    assert_string_equal(entry_field(fx, "metric:acc_norm,none").text, "nan");
    assert_string_equal(entry_field(fx, "metric:loss").text, "inf");
    assert_string_equal(entry_field(fx, "n").text, "100");
    assert_string_equal(entry_field(fx, "backend").text, "cpu");
    assert_string_equal(entry_field(fx, "attempt").text, "1");

    assert_status_err(
        evq_queue_publish(fx->queue, claim->id, claim->token, result, &duplicate, &err), EVQ_OK,
        &err);
    assert_true(duplicate);
    assert_status(evq_queue_publish(fx->queue, claim->id, "1.none", result, &duplicate, &err),
                  EVQ_E_LEASE_LOST);
    assert_holds(err.message, "r/7/ema/quick");
    result->task = "u";
    result->weights_digest = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    assert_status(evq_queue_publish(fx->queue, claim->id, claim->token, result, NULL, &err),
                  EVQ_E_CHANGED);
    fixture_assert_state(fx, claim->id, "skipped");
    evq_result_free(result);
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void queue_claim_names_tasks_done_before(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state now = EVQ_JOB_DONE;

    (void)fixture_submit(fx, "r/1/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    fixture_publish(fx, claim, "first", 0.5);
    assert_status_err(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_CRASH,
                                     "killed by signal 9", "stderr tail", &now, &err),
                      EVQ_OK, &err);
    assert_int_equal(now, EVQ_JOB_DELAYED);
    assert_status_err(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_CRASH, "again",
                                     NULL, &now, &err),
                      EVQ_OK, &err); // A repeated call gets the same answer.
    fixture_due(fx, claim->id);
    struct evq_claim *retry = fixture_claim(fx);
    assert_int_equal(retry->attempt, 2);
    assert_int_equal(retry->task_done_count, 1);
    assert_string_equal(retry->tasks_done[0], "first");
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, &err), EVQ_E_LEASE_LOST);
    assert_status(
        evq_queue_fail(fx->queue, claim->id, "1.none", EVQ_FAIL_RETRY, "late", NULL, &now, &err),
        EVQ_E_LEASE_LOST);
    fixture_assert_state(fx, retry->id, "running");
    evq_claim_free(claim);
    evq_claim_free(retry);
    fixture_audit(fx);
}

static void queue_complete_refuses_worker_whose_lease_lapsed(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};

    (void)fixture_submit(fx, "digits/100/regular/quick");
    struct evq_claim *late = fixture_claim(fx);
    fixture_lapse_lease(fx, late);
    struct evq_claim *retry = fixture_claim(fx);
    assert_string_equal(retry->id, late->id);
    assert_int_equal(retry->attempt, 2);
    assert_status(evq_queue_complete(fx->queue, late->id, late->token, &err), EVQ_E_LEASE_LOST);
    fixture_publish(fx, retry, "t", 0.5);
    assert_status_err(evq_queue_complete(fx->queue, retry->id, retry->token, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_complete(fx->queue, retry->id, retry->token, &err), EVQ_OK, &err);
    assert_int_equal(fixture_results_published(fx), 1);
    assert_int_equal(fixture_ends(fx, "done"), 1);
    evq_claim_free(late);
    evq_claim_free(retry);
    fixture_audit(fx);
}

static void queue_complete_and_claim_does_both(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *next = NULL;
    struct evq_claimed claimed;
    enum evq_status completed = EVQ_E_BUG;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    struct evq_claim *first = fixture_claim(fx);
    struct evq_claim_request request = {.worker = fx->worker,
                                        .request = "fused-1",
                                        .lease_ms = EVQ_QUEUE_LEASE_MS,
                                        .claims_max = 1,
                                        .classes = fx->classes,
                                        .class_count = fx->class_count};
    assert_status_err(evq_queue_complete_and_claim(fx->queue, first->id, first->token, &request,
                                                   &completed, &next, &claimed, &err),
                      EVQ_OK, &err);
    assert_int_equal(completed, EVQ_OK);
    assert_int_equal(claimed.count, 1);
    assert_string_equal(next->id, "r/2/regular/quick");
    request.request = "fused-2";
    assert_status_err(evq_queue_complete_and_claim(fx->queue, first->id, "1.none", &request,
                                                   &completed, &next, &claimed, &err),
                      EVQ_OK, &err);
    assert_int_equal(completed, EVQ_E_LEASE_LOST);
    assert_int_equal(claimed.count, 0);
    evq_claim_free(first);
    evq_claim_free(next);
    fixture_audit(fx);
}

/*
 * Each is handled by itself. A rejected one is distinguished from the others, also when the call is
 * repeated.
 */
static void queue_publishes_many_at_once(void **state)
{
    struct fixture *fx = *state;
    enum { COUNT = 4 };
    struct evq_error err = {EVQ_OK, ""};
    struct evq_publication many[COUNT];
    struct evq_result *results[COUNT];
    struct evq_claim *claims[COUNT];

    for (int i = 0; i < COUNT; i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", i + 1);
        (void)fixture_submit(fx, id);
        claims[i] = fixture_claim(fx);
        results[i] = fixture_result(claims[i], "t", 0.5);
        many[i] = (struct evq_publication){
            claims[i]->id, claims[i]->token, results[i], EVQ_E_BUG, {EVQ_OK, ""}};
    }
    many[0].token = "1.none";
    results[2]->task = "no name";
    for (int turn = 0; turn < 2; turn++) {
        assert_status_err(evq_queue_publish_many(fx->queue, many, COUNT, &err), EVQ_OK, &err);
        assert_status(many[0].status, EVQ_E_LEASE_LOST);
        assert_status(many[1].status, EVQ_OK);
        assert_status(many[2].status, EVQ_E_INVALID);
        assert_non_null(strstr(many[2].error.message, "task"));
        assert_status(many[3].status, EVQ_OK);
    }
    assert_int_equal(fixture_results_published(fx), 2);
    for (int i = 0; i < COUNT; i++) {
        evq_result_free(results[i]);
        evq_claim_free(claims[i]);
    }
    fixture_audit(fx);
}

/*
 * Even if the complete is rejected, the claim in the same call has its answer, and a repetition
 * gives the same one.
 */
static void queue_completes_many_and_claims_in_one_write(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *done[2];
    struct evq_claim *next[2][2];
    struct evq_claimed claimed;

    for (int step = 1; step <= 4; step++) {
        char id[64];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", step);
        (void)fixture_submit(fx, id);
    }
    for (int i = 0; i < 2; i++) {
        done[i] = fixture_claim(fx);
    }
    struct evq_completion ends[] = {{done[0]->id, done[0]->token, EVQ_E_BUG},
                                    {done[1]->id, "1.none", EVQ_E_BUG}};
    struct evq_claim_request request = {.worker = fx->worker,
                                        .request = "with-many",
                                        .lease_ms = EVQ_QUEUE_LEASE_MS,
                                        .claims_max = 2,
                                        .classes = fx->classes,
                                        .class_count = fx->class_count};
    for (int turn = 0; turn < 2; turn++) { // The second one is repeated, as after a lost reply.
        enum evq_status completed = EVQ_E_BUG;
        assert_status_err(evq_queue_complete_many_and_claim(fx->queue, ends, 2, &request,
                                                            &completed, next[turn], &claimed, &err),
                          EVQ_OK, &err);
        assert_status(completed, EVQ_OK);
        assert_status(ends[0].status, EVQ_OK);
        assert_status(ends[1].status, EVQ_E_LEASE_LOST);
        assert_int_equal(claimed.count, 2);
        assert_string_equal(next[turn][0]->id, "r/3/regular/quick");
        assert_string_equal(next[turn][0]->token, next[0][0]->token);
        assert_string_equal(next[turn][1]->token, next[0][1]->token);
    }
    assert_int_equal(fixture_ends(fx, "done"), 1);
    enum evq_status completed = EVQ_E_BUG;
    ends[0].id = "no id";
    request.request = "with-none";
    assert_status(evq_queue_complete_many_and_claim(fx->queue, ends, 2, &request, &completed,
                                                    next[0] + 1, &claimed, &err),
                  EVQ_OK);
    assert_status(completed, EVQ_E_INVALID);
    assert_status(err.status, EVQ_E_INVALID);
    assert_int_equal(claimed.count, 0);
    for (int i = 0; i < 2; i++) {
        evq_claim_free(done[i]);
        evq_claim_free(next[0][i]);
        evq_claim_free(next[1][i]);
    }
    fixture_audit(fx);
}

static void queue_split_hands_shards_out_and_parts_back(void **state)
{
    struct fixture *fx = *state;
    enum { SHARDS = 3 };
    struct evq_error err = {EVQ_OK, ""};
    struct evq_reply *parts = NULL;
    struct evq_claim *shards[SHARDS] = {NULL};

    (void)fixture_submit(fx, "r/1/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_split(fx->queue, claim->id, claim->token, 1, &err), EVQ_E_INVALID);
    assert_status_err(evq_queue_split(fx->queue, claim->id, claim->token, SHARDS, &err), EVQ_OK,
                      &err);
    for (int i = 0; i < SHARDS; i++) {
        struct evq_claim *shard = fixture_claim(fx);
        assert_true(shard->shard >= 0 && shard->shard < SHARDS);
        assert_int_equal(shard->shard_count, SHARDS);
        assert_null(shards[shard->shard]);
        assert_non_null(shard->job); // This is the message of the parent job.
        shards[shard->shard] = shard;
    }
    fixture_claim_none(fx);
    for (int i = SHARDS - 1; i >= 0; i--) { // The parts are given in reverse order.
        const char part[3] = {'p', '\0', (char)('0' + i)};
        assert_status(
            evq_queue_complete_shard(fx->queue, shards[i]->id, shards[i]->token, part, 0, &err),
            EVQ_E_LIMIT);
        assert_status_err(evq_queue_complete_shard(fx->queue, shards[i]->id, shards[i]->token, part,
                                                   sizeof part, &err),
                          EVQ_OK, &err);
        evq_claim_free(shards[i]);
    }
    struct evq_claim *merge = fixture_claim(fx);
    assert_true(merge->merge);
    assert_string_equal(merge->id, claim->id);
    assert_status(evq_queue_shard_parts(fx->queue, merge->id, "1.none", &parts, &err),
                  EVQ_E_LEASE_LOST);
    assert_status_err(evq_queue_shard_parts(fx->queue, merge->id, merge->token, &parts, &err),
                      EVQ_OK, &err);
    assert_int_equal(parts->item_count, SHARDS);
    for (int i = 0; i < SHARDS; i++) {
        assert_int_equal(parts->items[i]->bytes, 3);
        assert_int_equal(parts->items[i]->text[2], '0' + i);
    }
    evq_reply_free(parts);
    evq_claim_free(merge);
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void queue_adopt_puts_back_what_redis_forgot(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};

    (void)fixture_submit(fx, "r/1/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    fixture_reset(fx);
    assert_status_err(evq_queue_adopt(fx->queue, fx->worker, claim, EVQ_QUEUE_LEASE_MS, &err),
                      EVQ_OK, &err);
    fixture_assert_state(fx, claim->id, "running");
    fixture_publish(fx, claim, "t", 0.5);
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    fixture_assert_state(fx, claim->id, "done");
    evq_claim_free(claim);
    fixture_audit(fx);
}

struct seen {
    int count;
    int64_t finished_ms;
    char last[EVQ_RESULT_ID_BYTES_MAX];
    double value;
};

static void see(void *context, const struct evq_result *result)
{
    struct seen *seen = context;
    seen->count++;
    seen->finished_ms = result->finished_ms;
    evq_result_id(result, seen->last);
    if (result->metric_count > 0) {
        seen->value = result->metrics[0].value;
    }
}

static void queue_run_results_pages_through_a_run(void **state)
{
    struct fixture *fx = *state;
    enum { JOBS = 120 }; // Together with their ends, these are more than two pages.
    struct evq_error err = {EVQ_OK, ""};
    struct seen seen = {0};
    struct evq_run_counts counts;
    int64_t cursor = 0;
    int64_t before = -1;
    int64_t step = 0;
    int pages = 0;

    for (int i = 0; i < JOBS; i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", i);
        fixture_finish(fx, id, 0.25 * i);
    }
    while (cursor != before) {
        before = cursor;
        assert_status_err(evq_queue_run_results(fx->queue, "r", &cursor, see, &seen, &err), EVQ_OK,
                          &err);
        pages++;
    }
    assert_int_equal(seen.count, 2 * JOBS);
    assert_int_equal(pages, 4);
    assert_holds(seen.last, "r/119/regular/quick#");
    assert_near(seen.value, 0.25 * (JOBS - 1), 0.0);
    assert_true(llabs(seen.finished_ms - evq_clock_unix_ms()) < 60000);
    cursor = 0;
    assert_status_err(evq_queue_run_results(fx->queue, "none", &cursor, see, &seen, &err), EVQ_OK,
                      &err);
    assert_int_equal(cursor, 0);
    assert_status_err(evq_queue_run_counts(fx->queue, "r", &counts, &err), EVQ_OK, &err);
    assert_int_equal(counts.by_state[EVQ_JOB_DONE], JOBS);
    assert_int_equal(counts.open, 0);
    assert_status_err(evq_queue_smallest_open_step(fx->queue, "r", "regular", "quick", &step, &err),
                      EVQ_OK, &err);
    assert_int_equal(step, -1);
    (void)fixture_submit(fx, "r/500/regular/quick");
    assert_status_err(evq_queue_smallest_open_step(fx->queue, "r", "regular", "quick", &step, &err),
                      EVQ_OK, &err);
    assert_int_equal(step, 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(queue_publish_writes_what_people_read, fixture_fresh),
        cmocka_unit_test_setup(queue_claim_names_tasks_done_before, fixture_fresh),
        cmocka_unit_test_setup(queue_complete_refuses_worker_whose_lease_lapsed, fixture_fresh),
        cmocka_unit_test_setup(queue_complete_and_claim_does_both, fixture_fresh),
        cmocka_unit_test_setup(queue_publishes_many_at_once, fixture_fresh),
        cmocka_unit_test_setup(queue_completes_many_and_claims_in_one_write, fixture_fresh),
        cmocka_unit_test_setup(queue_split_hands_shards_out_and_parts_back, fixture_fresh),
        cmocka_unit_test_setup(queue_adopt_puts_back_what_redis_forgot, fixture_fresh),
        cmocka_unit_test_setup(queue_run_results_pages_through_a_run, fixture_fresh),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
