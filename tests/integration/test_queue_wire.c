/*
 * Tests the encoding of each queue call: arguments arrive as given, and replies are returned
 * completely. test_queue_*.c tests what the calls do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "tests/fixture/queue.h"

static void queue_open_checks_its_name(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_queue *queue = NULL;
    char long_name[80];

    assert_string_equal(evq_queue_name(fx->queue), "main");
    assert_string_equal(evq_queue_prefix(fx->queue), "evalq:{main}:");
    memset(long_name, 'q', sizeof long_name);
    long_name[65] = '\0';
    const char *const wrong[] = {"", "a b", "a}b", "a*", "ä", long_name};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_status(evq_queue_open(fx->conn, wrong[i], &queue, &err), EVQ_E_INVALID);
        assert_null(queue);
    }
    long_name[64] = '\0';
    assert_status_err(evq_queue_open(fx->conn, long_name, &queue, &err), EVQ_OK, &err);
    evq_queue_close(queue);
}

static void queue_info_tells_epoch_and_times(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_queue_info info;
    struct evq_queue_info later;

    assert_status_err(evq_queue_info(fx->queue, &info, &err), EVQ_OK, &err);
    assert_true(info.build >= 1);
    assert_true(strlen(info.epoch) >= 16); // Registering the suite was a write.
    assert_int_equal(info.lease_ms, EVQ_QUEUE_LEASE_MS);
    assert_int_equal(info.heartbeat_ms, EVQ_QUEUE_HEARTBEAT_MS);
    assert_true(llabs(info.now_ms - evq_clock_unix_ms()) < 60000);
    fixture_reset(fx);
    assert_status_err(evq_queue_info(fx->queue, &later, &err), EVQ_OK, &err);
    assert_string_not_equal(info.epoch, later.epoch);
    evq_reply_free(fixture_call(fx->raw, "FUNCTION", "FLUSH", NULL));
    assert_status(evq_queue_info(fx->queue, &later, &err), EVQ_E_VERSION);
    assert_holds(err.message, "evalq_v1 is missing in unix://");
    assert_holds(err.message, "evalq admin install");
}

/* Every field of the message arrives at the claimer, and the plain ones are in the hash. */
static void queue_submit_carries_the_whole_message(void **state)
{
    struct fixture *fx = *state;
    struct evq_job *job = fixture_job("run.1/42/ema/quick");
    struct evq_pair *param = evq_arena_array(job->arena, 2, sizeof *param);

    param[0] = (struct evq_pair){"temperature", "0.5"};
    param[1] = (struct evq_pair){"text", "a\"b\\c\xc3\xa4"};
    job->params = param;
    job->param_count = 2;
    job->epoch = 1.5;
    job->priority = 1;
    job->policy = EVQ_POLICY_LATEST;
    job->keep = true;
    job->session_ms = 1700000000123;
    struct evq_submitted submitted = fixture_submit_job(fx, job);
    assert_int_equal(submitted.answer, EVQ_SUBMIT_QUEUED);
    assert_int_equal(submitted.state, EVQ_JOB_QUEUED);
    assert_string_equal(submitted.id, "run.1/42/ema/quick");
    assert_string_equal(fixture_job_field(fx, submitted.id, "run").text, "run.1");
    assert_string_equal(fixture_job_field(fx, submitted.id, "step").text, "42");
    assert_string_equal(fixture_job_field(fx, submitted.id, "priority").text, "1");

    struct evq_claim *claim = fixture_claim(fx);
    assert_string_equal(claim->id, submitted.id);
    assert_int_equal(claim->attempt, 1);
    assert_int_equal(claim->shard, -1);
    assert_int_equal(claim->shard_count, 0);
    assert_false(claim->merge);
    assert_false(claim->alone);
    assert_true(claim->queued_ms >= 0 && claim->queued_ms < 60000);
    assert_int_equal(claim->task_done_count, 0);
    assert_non_null(claim->job);
    assert_int_equal(claim->job->session_ms, 1700000000123);
    assert_near(claim->job->epoch, 1.5, 0.0);
    assert_int_equal(claim->job->policy, EVQ_POLICY_LATEST);
    assert_true(claim->job->keep);
    assert_int_equal(claim->job->param_count, 2);
    assert_string_equal(claim->job->params[1].value, "a\"b\\c\xc3\xa4");
    assert_string_equal(claim->job->path, job->path);
    evq_claim_free(claim);
    evq_job_free(job);
    fixture_audit(fx);
}

static void queue_submit_gives_each_answer(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_submitted submitted;

    assert_int_equal(fixture_submit(fx, "r/1/regular/quick").answer, EVQ_SUBMIT_QUEUED);
    submitted = fixture_submit(fx, "r/1/regular/quick");
    assert_int_equal(submitted.answer, EVQ_SUBMIT_DUPLICATE);
    assert_int_equal(submitted.state, EVQ_JOB_QUEUED);
    assert_int_equal(fixture_submit_print(fx, "r/1/regular/quick", '2').answer,
                     EVQ_SUBMIT_REPLACED);
    struct evq_claim *claim = fixture_claim(fx);
    submitted = fixture_submit_print(fx, "r/1/regular/quick", '3');
    assert_int_equal(submitted.answer, EVQ_SUBMIT_FOLLOWED);
    assert_string_equal(submitted.id, "r/1/regular/quick~2");
    evq_claim_free(claim);

    struct evq_job *newer = fixture_job("s/9/regular/quick");
    newer->policy = EVQ_POLICY_LATEST;
    (void)fixture_submit_job(fx, newer);
    newer->step = 8;
    submitted = fixture_submit_job(fx, newer);
    assert_int_equal(submitted.answer, EVQ_SUBMIT_SKIPPED);
    assert_int_equal(submitted.state, EVQ_JOB_SKIPPED);
    newer->run = "";
    assert_status(evq_queue_submit(fx->queue, newer, 0, &submitted, &err), EVQ_E_INVALID);
    newer->run = "s";
    assert_status(evq_queue_submit(fx->queue, newer, -1, &submitted, &err), EVQ_E_INVALID);
    newer->step = 10;
    assert_status_err(evq_queue_submit(fx->queue, newer, 60000, &submitted, &err), EVQ_OK, &err);
    assert_int_equal(submitted.state, EVQ_JOB_DELAYED);
    evq_job_free(newer);
}

static void queue_submit_batch_answers_each_job(void **state)
{
    struct fixture *fx = *state;
    enum { JOBS = EVQ_QUEUE_BATCH_MAX };
    struct evq_error err = {EVQ_OK, ""};
    struct evq_job *jobs[JOBS];
    const struct evq_job *views[JOBS];
    struct evq_submitted submitted[JOBS];
    enum evq_status statuses[JOBS];

    for (int i = 0; i < JOBS; i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "batch/%d/regular/quick", i / 2); // Each occurs twice.
        jobs[i] = fixture_job(id);
        views[i] = jobs[i];
    }
    jobs[7]->suite = "no such name";
    assert_status_err(evq_queue_submit_batch(fx->queue, views, JOBS, submitted, statuses, &err),
                      EVQ_OK, &err);
    for (int i = 0; i < JOBS; i++) {
        if (i == 7) {
            assert_int_equal(statuses[i], EVQ_E_INVALID);
            continue;
        }
        assert_int_equal(statuses[i], EVQ_OK);
        assert_int_equal(submitted[i].answer,
                         i % 2 == 1 ? EVQ_SUBMIT_DUPLICATE : EVQ_SUBMIT_QUEUED);
    }
    assert_holds(err.message, "suite"); // This is why the one was rejected.
    assert_string_equal(submitted[JOBS - 1].id, "batch/249/regular/quick");
    // Without statuses, the whole call is rejected.
    assert_status(evq_queue_submit_batch(fx->queue, views, 8, submitted, NULL, &err),
                  EVQ_E_INVALID);
    assert_status_err(evq_queue_submit_batch(fx->queue, views, 7, submitted, NULL, &err), EVQ_OK,
                      &err);
    assert_status(evq_queue_submit_batch(fx->queue, views, 0, submitted, NULL, &err),
                  EVQ_E_INVALID);
    struct evq_run_counts counts;
    assert_status_err(evq_queue_run_counts(fx->queue, "batch", &counts, &err), EVQ_OK, &err);
    assert_int_equal(counts.by_state[EVQ_JOB_QUEUED], JOBS / 2);
    assert_int_equal(counts.open, JOBS / 2);
    for (int i = 0; i < JOBS; i++) {
        evq_job_free(jobs[i]);
    }
    fixture_audit(fx);
}

static void queue_classes_lists_suites_and_needs(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_class classes[EVQ_QUEUE_CLASSES_MAX];
    uint32_t count = 0;
    int64_t version = 0;
    int64_t later = 0;
    const char *labels[] = {"a100"};

    assert_status_err(evq_queue_classes(fx->queue, classes, &count, &version, &err), EVQ_OK, &err);
    assert_int_equal(count, 1);
    assert_string_equal(classes[0].suite, "quick");
    assert_int_equal(classes[0].number, fx->classes[0]);
    struct evq_job *job = fixture_job("r/1/regular/quick");
    job->needs_given = true;
    job->needs = (struct evq_needs){.gpus = 2, .labels = labels, .label_count = 1};
    (void)fixture_submit_job(fx, job);
    evq_job_free(job);
    assert_status_err(evq_queue_classes(fx->queue, classes, &count, &later, &err), EVQ_OK, &err);
    assert_int_equal(count, 2);
    assert_true(later != version);
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        found = found || (strcmp(classes[i].needs, "gpus=2,labels=a100") == 0 &&
                          strcmp(classes[i].suite, "quick") == 0);
    }
    assert_true(found);
}

static void queue_suite_refuses_another_definition(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    uint32_t number = 0;
    struct evq_suite_offer offer = {.name = "quick",
                                    .digest = "ffffffffffffffffffffffffffffffff",
                                    .needs = "",
                                    .shards = 1,
                                    .every = 1,
                                    .definition = "{}",
                                    .where = "other:/evalq.yaml"};

    assert_status(evq_queue_suite_register(fx->queue, &offer, false, &number, &err),
                  EVQ_E_CONFLICT);
    assert_holds(err.message, "fixture:/etc/evalq.yaml"); // Both slots were taken.
    assert_holds(err.message, "other:/evalq.yaml");
    assert_status_err(evq_queue_suite_register(fx->queue, &offer, true, &number, &err), EVQ_OK,
                      &err);
    assert_int_equal(number, fx->classes[0]);
}

static void queue_claim_repeats_and_counts(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claims[4] = {NULL};
    struct evq_claim *again[4] = {NULL};
    struct evq_claimed claimed;
    struct evq_claimed repeated;
    const struct evq_claim_request request = {.worker = fx->worker,
                                              .request = "once",
                                              .lease_ms = EVQ_QUEUE_LEASE_MS,
                                              .claims_max = 4,
                                              .classes = fx->classes,
                                              .class_count = fx->class_count};
    for (int i = 0; i < 3; i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", i);
        (void)fixture_submit(fx, id);
    }
    assert_status_err(evq_queue_claim(fx->queue, &request, claims, &claimed, &err), EVQ_OK, &err);
    assert_int_equal(claimed.count, 3);
    assert_int_equal(claimed.due_ms, -1);
    assert_true(llabs(claimed.now_ms - evq_clock_unix_ms()) < 60000);
    assert_status_err(evq_queue_claim(fx->queue, &request, again, &repeated, &err), EVQ_OK, &err);
    assert_int_equal(repeated.count, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(again[i]->id, claims[i]->id);
        assert_string_equal(again[i]->token, claims[i]->token);
        evq_claim_free(again[i]);
        evq_claim_free(claims[i]);
    }
    fixture_claim_none(fx);
    struct evq_claim_request wrong = request;
    wrong.claims_max = 65;
    assert_status(evq_queue_claim(fx->queue, &wrong, claims, &claimed, &err), EVQ_E_INVALID);
    wrong.claims_max = 0;
    assert_status(evq_queue_claim(fx->queue, &wrong, claims, &claimed, &err), EVQ_E_INVALID);
    fixture_audit(fx);
}

/* One of two delayed jobs becomes due with this claim. The reply says when the other one will. */
static void queue_claim_tells_when_the_next_is_due(void **state)
{
    struct fixture *fx = *state;
    struct evq_submitted submitted;
    struct evq_claim *claim = NULL;
    struct evq_claimed claimed;
    const struct evq_claim_request request = {.worker = fx->worker,
                                              .request = "due",
                                              .lease_ms = EVQ_QUEUE_LEASE_MS,
                                              .claims_max = 1,
                                              .classes = fx->classes,
                                              .class_count = fx->class_count};

    for (int i = 1; i <= 2; i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", i);
        struct evq_job *job = fixture_job(id);
        assert_status(evq_queue_submit(fx->queue, job, 600000, &submitted, NULL), EVQ_OK);
        evq_job_free(job);
    }
    fixture_due(fx, "r/1/regular/quick");
    assert_status(evq_queue_claim(fx->queue, &request, &claim, &claimed, NULL), EVQ_OK);
    assert_int_equal(claimed.count, 1);
    assert_string_equal(claim->id, "r/1/regular/quick");
    assert_in_range(claimed.due_ms, 1, 600000);
    evq_claim_free(claim);
    assert_status(evq_queue_claim(fx->queue, &request, &claim, &claimed, NULL), EVQ_OK);
    assert_int_equal(claimed.count, 1); // This repeats the call.
    assert_in_range(claimed.due_ms, 1, 600000);
    evq_claim_free(claim);
}

static void queue_claim_tells_of_a_record_it_cannot_read(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state ended = EVQ_JOB_QUEUED;

    (void)fixture_submit(fx, "r/1/regular/quick");
    evq_reply_free(
        fixture_call(fx->raw, "SET", fixture_key(fx, "msg:r/1/regular/quick"), "garbage", NULL));
    struct evq_claim *claim = fixture_claim(fx);
    assert_null(claim->job);
    assert_true(*claim->record_error != '\0');
    assert_status_err(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL,
                                     claim->record_error, "", &ended, &err),
                      EVQ_OK, &err);
    assert_int_equal(ended, EVQ_JOB_DEAD);
    evq_claim_free(claim);
}

static void queue_heartbeat_answers_each_attempt(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state now = EVQ_JOB_DONE;
    int64_t version = -1;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    struct evq_claim *one = fixture_claim(fx);
    struct evq_claim *two = fixture_claim(fx);
    assert_status_err(evq_queue_cancel(fx->queue, two->id, "not wanted", &now, &err), EVQ_OK, &err);
    assert_int_equal(now, EVQ_JOB_RUNNING); // The job is marked, so its worker will be told.
    struct evq_beat beats[] = {
        {one->id, one->token, 50, 100,
         "a status far longer than what fits into the sixty-four bytes that it may have \xc3\xa4",
         EVQ_BEAT_STALE},
        {two->id, two->token, -1, -1, NULL, EVQ_BEAT_OK},
        {one->id, "1.none", -1, -1, NULL, EVQ_BEAT_OK},
    };
    assert_status_err(evq_queue_heartbeat(fx->queue, fx->worker, "{\"host\":\"h\"}",
                                          EVQ_QUEUE_LEASE_MS, beats, 3, &version, &err),
                      EVQ_OK, &err);
    assert_int_equal(beats[0].answer, EVQ_BEAT_OK);
    assert_int_equal(beats[1].answer, EVQ_BEAT_CANCEL);
    assert_int_equal(beats[2].answer, EVQ_BEAT_STALE);
    assert_true(version >= 0);
    assert_string_equal(fixture_job_field(fx, one->id, "progress").text, "50");
    assert_int_equal(strlen(fixture_job_field(fx, one->id, "status").text), 64);
    assert_status_err(evq_queue_release(fx->queue, one->id, one->token, &err), EVQ_OK, &err);
    fixture_assert_state(fx, one->id, "queued");
    assert_status_err(evq_queue_worker_leave(fx->queue, fx->worker, &err), EVQ_OK, &err);
    evq_claim_free(one);
    evq_claim_free(two);
    fixture_audit(fx);
}

static void queue_heartbeat_bounds_a_description(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    char *json = malloc(9000);

    assert_non_null(json);
    memset(json, 'x', 8999);
    json[8999] = '\0';
    assert_status(
        evq_queue_heartbeat(fx->queue, fx->worker, json, EVQ_QUEUE_LEASE_MS, NULL, 0, NULL, &err),
        EVQ_E_LIMIT);
    free(json);
}

static void queue_operates_on_jobs_by_hand(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state now = EVQ_JOB_DONE;
    char id[EVQ_JOB_ID_BYTES_MAX];
    int64_t number = -1;
    char *text = NULL;

    (void)fixture_submit(fx, "r/1/regular/quick");
    assert_status(evq_queue_cancel(fx->queue, "r/2/regular/quick", "", &now, &err),
                  EVQ_E_NOT_FOUND);
    assert_holds(err.message, "r/2/regular/quick");
    assert_status_err(evq_queue_cancel(fx->queue, "r/1/regular/quick", "by hand", &now, &err),
                      EVQ_OK, &err);
    assert_int_equal(now, EVQ_JOB_CANCELLED);
    assert_status_err(evq_queue_retry(fx->queue, "r/1/regular/quick", "", id, &err), EVQ_OK, &err);
    assert_string_equal(id, "r/1/regular/quick");
    assert_status_err(evq_queue_retry(fx->queue, "r/1/regular/quick", "", id, &err), EVQ_OK, &err);
    assert_string_equal(id, "r/1/regular/quick");
    assert_status(evq_queue_retry(fx->queue, "r/3/regular/quick", "", id, &err), EVQ_E_NOT_FOUND);

    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "r", true, &err), EVQ_OK, &err);
    fixture_claim_none(fx);
    assert_status_err(evq_queue_show(fx->queue, "r/1/regular/quick", &text, &err), EVQ_OK, &err);
    free(text);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "r", false, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", true, &err), EVQ_OK,
                      &err);
    fixture_claim_none(fx);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", false, &err), EVQ_OK,
                      &err);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, NULL, true, &err), EVQ_OK, &err);
    fixture_claim_none(fx);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, NULL, false, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_limit(fx->queue, "cap_run", "r", 1, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_limit(fx->queue, "weight", "r", 200, &err), EVQ_OK, &err);
    assert_status(evq_queue_limit(fx->queue, "nonsense", "r", 1, &err), EVQ_E_INVALID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_forget(fx->queue, "r", &number, &err), EVQ_E_CONFLICT);
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    assert_status(evq_queue_retry(fx->queue, claim->id, "", id, &err), EVQ_E_CONFLICT);
    assert_holds(err.message, "it is done");
    evq_claim_free(claim);
    do {
        assert_status_err(evq_queue_forget(fx->queue, "r", &number, &err), EVQ_OK, &err);
    } while (number > 0);
    assert_status(evq_queue_show(fx->queue, "r/1/regular/quick", &text, &err), EVQ_E_NOT_FOUND);
    assert_status_err(evq_queue_gc(fx->queue, &number, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_quarantine(fx->queue, "\0\xff", 2, "a test", &err), EVQ_OK, &err);
    assert_int_equal(fixture_bad_entries(fx), 1);
    fixture_audit(fx);
}

static void cancel(struct fixture *fx, const char *id)
{
    enum evq_job_state now = EVQ_JOB_STATE_COUNT;

    assert_status(evq_queue_cancel(fx->queue, id, "", &now, NULL), EVQ_OK);
}

/*
 * After a lost answer, the call is repeated. The job was queued once, and later changes do not
 * matter. Another request id is another call.
 */
static void queue_retry_repeated_answers_as_the_first_time(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    const char *id = "r/1/regular/quick";
    char first[EVQ_JOB_ID_BYTES_MAX];
    char again[EVQ_JOB_ID_BYTES_MAX];

    (void)fixture_submit(fx, id);
    assert_status(evq_queue_retry(fx->queue, id, "one", first, &err), EVQ_E_CONFLICT);
    cancel(fx, id);
    assert_status(evq_queue_retry(fx->queue, id, "one", first, &err), EVQ_OK);
    cancel(fx, id);
    assert_status(evq_queue_retry(fx->queue, id, "one", again, &err), EVQ_OK);
    assert_string_equal(first, again);
    fixture_assert_state(fx, id, "cancelled");
    assert_status(evq_queue_retry(fx->queue, id, "two", first, &err), EVQ_OK);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_retry(fx->queue, id, "", first, &err), EVQ_OK);
    fixture_assert_state(fx, id, "running");
    fixture_publish(fx, claim, "t", 0.5);
    assert_status(evq_queue_fail(fx->queue, id, claim->token, EVQ_FAIL_FATAL, "it broke", "",
                                 (enum evq_job_state[]){EVQ_JOB_DEAD}, &err),
                  EVQ_OK);
    evq_claim_free(claim);
    assert_status(evq_queue_retry(fx->queue, id, "three", first, &err), EVQ_OK);
    assert_string_equal(first, "r/1/regular/quick~2");
    assert_status(evq_queue_retry(fx->queue, id, "", again, &err), EVQ_OK);
    assert_string_equal(first, again);
    cancel(fx, first);
    assert_status(evq_queue_retry(fx->queue, id, "three", again, &err), EVQ_OK);
    assert_string_equal(first, again);
    fixture_assert_state(fx, first, "cancelled");
    assert_status(evq_queue_retry(fx->queue, id, "", again, &err), EVQ_E_CONFLICT);
    assert_holds(err.message, "it was followed by");
    fixture_audit(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(queue_open_checks_its_name, fixture_fresh),
        cmocka_unit_test_setup(queue_info_tells_epoch_and_times, fixture_fresh),
        cmocka_unit_test_setup(queue_submit_carries_the_whole_message, fixture_fresh),
        cmocka_unit_test_setup(queue_submit_gives_each_answer, fixture_fresh),
        cmocka_unit_test_setup(queue_submit_batch_answers_each_job, fixture_fresh),
        cmocka_unit_test_setup(queue_classes_lists_suites_and_needs, fixture_fresh),
        cmocka_unit_test_setup(queue_suite_refuses_another_definition, fixture_fresh),
        cmocka_unit_test_setup(queue_claim_repeats_and_counts, fixture_fresh),
        cmocka_unit_test_setup(queue_claim_tells_when_the_next_is_due, fixture_fresh),
        cmocka_unit_test_setup(queue_claim_tells_of_a_record_it_cannot_read, fixture_fresh),
        cmocka_unit_test_setup(queue_heartbeat_answers_each_attempt, fixture_fresh),
        cmocka_unit_test_setup(queue_heartbeat_bounds_a_description, fixture_fresh),
        cmocka_unit_test_setup(queue_operates_on_jobs_by_hand, fixture_fresh),
        cmocka_unit_test_setup(queue_retry_repeated_answers_as_the_first_time, fixture_fresh),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
