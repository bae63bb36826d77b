#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/queue.h"

/*
 * Tests texts for users: why a job waits, and the answers to manual submits and to steps that are
 * not due.
 */

#define ID "r/100/regular/quick"

static void assert_why(struct fixture *fx, const char *id, const char *why)
{
    struct evq_error err = {EVQ_OK, ""};
    char *json = NULL;
    assert_status_err(evq_queue_show(fx->queue, id, &json, &err), EVQ_OK, &err);
    assert_holds(json, why);
    free(json);
}

static void heartbeat(struct fixture *fx, const char *worker_json)
{
    assert_status(
        evq_queue_heartbeat(fx->queue, "worker-1", worker_json, 15000, NULL, 0, NULL, NULL),
        EVQ_OK);
}

static void submit_needing(struct fixture *fx, const char *id, int32_t gpus, int64_t bytes,
                           const char *label)
{
    const char *const labels[] = {label};
    struct evq_job *job = fixture_job(id);
    job->needs_given = true;
    job->needs.gpus = gpus;
    job->needs.gpu_memory_bytes = bytes;
    job->needs.labels = labels;
    job->needs.label_count = label != NULL;
    (void)fixture_submit_job(fx, job);
    evq_job_free(job);
}

static void why_names_what_a_job_waits_for(void **state)
{
    struct fixture *fx = *state;
    static const char worker[] = "{\"suites\":[\"quick\"],\"labels\":[\"a100\"],"
                                 "\"slots\":[{\"gpus\":1,\"gpu_memory_bytes\":25769803776}]}";

    (void)fixture_submit(fx, "r/100/regular/unknown");
    assert_why(fx, "r/100/regular/unknown", "no worker offers suite unknown");
    (void)fixture_submit(fx, ID);
    assert_why(fx, ID, "no worker offers suite quick"); // Its worker has never sent a heartbeat.
    heartbeat(fx, worker);
    assert_why(fx, ID, "next; waiting for a free slot");
    (void)fixture_submit(fx, "r/200/regular/quick");
    (void)fixture_submit(fx, "r/300/regular/quick");
    assert_why(fx, "r/300/regular/quick", "waiting behind 2 jobs of its flow");
    (void)fixture_submit(fx, "z/1/regular/quick");
    assert_why(fx, "z/1/regular/quick", "waiting behind 1 other flow");
    submit_needing(fx, "r/1/ema/quick", 2, 0, NULL);
    assert_why(fx, "r/1/ema/quick", "needs 2 GPUs, largest worker has 1");
    submit_needing(fx, "r/2/ema/quick", 1, 42949672960, NULL);
    assert_why(fx, "r/2/ema/quick", "needs 40.0 GiB of GPU memory, largest worker has 24.0");
    submit_needing(fx, "r/3/ema/quick", 1, 0, "h200");
    assert_why(fx, "r/3/ema/quick", "no worker has the label h200");
    submit_needing(fx, "r/4/ema/quick", 1, 0, "a100");
    assert_why(fx, "r/4/ema/quick", "next");
}

/* Returns how often the list of workers was read. */
static long long lists_read(struct fixture *fx)
{
    static const char name[] = "cmdstat_zrevrange:calls=";
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "commandstats", NULL);
    const char *at = strstr(reply->text, name);
    const long long count = at != NULL ? strtoll(at + strlen(name), NULL, 10) : 0;

    evq_reply_free(reply);
    return count;
}

/*
 * The sink `best` asks for the job of each new best result. Hundreds of workers must not slow that
 * down.
 */
static void show_reads_workers_for_one_that_waits_alone(void **state)
{
    struct fixture *fx = *state;

    heartbeat(fx, "{\"suites\":[\"quick\"]}");
    fixture_finish(fx, ID, 0.5);
    (void)fixture_submit(fx, "r/200/regular/quick");
    const long long before = lists_read(fx);
    assert_why(fx, ID, "\"why\":\"\"");
    assert_int_equal(lists_read(fx), before);
    assert_why(fx, "r/200/regular/quick", "next; waiting for a free slot");
    assert_true(lists_read(fx) > before);
}

/* Returns how many runs are on the next page, and moves the cursor. */
static size_t runs_on_page(struct fixture *fx, char cursor[32], char first[64])
{
    struct evq_error err = {EVQ_OK, ""};
    char *text = NULL;

    assert_status_err(evq_queue_runs(fx->queue, cursor, &text, &err), EVQ_OK, &err);
    json_t *view = json_loads(text, 0, NULL);
    free(text);
    const json_t *runs = json_object_get(view, "runs");
    const size_t count = json_array_size(runs);
    (void)snprintf(cursor, 32, "%s", json_string_value(json_object_get(view, "cursor")));
    const char *run = json_string_value(json_object_get(json_array_get(runs, 0), "run"));
    (void)snprintf(first, 64, "%s", run != NULL ? run : "");
    json_decref(view);
    return count;
}

static void runs_are_listed_a_thousand_at_a_time(void **state)
{
    static const char fill[] = "for i = 1, 2000 do redis.call('ZADD', KEYS[1], i, 'run' .. i) end";
    struct fixture *fx = *state;
    char cursor[32] = "";
    char first[64];

    evq_reply_free(fixture_call(fx->raw, "EVAL", fill, "1", "evalq:{main}:runs", NULL));
    assert_int_equal(runs_on_page(fx, cursor, first), 1000);
    assert_string_equal(first, "run2000");
    assert_string_equal(cursor, "1000");
    assert_int_equal(runs_on_page(fx, cursor, first), 1000);
    assert_string_equal(first, "run1000");
    assert_string_equal(cursor, "");
    evq_reply_free(fixture_call(fx->raw, "DEL", "evalq:{main}:runs", NULL));
}

static void why_names_pauses_caps_and_delays(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    heartbeat(fx, "{\"suites\":[\"quick\"]}");
    (void)fixture_submit(fx, ID);
    (void)fixture_submit(fx, "r/200/regular/quick");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "r", true, NULL), EVQ_OK);
    assert_why(fx, ID, "paused (run)");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", true, NULL), EVQ_OK);
    assert_why(fx, ID, "paused (suite)");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, "", true, NULL), EVQ_OK);
    assert_why(fx, ID, "paused (queue)");
    fixture_claim_none(fx);
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, "", false, NULL), EVQ_OK);
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", false, NULL), EVQ_OK);
    fixture_claim_none(fx);
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "r", false, NULL), EVQ_OK);
    assert_status(evq_queue_limit(fx->queue, "cap_run", "r", 1, NULL), EVQ_OK);
    struct evq_claim *claim = fixture_claim(fx);
    assert_why(fx, ID, "runs on worker-1");
    assert_why(fx, "r/200/regular/quick", "cap of run reached");
    assert_status(evq_queue_limit(fx->queue, "cap_suite", "quick", 1, NULL), EVQ_OK);
    assert_why(fx, "r/200/regular/quick", "cap of suite reached");
    assert_status(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_RETRY, "busy", "",
                                 &after, NULL),
                  EVQ_OK);
    assert_why(fx, ID, "retry in ");
    assert_why(fx, ID, "retry: busy");
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void submit_heeds_every_but_for_kept_steps(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    uint32_t class_number = 0;
    const struct evq_suite_offer offer = {.name = "sparse",
                                          .digest = "abc",
                                          .needs = "",
                                          .shards = 1,
                                          .every = 1000,
                                          .definition = "{}",
                                          .where = "here"};

    assert_status_err(evq_queue_suite_register(fx->queue, &offer, false, &class_number, &err),
                      EVQ_OK, &err);
    assert_int_equal(fixture_submit(fx, "r/1500/regular/sparse").answer, EVQ_SUBMIT_SKIPPED);
    assert_int_equal(
        fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, "job:r/1500/regular/sparse"), NULL),
        0);
    assert_int_equal(fixture_submit(fx, "r/2000/regular/sparse").answer, EVQ_SUBMIT_QUEUED);
    struct evq_job *job = fixture_job("r/2001/regular/sparse");
    job->keep = true; // This is the final step.
    assert_int_equal(fixture_submit_job(fx, job).answer, EVQ_SUBMIT_QUEUED);
    evq_job_free(job);
    fixture_audit(fx);
}

/* Steps that were submitted before any worker has registered the suite's `every`. */
static void claim_skips_steps_that_turn_out_not_to_be_due(void **state)
{
    struct fixture *fx = *state;
    uint32_t class_number = 0;
    struct evq_claim *claims[8];
    struct evq_claimed claimed;
    struct evq_run_counts counts;
    const struct evq_suite_offer offer = {.name = "late",
                                          .digest = "abc",
                                          .needs = "",
                                          .shards = 1,
                                          .every = 20,
                                          .definition = "{}",
                                          .where = "here"};

    for (int step = 10; step <= 60; step += 10) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "r/%d/regular/late", step);
        assert_int_equal(fixture_submit(fx, id).answer, EVQ_SUBMIT_QUEUED);
    }
    assert_status(evq_queue_suite_register(fx->queue, &offer, false, &class_number, NULL), EVQ_OK);
    const struct evq_claim_request ask = {.worker = "w",
                                          .request = "one",
                                          .lease_ms = 60000,
                                          .claims_max = 8,
                                          .classes = &class_number,
                                          .class_count = 1};
    assert_status(evq_queue_claim(fx->queue, &ask, claims, &claimed, NULL), EVQ_OK);
    assert_int_equal(claimed.count, 3);
    for (uint32_t i = 0; i < claimed.count; i++) {
        assert_int_equal(claims[i]->job->step % 20, 0);
        evq_claim_free(claims[i]);
    }
    assert_status(evq_queue_run_counts(fx->queue, "r", &counts, NULL), EVQ_OK);
    assert_int_equal(counts.by_state[EVQ_JOB_SKIPPED], 3);
    assert_int_equal(counts.open, 3);
    fixture_audit(fx);
}

static void put_submits_a_message_that_workers_can_read(void **state)
{
    struct fixture *fx = *state;
    static const char json[] =
        "{\"run\":\"r\",\"step\":100,\"suite\":\"quick\",\"root\":\"ckpt\",\"path\":\"a/b\","
        "\"epoch\":1.5,\"params\":{\"k\":\"v\"},\"tags\":{},\"keep\":true,\"priority\":0}";

    struct evq_reply *reply = fixture_call(fx->raw, "FCALL", "evalq_v1_put", "1",
                                           evq_queue_prefix(fx->queue), json, NULL);
    assert_string_equal(reply->items[0]->text, "queued");
    assert_string_equal(reply->items[1]->text, ID);
    evq_reply_free(reply);
    struct evq_claim *claim = fixture_claim(fx);
    if (claim->job == NULL) {
        fail_msg("%s", claim->record_error);
    }
    assert_string_equal(claim->job->path, "a/b");
    assert_near(claim->job->epoch, 1.5, 0.0);
    assert_true(claim->job->keep);
    assert_int_equal(claim->job->priority, 0);
    assert_int_equal(claim->job->param_count, 1);
    assert_string_equal(claim->job->params[0].value, "v");
    evq_claim_free(claim);
}

/* Ends that the server creates are records like those of workers. */
static void results_of_a_run_hold_ends_that_decode(void **state)
{
    struct fixture *fx = *state;
    static struct evq_entry entries[8];
    uint32_t count = 0;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    assert_status(evq_queue_sink_open(fx->queue, "s", NULL), EVQ_OK);
    (void)fixture_submit(fx, ID);
    assert_status(evq_queue_cancel(fx->queue, ID, "not wanted", &after, NULL), EVQ_OK);
    assert_status(evq_queue_sink_read(fx->queue, "s", NULL, true, 0, entries, 8, &count, NULL),
                  EVQ_OK);
    assert_int_equal(count, 1);
    assert_non_null(entries[0].result);
    assert_string_equal(entries[0].result->job, ID);
    assert_string_equal(entries[0].result->task, "");
    assert_int_equal(entries[0].result->state, EVQ_JOB_CANCELLED);
    assert_string_equal(entries[0].result->reason, "not wanted");
    assert_int_equal(entries[0].result->step, 100);
    assert_true(entries[0].result->finished_ms > 1500000000000);
    evq_result_free(entries[0].result);
}

/* A sink for curves does not need ends. It gets them only to acknowledge them. */
static void results_hold_no_end_for_whom_has_no_use_for_it(void **state)
{
    struct fixture *fx = *state;
    static struct evq_entry entries[8];
    uint32_t count = 0;

    assert_status(evq_queue_sink_open(fx->queue, "s", NULL), EVQ_OK);
    fixture_finish(fx, ID, 0.5);
    assert_status(evq_queue_sink_read(fx->queue, "s", NULL, false, 0, entries, 8, &count, NULL),
                  EVQ_OK);
    assert_int_equal(count, 2);
    assert_non_null(entries[0].result);
    assert_string_not_equal(entries[0].result->task, "");
    assert_null(entries[1].result);
    assert_status(evq_queue_sink_ack(fx->queue, "s", entries, count, "", NULL), EVQ_OK);
    assert_int_equal(fixture_entries(fx), 0);
    evq_result_free(entries[0].result);
}

/* The counts of a run are shown as they are stored, so a wrong count is visible. */
static void audit_counts_the_jobs_of_each_run(void **state)
{
    static const char *const fields[] = {"active", "n:queued", "n:delayed", "n:running"};
    struct fixture *fx = *state;
    char problem[64];

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    fixture_audit(fx);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const char *run = fixture_key(fx, "run:r");
        (void)snprintf(problem, sizeof problem, "run r: %s is ", fields[i]);
        evq_reply_free(fixture_call(fx->raw, "HINCRBY", run, fields[i], "7", NULL));
        struct evq_reply *audit = fixture_audit_slice(fx, "");
        assert_holds(audit->text, problem);
        evq_reply_free(audit);
        evq_reply_free(fixture_call(fx->raw, "HINCRBY", run, fields[i], "-7", NULL));
    }
    fixture_audit(fx);
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "run:r"), NULL));
    struct evq_reply *audit = fixture_audit_slice(fx, "");
    assert_holds(audit->text, "run r: active is 0, found 1");
    evq_reply_free(audit);
    evq_claim_free(claim);
}

int main(void)
{
#define VIEW_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        VIEW_TEST(why_names_what_a_job_waits_for),
        VIEW_TEST(show_reads_workers_for_one_that_waits_alone),
        VIEW_TEST(runs_are_listed_a_thousand_at_a_time),
        VIEW_TEST(why_names_pauses_caps_and_delays),
        VIEW_TEST(submit_heeds_every_but_for_kept_steps),
        VIEW_TEST(claim_skips_steps_that_turn_out_not_to_be_due),
        VIEW_TEST(put_submits_a_message_that_workers_can_read),
        VIEW_TEST(results_of_a_run_hold_ends_that_decode),
        VIEW_TEST(results_hold_no_end_for_whom_has_no_use_for_it),
        VIEW_TEST(audit_counts_the_jobs_of_each_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
