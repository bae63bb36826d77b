/*
 * Tests malformed replies, and that the views are JSON.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_ticket.h"
#include "tests/fixture/queue.h"

/* Parses the JSON and frees it. */
static json_t *json_of(char *text)
{
    json_error_t problem;
    json_t *json = json_loads(text, 0, &problem);
    if (json == NULL) {
        fail_msg("'%s' is no JSON: %s", text, problem.text);
    }
    free(text);
    return json;
}

static void queue_views_are_json(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    char *text = NULL;

    fixture_finish(fx, "r/1/regular/quick", 0.5);
    (void)fixture_submit(fx, "r/2/regular/quick");
    assert_status_err(evq_queue_stats(fx->queue, &text, &err), EVQ_OK, &err);
    json_t *json = json_of(text);
    assert_true(json_is_object(json));
    json_decref(json);
    assert_status_err(evq_queue_runs(fx->queue, "", &text, &err), EVQ_OK, &err);
    json_decref(json_of(text));
    assert_status_err(evq_queue_jobs(fx->queue, "done", "", "", 10, &text, &err), EVQ_OK, &err);
    json = json_of(text);
    const json_t *list = json_object_get(json, "jobs");
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "id")),
                        "r/1/regular/quick");
    json_decref(json);
    assert_status_err(evq_queue_jobs(fx->queue, "queued", "r", "", 10, &text, &err), EVQ_OK, &err);
    json = json_of(text);
    assert_int_equal(json_array_size(json_object_get(json, "jobs")), 1);
    json_decref(json);
    assert_status(evq_queue_jobs(fx->queue, "done", "", "", 0, &text, &err), EVQ_E_INVALID);
    assert_status(evq_queue_jobs(fx->queue, "nonsense", "", "", 1, &text, &err), EVQ_E_INVALID);
    assert_status_err(evq_queue_show(fx->queue, "r/1/regular/quick", &text, &err), EVQ_OK, &err);
    json_decref(json_of(text));
    fixture_audit(fx);
}

static void see(void *context, const struct evq_result *result)
{
    (void)context;
    fail_msg("a result of job %s, where there is none", result->job);
}

/* Installs functions that answer body. No call may accept a malformed answer. */
static void load_answers(struct fixture *fx, const char *body)
{
    static const char *const names[] = {
        "submit",    "submit_batch",   "classes",  "suite",  "claim",      "heartbeat",
        "publish",   "leave",          "complete", "fail",   "release",    "split",
        "parts",     "cancel",         "retry",    "forget", "gc",         "stats",
        "show",      "results",        "counts",   "pause",  "flow_open",  "best_get",
        "sink_open", "complete_claim", "info",     "ticket", "ticket_put", "ticket_cancel",
        "tickets",   "complete_many"};
    char text[8192];
    size_t used = (size_t)snprintf(text, sizeof text, "#!lua name=evalq_v1\n");

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "redis.register_function{function_name='evalq_v1_%s', "
                                 "flags={'no-writes'}, callback=function() return %s end}\n",
                                 names[i], body);
    }
    assert_true(used < sizeof text);
    evq_reply_free(fixture_call(fx->raw, "FUNCTION", "LOAD", "REPLACE", text, NULL));
}

static void check_corrupt_tickets(struct evq_queue *q)
{
    struct evq_tickets *tickets = malloc(sizeof *tickets);
    struct evq_ticket *ticket = NULL;
    enum evq_ticket_state state;
    int64_t position = 0;
    bool done = false;

    assert_non_null(tickets);
    assert_status(evq_queue_ticket(q, "t", &ticket, NULL), EVQ_E_IO);
    assert_status(evq_queue_ticket_put(q, "t", "r/1/regular/quick", "", "", 0, &position, NULL),
                  EVQ_E_IO);
    assert_status(evq_queue_ticket_cancel(q, "t", true, "", &done, &state, NULL), EVQ_E_IO);
    assert_status(evq_queue_tickets(q, tickets, NULL), EVQ_E_IO);
    free(tickets);
}

/*
 * Several calls are sent together. The first reply breaks the connection, and the second one is
 * lost with it.
 */
static void check_corrupt_many(struct evq_queue *q, const struct evq_claim_request *request)
{
    struct evq_completion done = {"r/1/regular/quick", "t", EVQ_OK};
    struct evq_result *result = evq_result_new();
    struct evq_claim *claims[1] = {NULL};
    struct evq_claimed claimed;
    struct evq_error err = {EVQ_OK, ""};
    enum evq_status completed = EVQ_OK;

    assert_non_null(result);
    result->job = "r/1/regular/quick";
    result->run = "r";
    result->suite = "quick";
    result->task = "t";
    struct evq_publication many[] = {{"r/1/regular/quick", "t", result, EVQ_OK, {EVQ_OK, ""}},
                                     {"r/1/regular/quick", "t", result, EVQ_OK, {EVQ_OK, ""}}};
    assert_status(
        evq_queue_complete_many_and_claim(q, &done, 1, request, &completed, claims, &claimed, &err),
        EVQ_E_IO);
    assert_status(completed, EVQ_E_IO);
    assert_status(evq_queue_publish_many(q, many, 2, &err), EVQ_E_IO);
    assert_status(many[0].status, EVQ_E_IO);
    assert_status(many[1].status, EVQ_E_IO);
    struct evq_job_change changes[] = {{.id = "r/1/regular/quick"}, {.id = "r/2/regular/quick"}};
    evq_queue_cancel_many(q, changes, 2, "");
    assert_status(changes[0].status, EVQ_E_IO);
    assert_status(changes[1].status, EVQ_E_IO);
    evq_queue_retry_many(q, changes, 2);
    assert_status(changes[0].status, EVQ_E_IO);
    assert_status(changes[1].status, EVQ_E_IO);
    evq_result_free(result);
}

static void check_corrupt(struct fixture *fx, const char *body)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_job *job = fixture_job("r/1/regular/quick");
    const struct evq_job *jobs[] = {job};
    struct evq_submitted submitted;
    struct evq_class classes[EVQ_QUEUE_CLASSES_MAX];
    struct evq_claim *claims[1] = {NULL};
    struct evq_claimed claimed;
    struct evq_beat beat = {"r/1/regular/quick", "1.a", 0, 0, NULL, EVQ_BEAT_OK};
    struct evq_suite_offer offer = {.name = "quick", .digest = "0", .shards = 1, .every = 1};
    struct evq_claim_request request = {
        .worker = "w", .request = "q", .lease_ms = 1000, .claims_max = 1};
    struct evq_queue_info info;
    struct evq_reply *reply = NULL;
    struct evq_run_counts counts;
    struct evq_best best;
    enum evq_status status = EVQ_OK;
    enum evq_job_state now;
    char id[EVQ_JOB_ID_BYTES_MAX];
    char *text = NULL;
    uint32_t count = 0;
    int64_t number = 0;
    struct evq_queue *q = fx->queue;

    load_answers(fx, body);
    print_message("every function answers %s\n", body);
    assert_status(evq_queue_info(q, &info, &err), EVQ_E_IO);
    assert_status(evq_queue_submit(q, job, 0, &submitted, &err), EVQ_E_IO);
    assert_status(evq_queue_submit_batch(q, jobs, 1, &submitted, NULL, &err), EVQ_E_IO);
    assert_status(evq_queue_classes(q, classes, &count, &number, &err), EVQ_E_IO);
    assert_status(evq_queue_suite_register(q, &offer, false, &count, &err), EVQ_E_IO);
    assert_status(evq_queue_claim(q, &request, claims, &claimed, &err), EVQ_E_IO);
    assert_status(evq_queue_heartbeat(q, "w", "{}", 1000, &beat, 1, NULL, &err), EVQ_E_IO);
    assert_status(evq_queue_worker_leave(q, "w", &err), EVQ_E_IO);
    assert_status(evq_queue_complete(q, "r/1/regular/quick", "t", &err), EVQ_E_IO);
    assert_status(evq_queue_complete_and_claim(q, "r/1/regular/quick", "t", &request, &status,
                                               claims, &claimed, &err),
                  EVQ_E_IO);
    check_corrupt_many(q, &request);
    assert_status(evq_queue_fail(q, "r/1/regular/quick", "t", EVQ_FAIL_RETRY, "", "", &now, &err),
                  EVQ_E_IO);
    assert_status(evq_queue_release(q, "r/1/regular/quick", "t", &err), EVQ_E_IO);
    assert_status(evq_queue_split(q, "r/1/regular/quick", "t", 2, &err), EVQ_E_IO);
    assert_status(evq_queue_shard_parts(q, "r/1/regular/quick", "t", &reply, &err), EVQ_E_IO);
    assert_status(evq_queue_cancel(q, "r/1/regular/quick", "", &now, &err), EVQ_E_IO);
    assert_status(evq_queue_retry(q, "r/1/regular/quick", "", id, &err), EVQ_E_IO);
    assert_status(evq_queue_forget(q, "r", &number, &err), EVQ_E_IO);
    assert_status(evq_queue_gc(q, &number, &err), EVQ_E_IO);
    assert_status(evq_queue_stats(q, &text, &err), EVQ_E_IO);
    assert_status(evq_queue_run_results(q, "r", &number, see, NULL, &err), EVQ_E_IO);
    assert_status(evq_queue_run_counts(q, "r", &counts, &err), EVQ_E_IO);
    assert_status(evq_queue_smallest_open_step(q, "r", "regular", "quick", &number, &err),
                  EVQ_E_IO);
    assert_status(evq_queue_pause(q, EVQ_PAUSE_QUEUE, "", true, &err), EVQ_E_IO);
    assert_status(evq_queue_sink_open(q, "a", &err), EVQ_E_IO);
    assert_status(evq_queue_best_get(q, "r", "", &best, &err), EVQ_E_IO);
    check_corrupt_tickets(q);
    evq_job_free(job);
}

static void queue_verbs_refuse_replies_out_of_shape(void **state)
{
    struct fixture *fx = *state;
    check_corrupt(fx, "{}");
    check_corrupt(fx, "{{}, {}, {}, {}, {}, {}, {}}");
    check_corrupt(fx, "{'jobs', '1', '1', '-1', {'id'}}");
    check_corrupt(fx, "{'jobs', '1', '1', '-1', {'', '', '', '1', '-1', '0', '0', '0', '0'}}");
    check_corrupt(fx, "{'jobs', '1', '1', '-1', {'a', 'b', '', 'x', '-1', '0', '0', '0', '0'}}");
    check_corrupt(fx, "{'1', 'x'}");
    check_corrupt(fx, "{'conflicts'}");
    check_corrupt(fx, "-5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        // This test is the last one, because it replaces the functions.
        cmocka_unit_test(queue_views_are_json),
        cmocka_unit_test(queue_verbs_refuse_replies_out_of_shape),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
