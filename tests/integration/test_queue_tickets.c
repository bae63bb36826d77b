#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_ticket.h"
#include "tests/fixture/keyspace.h"

/*
 * Tests tickets, which are external names for jobs: their state during a job's life, and the effect
 * of a cancel.
 */

static int64_t put(struct fixture *fx, const char *ticket, const char *job, const char *other)
{
    struct evq_error err = {EVQ_OK, ""};
    int64_t position = -1;

    assert_status_err(
        evq_queue_ticket_put(fx->queue, ticket, job, other, "{\"a\":1}", 7, &position, &err),
        EVQ_OK, &err);
    return position;
}

/* The caller frees it with evq_ticket_free(). */
static struct evq_ticket *get(struct fixture *fx, const char *name, enum evq_ticket_state want)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_ticket *ticket = NULL;

    assert_status_err(evq_queue_ticket(fx->queue, name, &ticket, &err), EVQ_OK, &err);
    assert_int_equal(ticket->state, want);
    return ticket;
}

static void expect(struct fixture *fx, const char *name, enum evq_ticket_state want)
{
    evq_ticket_free(get(fx, name, want));
}

/* Returns whether this call has cancelled it. If not, asserts that its state is want. */
static bool cancel(struct fixture *fx, const char *name, bool running, enum evq_ticket_state want)
{
    struct evq_error err = {EVQ_OK, ""};
    enum evq_ticket_state state = EVQ_TICKET_GONE;
    bool done = false;

    assert_status_err(evq_queue_ticket_cancel(fx->queue, name, running, "", &done, &state, &err),
                      EVQ_OK, &err);
    assert_int_equal(state, want);
    return done;
}

static struct evq_tickets *list(struct fixture *fx)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_tickets *tickets = malloc(sizeof *tickets);

    assert_non_null(tickets);
    assert_status_err(evq_queue_tickets(fx->queue, tickets, &err), EVQ_OK, &err);
    return tickets;
}

static void ticket_shows_its_job_over_its_life(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, "r/1/regular/quick");
    assert_int_equal(put(fx, "t1", "r/1/regular/quick", ""), 0);
    (void)fixture_submit(fx, "r/2/regular/quick");
    assert_int_equal(put(fx, "t2", "r/2/regular/quick", ""), 1);
    assert_int_equal(put(fx, "t1", "r/9/regular/quick", ""), 0); // Repeating it changes nothing.
    struct evq_ticket *ticket = get(fx, "t2", EVQ_TICKET_QUEUED);
    assert_int_equal(ticket->position, 1);
    assert_int_equal(ticket->started_ms, -1);
    assert_int_equal(ticket->ended_ms, -1);
    assert_true(ticket->created_ms > 0);
    assert_string_equal(ticket->request, "{\"a\":1}");
    evq_ticket_free(ticket);

    struct evq_claim *claim = fixture_claim(fx);
    ticket = get(fx, "t1", EVQ_TICKET_RUNNING);
    assert_int_equal(ticket->position, -1);
    assert_true(ticket->started_ms >= ticket->created_ms);
    evq_ticket_free(ticket);
    ticket = get(fx, "t2", EVQ_TICKET_QUEUED);
    assert_int_equal(ticket->position, 0);
    evq_ticket_free(ticket);

    fixture_publish(fx, claim, "b", 0.25);
    fixture_publish(fx, claim, "a", 0.5);
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    ticket = get(fx, "t1", EVQ_TICKET_DONE);
    assert_int_equal(ticket->result_count, 2);
    assert_int_equal(ticket->job_results, 2);
    assert_string_equal(ticket->results[0]->task, "a");
    assert_true(ticket->results[0]->metrics[0].value == 0.5);
    assert_string_equal(ticket->results[1]->task, "b");
    assert_true(ticket->ended_ms >= ticket->started_ms);
    evq_ticket_free(ticket);

    struct evq_tickets *tickets = list(fx);
    assert_int_equal(tickets->open, 1);
    assert_int_equal(tickets->done, 1);
    assert_int_equal(tickets->dead, 0);
    assert_int_equal(tickets->count, 1);
    assert_string_equal(tickets->list[0].name, "t2");
    assert_false(tickets->list[0].running);
    free(tickets);
    fixture_audit(fx);
}

static void ticket_of_two_jobs_waits_for_both(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/1/ema/quick");
    (void)put(fx, "t", "r/1/ema/quick", "r/1/regular/quick");
    for (int i = 0; i < 2; i++) {
        struct evq_claim *claim = fixture_claim(fx);
        expect(fx, "t", EVQ_TICKET_RUNNING);
        fixture_publish(fx, claim, "a", strstr(claim->id, "ema") != NULL ? 0.75 : 0.25);
        assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        evq_claim_free(claim);
        // One job is done, and the other one waits. In both orders, the ticket is not done.
        if (i == 0) {
            struct evq_ticket *ticket = NULL;
            assert_status(evq_queue_ticket(fx->queue, "t", &ticket, NULL), EVQ_OK);
            assert_true(ticket->state == EVQ_TICKET_RUNNING || ticket->state == EVQ_TICKET_QUEUED);
            evq_ticket_free(ticket);
        }
    }
    struct evq_ticket *ticket = get(fx, "t", EVQ_TICKET_DONE);
    assert_true(ticket->other_done);
    assert_int_equal(ticket->job_results, 1);
    assert_int_equal(ticket->result_count, 2);
    assert_true(ticket->results[0]->metrics[0].value == 0.75);
    assert_true(ticket->results[1]->metrics[0].value == 0.25);
    evq_ticket_free(ticket);
    fixture_audit(fx);
}

static void ticket_of_a_dead_job_tells_why(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)put(fx, "t", "r/1/regular/quick", "");
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL, "it broke",
                                 "exit 3\nlast words", &after, NULL),
                  EVQ_OK);
    evq_claim_free(claim);
    struct evq_ticket *ticket = get(fx, "t", EVQ_TICKET_DEAD);
    assert_string_equal(ticket->reason, "it broke");
    assert_non_null(strstr(ticket->detail, "last words"));
    evq_ticket_free(ticket);
    struct evq_tickets *tickets = list(fx);
    assert_int_equal(tickets->dead, 1);
    free(tickets);
}

/* A waiting client learns that its job was lost, and the other tickets are listed as usual. */
static void ticket_of_a_job_that_was_set_aside_is_dead(void **state)
{
    struct fixture *fx = *state;
    int64_t removed = 0;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)put(fx, "lost", "r/1/regular/quick", "");
    (void)fixture_submit(fx, "r/2/regular/quick");
    (void)put(fx, "other", "r/2/regular/quick", "");
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "job:r/1/regular/quick"), NULL));
    evq_reply_free(
        fixture_call(fx->raw, "SET", fixture_key(fx, "job:r/2/regular/quick"), "rubbish", NULL));
    (void)fixture_submit(fx, "r/3/regular/quick");
    (void)put(fx, "good", "r/3/regular/quick", "");
    struct evq_claim *claim = fixture_claim(fx);
    assert_string_equal(claim->id, "r/3/regular/quick");
    evq_claim_free(claim);
    // Every heartbeat does the same.
    assert_status(evq_queue_gc(fx->queue, &removed, NULL), EVQ_OK);
    struct evq_ticket *ticket = get(fx, "lost", EVQ_TICKET_DEAD);
    assert_string_not_equal(ticket->reason, "");
    evq_ticket_free(ticket);
    expect(fx, "other", EVQ_TICKET_DEAD);
    assert_false(cancel(fx, "lost", false, EVQ_TICKET_DEAD));
    struct evq_tickets *tickets = list(fx);
    assert_int_equal(tickets->dead, 2);
    assert_int_equal(tickets->count, 1);
    assert_string_equal(tickets->list[0].name, "good");
    free(tickets);
}

static void cancel_ends_a_job_that_no_other_ticket_names(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)put(fx, "t1", "r/1/regular/quick", "");
    (void)put(fx, "t2", "r/1/regular/quick", "");
    assert_true(cancel(fx, "t1", false, EVQ_TICKET_CANCELLED));
    expect(fx, "t1", EVQ_TICKET_CANCELLED);
    // The other ticket still needs the job.
    fixture_assert_state(fx, "r/1/regular/quick", "queued");
    assert_false(cancel(fx, "t1", false, EVQ_TICKET_CANCELLED));
    expect(fx, "t2", EVQ_TICKET_QUEUED);
    assert_true(cancel(fx, "t2", false, EVQ_TICKET_CANCELLED));
    fixture_assert_state(fx, "r/1/regular/quick", "cancelled");
    fixture_claim_none(fx);
    fixture_audit(fx);
}

static void cancel_leaves_what_runs_unless_told(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)put(fx, "t", "r/1/regular/quick", "");
    struct evq_claim *claim = fixture_claim(fx);
    assert_false(cancel(fx, "t", false, EVQ_TICKET_RUNNING));
    expect(fx, "t", EVQ_TICKET_RUNNING);
    assert_true(cancel(fx, "t", true, EVQ_TICKET_CANCELLED));
    struct evq_beat beat = {.id = claim->id, .token = claim->token, .done = -1, .total = -1};
    assert_status_err(evq_queue_heartbeat(fx->queue, fx->worker, "{}", 15000, &beat, 1, NULL, &err),
                      EVQ_OK, &err);
    assert_int_equal(beat.answer, EVQ_BEAT_CANCEL);
    evq_claim_free(claim);
}

/*
 * The worker was lost with the key of the leases. If the job were only marked, it would run
 * forever.
 */
static void cancel_ends_a_job_that_no_lease_holds_any_more(void **state)
{
    struct fixture *fx = *state;
    static const char *const ids[] = {"r/1/regular/quick", "r/2/regular/quick"};

    for (int i = 0; i < 2; i++) {
        (void)fixture_submit(fx, ids[i]);
        struct evq_claim *claim = fixture_claim(fx);
        (void)put(fx, ids[i], ids[i], "");
        evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "leases"), NULL));
        if (i == 1) { // The buffer has another ticket by now.
            evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, "leases"), "text", NULL));
        }
        assert_true(cancel(fx, ids[i], true, EVQ_TICKET_CANCELLED));
        fixture_assert_state(fx, ids[i], "cancelled");
        evq_claim_free(claim);
    }
    fixture_audit(fx);
}

static void cancel_of_a_ticket_that_ended_says_how(void **state)
{
    struct fixture *fx = *state;
    enum evq_ticket_state after = EVQ_TICKET_QUEUED;
    bool done = true;

    fixture_finish(fx, "r/1/regular/quick", 0.5);
    (void)put(fx, "t", "r/1/regular/quick", "");
    assert_false(cancel(fx, "t", true, EVQ_TICKET_DONE));
    assert_status(evq_queue_ticket_cancel(fx->queue, "none", true, "", &done, &after, NULL),
                  EVQ_E_NOT_FOUND);
    struct evq_ticket *ticket = NULL;
    assert_status(evq_queue_ticket(fx->queue, "none", &ticket, NULL), EVQ_E_NOT_FOUND);
}

/*
 * A ticket is kept longer than its job's record and expires by itself. The ticket of a forgotten
 * run reports that.
 */
static void ticket_outlives_the_record_of_its_job(void **state)
{
    struct fixture *fx = *state;
    int64_t removed = 0;
    int64_t left = 0;

    fixture_finish(fx, "r/1/regular/quick", 0.5);
    (void)put(fx, "t", "r/1/regular/quick", "");
    evq_reply_free(
        fixture_call(fx->raw, "HSET", fixture_key(fx, "meta"), "retain_ms", "-1000", NULL));
    assert_status(evq_queue_gc(fx->queue, &removed, NULL), EVQ_OK);
    assert_int_equal(removed, 1);
    struct evq_ticket *ticket = get(fx, "t", EVQ_TICKET_DONE);
    assert_int_equal(ticket->result_count, 0);
    evq_ticket_free(ticket);
    evq_reply_free(
        fixture_call(fx->raw, "HSET", fixture_key(fx, "meta"), "retain_dead_ms", "-1000", NULL));
    // The job was found ended, and was then removed.
    assert_status(evq_queue_gc(fx->queue, &removed, NULL), EVQ_OK);
    assert_status(evq_queue_ticket(fx->queue, "t", &ticket, NULL), EVQ_E_NOT_FOUND);

    (void)fixture_submit(fx, "x/1/regular/quick");
    (void)put(fx, "u", "x/1/regular/quick", "");
    do {
        assert_status(evq_queue_forget(fx->queue, "x", &left, NULL), EVQ_OK);
    } while (left > 0);
    expect(fx, "u", EVQ_TICKET_GONE);
    fixture_audit(fx);
}

static void ticket_is_refused_where_it_is_none(void **state)
{
    struct fixture *fx = *state;
    int64_t position = 0;
    char *large = calloc(1, EVQ_TICKET_REQUEST_BYTES + 1);

    assert_non_null(large);
    assert_status(
        evq_queue_ticket_put(fx->queue, "", "r/1/regular/quick", "", "", 0, &position, NULL),
        EVQ_E_INVALID);
    assert_status(evq_queue_ticket_put(fx->queue, "t", "no id", "", "", 0, &position, NULL),
                  EVQ_E_INVALID);
    assert_status(
        evq_queue_ticket_put(fx->queue, "t", "r/1/regular/quick", "x", "", 0, &position, NULL),
        EVQ_E_INVALID);
    assert_status(evq_queue_ticket_put(fx->queue, "t", "r/1/regular/quick", "", large,
                                       EVQ_TICKET_REQUEST_BYTES + 1, &position, NULL),
                  EVQ_E_LIMIT);
    free(large);
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "ticket:bad"), "job", "rubbish",
                                "request", "", NULL));
    evq_reply_free(fixture_call(fx->raw, "ZADD", fixture_key(fx, "ticketopen"), "1", "bad", NULL));
    expect(fx, "bad", EVQ_TICKET_GONE);
    struct evq_tickets *tickets = list(fx);
    assert_int_equal(tickets->open, 0);
    free(tickets);
}

static void keyspace_changes_as_written_over_the_life_of_a_ticket(void **state)
{
    struct fixture *fx = *state;
    struct evq_buffer text;
    char *last = NULL;

    evq_buffer_init(&text, 1 << 20);
    fixture_keyspace_diff(fx, "a queue with the suite quick", &last, &text);
    (void)fixture_submit(fx, "r/1/regular/quick");
    fixture_keyspace_diff(fx, "submit", &last, &text);
    (void)put(fx, "t", "r/1/regular/quick", "");
    fixture_keyspace_diff(fx, "ticket_put", &last, &text);
    (void)put(fx, "t", "r/1/regular/quick", "");
    fixture_keyspace_diff(fx, "ticket_put again", &last, &text);
    expect(fx, "t", EVQ_TICKET_QUEUED);
    fixture_keyspace_diff(fx, "ticket", &last, &text);
    assert_true(cancel(fx, "t", false, EVQ_TICKET_CANCELLED));
    fixture_keyspace_diff(fx, "ticket_cancel", &last, &text);
    free(list(fx));
    fixture_keyspace_diff(fx, "tickets", &last, &text);
    assert_false(text.failed);
    fixture_golden_text(EVQ_TEST_DATA "/queue_keyspace_ticket.txt", &text);
    evq_buffer_free(&text);
    free(last);
}

static int fresh(void **state)
{
    fixture_reset(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(ticket_shows_its_job_over_its_life, fresh),
        cmocka_unit_test_setup(ticket_of_two_jobs_waits_for_both, fresh),
        cmocka_unit_test_setup(ticket_of_a_dead_job_tells_why, fresh),
        cmocka_unit_test_setup(ticket_of_a_job_that_was_set_aside_is_dead, fresh),
        cmocka_unit_test_setup(cancel_ends_a_job_that_no_other_ticket_names, fresh),
        cmocka_unit_test_setup(cancel_leaves_what_runs_unless_told, fresh),
        cmocka_unit_test_setup(cancel_ends_a_job_that_no_lease_holds_any_more, fresh),
        cmocka_unit_test_setup(cancel_of_a_ticket_that_ended_says_how, fresh),
        cmocka_unit_test_setup(ticket_outlives_the_record_of_its_job, fresh),
        cmocka_unit_test_setup(ticket_is_refused_where_it_is_none, fresh),
        cmocka_unit_test_setup(keyspace_changes_as_written_over_the_life_of_a_ticket, fresh),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
