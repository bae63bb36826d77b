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
 * Tests what is kept and what is removed: shards and parts, retention and the ledger, trimming, and
 * garbage that is set aside.
 */

#define ID "r/100/regular/quick"

static void call(struct fixture *fx, const char *command, const char *thing, const char *a,
                 const char *b)
{
    evq_reply_free(fixture_call(fx->raw, command, fixture_key(fx, thing), a, b, NULL));
}

static int64_t exists(struct fixture *fx, const char *thing)
{
    return fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, thing), NULL);
}

static void complete(struct fixture *fx, struct evq_claim *claim)
{
    struct evq_error err = {EVQ_OK, ""};
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    evq_claim_free(claim);
}

static void heartbeat(struct fixture *fx)
{
    assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, NULL, 0, NULL, NULL), EVQ_OK);
}

static int64_t gc(struct fixture *fx)
{
    int64_t removed = -1;
    assert_status(evq_queue_gc(fx->queue, &removed, NULL), EVQ_OK);
    return removed;
}

static void split(struct fixture *fx, uint32_t shards)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claim = fixture_claim(fx);
    assert_status_err(evq_queue_split(fx->queue, claim->id, claim->token, shards, &err), EVQ_OK,
                      &err);
    evq_claim_free(claim);
}

/* Shards end in any order, some at a second attempt. The merge is queued once. */
static void shards_come_together_in_order(void **state)
{
    struct fixture *fx = *state;
    static const uint32_t counts[] = {2, 3, 7, 1024};

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        uint32_t n = counts[c];
        struct evq_claim **claims = calloc(n, sizeof(struct evq_claim *));
        assert_non_null(claims);
        (void)snprintf(id, sizeof id, "r/%u/regular/quick", n);
        (void)fixture_submit(fx, id);
        split(fx, n);
        fixture_assert_state(fx, id, "running");
        for (uint32_t k = 0; k < n; k++) {
            char worker[32];
            (void)snprintf(worker, sizeof worker, "worker-%u", k % 3);
            claims[k] = fixture_claim_as(fx, worker);
            assert_int_equal(claims[k]->shard_count, n);
            assert_non_null(claims[k]->job);
        }
        fixture_claim_none(fx);
        assert_status(evq_queue_release(fx->queue, claims[0]->id, claims[0]->token, NULL), EVQ_OK);
        evq_claim_free(claims[0]);
        claims[0] = fixture_claim(fx);
        for (uint32_t i = 0; i < n; i++) {
            struct evq_claim *claim = claims[n - 1 - i];
            char part[16];
            (void)snprintf(part, sizeof part, "part %d", claim->shard);
            // The call is repeated, as after a lost reply.
            for (int twice = 0; twice < 2 - (i == n - 1); twice++) {
                assert_status(evq_queue_complete_shard(fx->queue, claim->id, claim->token, part,
                                                       strlen(part), NULL),
                              EVQ_OK);
            }
            evq_claim_free(claim);
        }
        struct evq_claim *merge = fixture_claim(fx);
        struct evq_reply *parts = NULL;
        assert_string_equal(merge->id, id);
        assert_true(merge->merge);
        assert_int_equal(merge->attempt, 1);
        assert_status(evq_queue_shard_parts(fx->queue, id, merge->token, &parts, NULL), EVQ_OK);
        assert_int_equal(parts->item_count, n);
        for (uint32_t k = 0; k < n; k++) {
            char want[16];
            (void)snprintf(want, sizeof want, "part %u", k);
            assert_string_equal(parts->items[k]->text, want);
        }
        evq_reply_free(parts);
        fixture_claim_none(fx);
        fixture_audit(fx);
        fixture_publish(fx, merge, "t", 0.5);
        complete(fx, merge);
        fixture_assert_state(fx, id, "done");
        (void)snprintf(id, sizeof id, "part:r/%u/regular/quick", n);
        assert_int_equal(exists(fx, id), 0);
        free(claims);
    }
    fixture_audit(fx);
}

static void shards_end_together_when_one_is_dead_or_the_job_is_cancelled(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    for (int cancelled = 0; cancelled < 2; cancelled++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", cancelled);
        (void)fixture_submit(fx, id);
        split(fx, 3);
        struct evq_claim *done = fixture_claim(fx);
        struct evq_claim *held = fixture_claim_as(fx, "worker-2");
        assert_status(evq_queue_complete_shard(fx->queue, done->id, done->token, "p", 1, NULL),
                      EVQ_OK);
        if (cancelled == 1) {
            assert_status(evq_queue_cancel(fx->queue, held->id, "enough", &after, NULL), EVQ_OK);
            assert_int_equal(after, EVQ_JOB_CANCELLED);
        } else {
            assert_status(evq_queue_fail(fx->queue, held->id, held->token, EVQ_FAIL_FATAL, "broken",
                                         "tail", &after, NULL),
                          EVQ_OK);
            assert_int_equal(after, EVQ_JOB_DEAD);
        }
        fixture_assert_state(fx, id, cancelled == 1 ? "cancelled" : "dead");
        assert_status(evq_queue_complete_shard(fx->queue, held->id, held->token, "p", 1, NULL),
                      EVQ_E_LEASE_LOST);
        fixture_claim_none(fx);
        assert_int_equal(fixture_ends(fx, NULL), cancelled + 1);
        fixture_audit(fx);
        evq_claim_free(done);
        evq_claim_free(held);
    }
    assert_holds(fixture_job_field(fx, "r/0/regular/quick", "reason").text, "shard 1: broken");
    assert_status(
        evq_queue_retry(fx->queue, "r/0/regular/quick", "", (char[EVQ_JOB_ID_BYTES_MAX]){0}, NULL),
        EVQ_OK);
    split(fx, 2); // This reads from the start.
    fixture_audit(fx);
}

static void retention_removes_records_and_keeps_the_ledger(void **state)
{
    struct fixture *fx = *state;

    fixture_finish(fx, ID, 0.5);
    fixture_finish(fx, "r/200/regular/quick", 0.6);
    assert_int_equal(gc(fx), 0);
    call(fx, "ZADD", "ended:done", "1", ID); // This makes the end old.
    assert_int_equal(gc(fx), 1);
    assert_int_equal(exists(fx, "job:" ID) + exists(fx, "msg:" ID) + exists(fx, "res:" ID), 0);
    assert_int_equal(exists(fx, "job:r/200/regular/quick"), 1);
    struct evq_submitted again = fixture_submit(fx, ID);
    assert_int_equal(again.answer, EVQ_SUBMIT_DUPLICATE);
    assert_int_equal(again.state, EVQ_JOB_DONE);
    again = fixture_submit_print(fx, ID, '2');
    assert_int_equal(again.answer, EVQ_SUBMIT_FOLLOWED);
    assert_string_equal(again.id, ID "~2");
    char *json = NULL;
    assert_status(evq_queue_show(fx->queue, ID "~2", &json, NULL), EVQ_OK);
    assert_holds(json, "\"queued\"");
    free(json);
    fixture_audit(fx);
}

/* Replaces the records of three jobs of run r by garbage, one by another type. */
static void set_aside_three(struct fixture *fx)
{
    static const char *const ids[] = {ID, "r/101/regular/quick", "r/102/regular/quick"};

    for (int i = 0; i < 3; i++) {
        char key[128];
        (void)snprintf(key, sizeof key, "job:%s", ids[i]);
        (void)fixture_submit(fx, ids[i]);
        if (i == 2) {
            call(fx, "SET", key, "rubbish", NULL);
        } else {
            call(fx, "HSET", key, "state", "flying");
        }
    }
    fixture_claim_none(fx);
    assert_int_equal(fixture_bad_entries(fx), 3);
}

/* Makes the time old at which it was set aside. */
static void set_aside_age(struct fixture *fx, const char *id)
{
    evq_reply_free(
        fixture_call(fx->raw, "ZADD", fixture_key(fx, "ended:bad"), "XX", "1", id, NULL));
}

/* A job that was set aside is kept as long as a dead job. */
static void retention_removes_what_was_set_aside(void **state)
{
    struct fixture *fx = *state;

    set_aside_three(fx);
    assert_int_equal(gc(fx), 0);
    set_aside_age(fx, ID);
    set_aside_age(fx, "r/102/regular/quick");
    assert_int_equal(gc(fx), 2);
    assert_int_equal(exists(fx, "job:" ID) + exists(fx, "msg:" ID), 0);
    assert_int_equal(exists(fx, "job:r/102/regular/quick"), 0);
    assert_int_equal(exists(fx, "job:r/101/regular/quick"), 1);
    set_aside_age(fx, "r/101/regular/quick");
    assert_int_equal(fixture_submit(fx, ID).answer, EVQ_SUBMIT_QUEUED);
    call(fx, "ZADD", "ended:bad", "1", ID); // This is as if a worker had adopted it, so it stays.
    assert_int_equal(gc(fx), 2);
    struct evq_claim *claim = fixture_claim(fx);
    assert_string_equal(claim->id, ID);
    complete(fx, claim);
    assert_int_equal(exists(fx, "job:r/101/regular/quick"), 0);
    assert_int_equal(exists(fx, "ended:bad"), 0);
    fixture_assert_state(fx, ID, "done");
    fixture_audit(fx);
}

static void run_forgotten_takes_what_was_set_aside_with_it(void **state)
{
    struct fixture *fx = *state;
    int64_t left = 1;

    set_aside_three(fx);
    fixture_finish(fx, "r/200/regular/quick", 0.5);
    while (left > 0) {
        assert_status(evq_queue_forget(fx->queue, "r", &left, NULL), EVQ_OK);
    }
    assert_int_equal(exists(fx, "job:" ID) + exists(fx, "job:r/101/regular/quick") +
                         exists(fx, "job:r/102/regular/quick") + exists(fx, "ended:bad") +
                         exists(fx, "msg:" ID) + exists(fx, "index:r"),
                     0);
    fixture_audit(fx);
}

static void retention_bounds_the_number_of_ended_jobs(void **state)
{
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];

    call(fx, "HSET", "meta", "retain_count", "10");
    for (int step = 0; step < 60; step++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", step);
        fixture_finish(fx, id, 0.5);
    }
    heartbeat(fx); // Each heartbeat removes a few.
    int64_t kept = fixture_call_integer(fx->raw, "ZCARD", fixture_key(fx, "ended:done"), NULL);
    assert_true(kept < 60 && kept >= 10);
    while (gc(fx) > 0) {
    }
    assert_int_equal(fixture_call_integer(fx->raw, "ZCARD", fixture_key(fx, "ended:done"), NULL),
                     10);
    assert_int_equal(exists(fx, "job:r/59/regular/quick"), 1);
    assert_int_equal(exists(fx, "job:r/0/regular/quick"), 0);
    struct evq_run_counts counts;
    assert_status(evq_queue_run_counts(fx->queue, "r", &counts, NULL), EVQ_OK);
    assert_int_equal(counts.by_state[EVQ_JOB_DONE], 60);
    fixture_audit(fx);
}

static void retention_forgets_a_flow_ninety_days_after_its_last_submit(void **state)
{
    struct fixture *fx = *state;
    struct evq_submitted again;

    fixture_finish(fx, ID, 0.5);
    call(fx, "ZADD", "ended:done", "1", ID);
    (void)gc(fx);
    (void)fixture_submit(fx, "open/1/regular/quick");
    call(fx, "ZADD", "flows", "1", "r/regular/quick");
    call(fx, "ZADD", "flows", "1", "open/regular/quick");
    (void)gc(fx);
    assert_int_equal(exists(fx, "flow:r/regular/quick") + exists(fx, "ledger:r/regular/quick"), 0);
    assert_int_equal(exists(fx, "run:r") + exists(fx, "index:r") + exists(fx, "runflows:r"), 0);
    assert_int_equal(exists(fx, "flow:open/regular/quick"), 1); // The run has an open job.
    again = fixture_submit(fx, ID);
    assert_int_equal(again.answer, EVQ_SUBMIT_QUEUED);
    fixture_audit(fx);
}

static void read_all(struct fixture *fx, const char *sink, uint32_t want, bool ack)
{
    static struct evq_entry entries[100];
    uint32_t count = 0;
    assert_status(evq_queue_sink_read(fx->queue, sink, NULL, true, 0, entries, 100, &count, NULL),
                  EVQ_OK);
    assert_int_equal(count, want);
    if (ack) {
        assert_status(evq_queue_sink_ack(fx->queue, sink, entries, count, "", NULL), EVQ_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        evq_result_free(entries[i].result);
    }
}

static void trim_waits_for_every_sink_but_the_silent(void **state)
{
    struct fixture *fx = *state;
    char *json = NULL;

    assert_status(evq_queue_sink_open(fx->queue, "fast", NULL), EVQ_OK);
    assert_status(evq_queue_sink_open(fx->queue, "slow", NULL), EVQ_OK);
    fixture_finish(fx, ID, 0.5);
    fixture_finish(fx, "r/200/regular/quick", 0.6);
    read_all(fx, "fast", 4, true);
    assert_int_equal(fixture_entries(fx), 4); // The sink slow has read nothing.
    read_all(fx, "slow", 4, false);
    read_all(fx, "fast", 0, true);
    assert_int_equal(fixture_entries(fx), 4); // The sink slow has acknowledged nothing.
    fixture_finish(fx, "r/300/regular/quick", 0.7);
    call(fx, "HSET", "sink:slow", "still", "604800000"); // The sink was silent for a week.
    read_all(fx, "fast", 2, true);
    assert_int_equal(fixture_entries(fx), 0);
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL), 1);
    assert_status(evq_queue_stats(fx->queue, &json, NULL), EVQ_OK);
    assert_holds(json, "\"why\":\"silent\"");
    assert_holds(json, "\"sink\":\"slow\"");
    free(json);
    fixture_sink_remove(fx, "slow");
    fixture_finish(fx, "r/400/regular/quick", 0.7);
    read_all(fx, "fast", 2, true);
    assert_int_equal(fixture_entries(fx), 0);
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL), 1);
}

static void trim_keeps_the_cap_and_says_what_was_lost(void **state)
{
    struct fixture *fx = *state;

    assert_status(evq_queue_sink_open(fx->queue, "slow", NULL), EVQ_OK);
    call(fx, "HSET", "meta", "results_max", "5");
    for (int step = 0; step < 6; step++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", step);
        fixture_finish(fx, id, 0.5);
    }
    heartbeat(fx);
    assert_int_equal(fixture_entries(fx), 5);
    assert_holds(fixture_call_text(fx->raw, "LINDEX", fixture_key(fx, "loss"), "0", NULL).text,
                 "\"cap\"");
    read_all(fx, "slow", 5, true);
    heartbeat(fx);
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL), 1);
}

/* Entries that the cap removed are replayed from the stored results, with their own ids. */
static void trim_loses_nothing_for_good_that_is_still_stored(void **state)
{
    struct fixture *fx = *state;
    int64_t cursor = 0;
    int64_t count = 0;
    bool more = true;

    assert_status(evq_queue_sink_open(fx->queue, "slow", NULL), EVQ_OK);
    call(fx, "HSET", "meta", "results_max", "5");
    for (int step = 0; step < 6; step++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", step);
        fixture_finish(fx, id, 0.5);
        heartbeat(fx);
    }
    assert_int_equal(fixture_entries(fx), 5);
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL), 1);
    read_all(fx, "slow", 5, true);
    call(fx, "HSET", "meta", "results_max", "100");
    assert_status(evq_queue_republish(fx->queue, "r", 0, 0, &cursor, &count, &more, NULL), EVQ_OK);
    assert_int_equal(count, 0); // In 1970, nothing was published.
    assert_int_equal(cursor, 12);
    assert_false(more);
    cursor = 0;
    assert_status(
        evq_queue_republish(fx->queue, "r", 0, (int64_t)1 << 50, &cursor, &count, &more, NULL),
        EVQ_OK);
    assert_int_equal(count, 12); // There are six results and six ends.
    read_all(fx, "slow", 12, true);
    assert_status(evq_queue_loss_forget(fx->queue, "slow", NULL), EVQ_OK);
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL), 0);
    fixture_audit(fx);
}

/* Writes garbage of every kind to every key. Good jobs must still be completed. */
static void rubbish_is_set_aside_and_good_jobs_go_on(void **state)
{
    struct fixture *fx = *state;
    static const char *const rubbish[][4] = {
        {"ZADD", "wait:r/regular/quick:1:2", "0", "5"},
        {"ZADD", "wait:r/regular/quick:1:2", "0", "not a step"},
        {"ZADD", "begun:r/regular/quick:1:2", "0", "7@2"},
        {"ZADD", "ready:1:2", "-5", "nonsense"},
        {"ZADD", "ready:1:2", "-4", "a/b/c"},
        {"ZADD", "ready:1:0", "-3", "r/regular/quick"},
        {"ZADD", "ready:1:2", "-8", ""},
        {"ZADD", "ready:1:2", "-7", "///"},
        {"ZADD", "workers", "9999999999999", "\xc1"},
        {"ZADD", "runs", "inf", "nobody"},
        {"ZADD", "leases", "1", "r/77/regular/quick"},
        {"ZADD", "leases", "1", "complete nonsense"},
        {"ZADD", "delayed", "1", "r/78/regular/quick"},
        {"ZADD", "delayed", "1", "\xff\xfe"},
        {"SET", "job:r/6/regular/quick", "text where a hash belongs", NULL},
        {"ZADD", "wait:r/regular/quick:1:2", "0", "6"},
        {"ZADD", "leases", "1", "r/6/regular/quick"},
        {"HSET", "job:r/8/regular/quick", "state", "queued"},
        {"ZADD", "wait:r/regular/quick:1:2", "0", "8"},
        {"HSET", "job:r/9/regular/quick", "state", "flying"},
        {"ZADD", "delayed", "1", "r/9/regular/quick"},
        {"SET", "wait:x/regular/quick:1:2", "a string", NULL},
        {"ZADD", "ready:1:1", "-9", "x/regular/quick"},
        {"HSET", "n", "queued:1", "1"},
        {"SADD", "unpark", "nobody", NULL},
        {"ZADD", "supersede", "5", "nothing/regular/quick"},
        {"ZADD", "flows", "1", "rubbish"},
        {"RPUSH", "loss", "not json", NULL},
        {"RPUSH", "index:r", "not an entry", NULL},
    };

    (void)fixture_submit(fx, ID);
    for (size_t i = 0; i < sizeof rubbish / sizeof rubbish[0]; i++) {
        call(fx, rubbish[i][0], rubbish[i][1], rubbish[i][2], rubbish[i][3]);
    }
    const char *words[] = {"ZADD", fixture_key(fx, "workers"), "9999999999999", "a\0b"};
    const size_t bytes[] = {4, strlen(words[1]), 13, 3};
    struct evq_reply *reply = NULL;
    assert_status(evq_conn_call(fx->raw, 4, words, bytes, 0, &reply, NULL), EVQ_OK);
    evq_reply_free(reply);
    for (int i = 0; i < 8; i++) {
        heartbeat(fx);
    }
    struct evq_claim *claim = fixture_claim(fx);
    assert_string_equal(claim->id, ID);
    fixture_publish(fx, claim, "t", 0.5);
    complete(fx, claim);
    fixture_finish(fx, "r/200/regular/quick", 0.5);
    fixture_finish(fx, "other/1/regular/quick", 0.5);
    fixture_claim_none(fx);
    assert_true(fixture_bad_entries(fx) >= 10);
    assert_int_equal(fixture_call_integer(fx->raw, "ZCARD", fixture_key(fx, "leases"), NULL), 0);
    assert_int_equal(fixture_call_integer(fx->raw, "ZCARD", fixture_key(fx, "delayed"), NULL), 0);
    char *json = NULL;
    char *views[5] = {NULL};
    assert_status(evq_queue_stats(fx->queue, &views[0], NULL), EVQ_OK);
    assert_status(evq_queue_jobs(fx->queue, "bad", "", "", 100, &views[1], NULL), EVQ_OK);
    assert_status(evq_queue_runs(fx->queue, "", &views[2], NULL), EVQ_OK);
    struct evq_reply *audit = fixture_audit_slice(fx, "");
    views[3] = strdup(audit->text);
    evq_reply_free(audit);
    assert_status(evq_queue_jobs(fx->queue, "queued", "", "", 100, &views[4], NULL), EVQ_OK);
    for (int i = 0; i < 5; i++) {
        json_t *tree = json_loads(views[i], 0, NULL); // This is how evalq reads them.
        if (tree == NULL) {
            fail_msg("view %d is no JSON: %s", i, views[i]);
        }
        json_decref(tree);
        free(views[i]);
    }
    free(json);
}

/* A claim that meets more garbage than it removes wakes the next one at once. */
static void rubbish_that_fills_a_claim_wakes_the_next(void **state)
{
    struct fixture *fx = *state;
    char flow[64];
    int claims = 0;

    (void)fixture_submit(fx, ID);
    evq_reply_free(fixture_call(fx->raw, "DEL", fixture_key(fx, "wake:1"), NULL));
    for (int i = 0; i < 100; i++) {
        (void)snprintf(flow, sizeof(flow), "rubbish%d/regular/quick", i);
        call(fx, "ZADD", "ready:1:2", "-1", flow);
    }
    struct evq_claim *claim = NULL;
    for (; claim == NULL && claims < 20; claims++) {
        claim = fixture_claim_try(fx);
        if (claim == NULL) {
            assert_int_equal(fixture_call_integer(fx->raw, "DEL", fixture_key(fx, "wake:1"), NULL),
                             1);
        }
    }
    assert_true(claims > 1); // The fault was injected.
    assert_non_null(claim);
    assert_string_equal(claim->id, ID);
    evq_claim_free(claim);
}

/* A full Redis rejects submits and lets running jobs finish. */
static void full_redis_refuses_submits_and_drains(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_submitted submitted;

    (void)fixture_submit(fx, ID);
    evq_reply_free(fixture_call(fx->raw, "CONFIG", "SET", "maxmemory", "1", NULL));
    struct evq_job *job = fixture_job("r/200/regular/quick");
    assert_status(evq_queue_submit(fx->queue, job, 0, &submitted, &err), EVQ_E_RETRY);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_publish(fx, claim, "t", 0.5);
    complete(fx, claim);
    evq_reply_free(fixture_call(fx->raw, "CONFIG", "SET", "maxmemory", "0", NULL));
    assert_status(evq_queue_submit(fx->queue, job, 0, &submitted, &err), EVQ_OK);
    evq_job_free(job);
    fixture_audit(fx);
}

/* A run of any size must not block Redis for longer, even if nothing is superseded. */
static void forget_takes_a_hundred_jobs_a_call(void **state)
{
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];
    int64_t more = 0;

    for (int i = 0; i < 150; i++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", i);
        (void)fixture_submit(fx, id);
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", 1000 + i);
        struct evq_job *job = fixture_job(id);
        job->keep = true;
        (void)fixture_submit_job(fx, job);
        evq_job_free(job);
    }
    assert_status(evq_queue_forget(fx->queue, "r", &more, NULL), EVQ_OK);
    assert_int_not_equal(more, 0);
    const int64_t left =
        fixture_call_integer(fx->raw, "ZCARD", fixture_key(fx, "open:r/regular/quick"), NULL) +
        fixture_call_integer(fx->raw, "ZCARD", fixture_key(fx, "openkeep:r/regular/quick"), NULL);
    assert_int_equal(left, 200);
    fixture_audit(fx);
}

/* There are more flows than one call checks. */
static void forget_of_many_flows_leaves_nothing_behind(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;
    char id[EVQ_JOB_ID_BYTES_MAX], again[EVQ_JOB_ID_BYTES_MAX];
    int64_t more = 1;

    for (int i = 0; i < 200; i++) {
        (void)snprintf(id, sizeof id, "r/1/v%d/quick", i);
        (void)fixture_submit(fx, id);
        assert_status(evq_queue_cancel(fx->queue, id, "", &after, NULL), EVQ_OK);
        if (i < 20) {
            assert_status(evq_queue_retry(fx->queue, id, "", again, NULL), EVQ_OK);
        }
    }
    for (int calls = 0; more > 0; calls++) {
        assert_true(calls < 100);
        assert_status(evq_queue_forget(fx->queue, "r", &more, NULL), EVQ_OK);
        fixture_audit(fx);
    }
    struct evq_reply *left = fixture_call(fx->raw, "KEYS", "*r/*", NULL);
    assert_int_equal(left->item_count, 0);
    evq_reply_free(left);
}

int main(void)
{
#define KEEP_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        KEEP_TEST(shards_come_together_in_order),
        KEEP_TEST(shards_end_together_when_one_is_dead_or_the_job_is_cancelled),
        KEEP_TEST(retention_removes_records_and_keeps_the_ledger),
        KEEP_TEST(retention_removes_what_was_set_aside),
        KEEP_TEST(run_forgotten_takes_what_was_set_aside_with_it),
        KEEP_TEST(retention_bounds_the_number_of_ended_jobs),
        KEEP_TEST(retention_forgets_a_flow_ninety_days_after_its_last_submit),
        KEEP_TEST(trim_waits_for_every_sink_but_the_silent),
        KEEP_TEST(trim_keeps_the_cap_and_says_what_was_lost),
        KEEP_TEST(trim_loses_nothing_for_good_that_is_still_stored),
        KEEP_TEST(rubbish_is_set_aside_and_good_jobs_go_on),
        KEEP_TEST(rubbish_that_fills_a_claim_wakes_the_next),
        KEEP_TEST(full_redis_refuses_submits_and_drains),
        KEEP_TEST(forget_takes_a_hundred_jobs_a_call),
        KEEP_TEST(forget_of_many_flows_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
