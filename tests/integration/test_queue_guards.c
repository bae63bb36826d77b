#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/keyspace.h"

/* Tests guards that no other test needs, by direct calls. */

#define ID "r/100/regular/quick"

/* Makes one call whose answer is a word, or an array that begins with one. */
static struct fixture_text ask(struct fixture *fx, const char *name, const char *a, const char *b,
                               const char *c)
{
    struct fixture_text word = {""};
    struct evq_reply *reply =
        fixture_call(fx->raw, "FCALL", name, "1", evq_queue_prefix(fx->queue), a, b, c, NULL);
    const char *text = reply->item_count > 0 ? reply->items[0]->text : reply->text;

    (void)snprintf(word.text, sizeof word.text, "%s", text);
    evq_reply_free(reply);
    return word;
}

/* A released job has an empty token. A caller without a token must not count as its holder. */
static void call_without_a_token_is_stale(void **state)
{
    struct fixture *fx = *state;
    struct evq_beat beats[] = {{.id = ID, .token = "", .done = -1, .total = -1}};

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_release(fx->queue, ID, claim->token, NULL), EVQ_OK);
    char *before = fixture_keyspace(fx);
    assert_string_equal(ask(fx, "evalq_v1_complete", ID, "", "").text, "stale");
    assert_string_equal(ask(fx, "evalq_v1_release", ID, "", NULL).text, "stale");
    assert_string_equal(ask(fx, "evalq_v1_split", ID, "", "2").text, "stale");
    char *after = fixture_keyspace(fx);
    assert_string_equal(before, after);
    assert_status(evq_queue_heartbeat(fx->queue, "worker-1", "{}", 15000, beats, 1, NULL, NULL),
                  EVQ_OK);
    assert_int_equal(beats[0].answer, EVQ_BEAT_STALE);
    fixture_assert_state(fx, ID, "queued");
    free(before);
    free(after);
    evq_claim_free(claim);
    fixture_audit(fx);
}

/* A failover has lost the last claim, so the counter gives the same number again. */
static void tokens_differ_where_the_counter_was_lost(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *first = fixture_claim(fx);
    const long long number = strtoll(first->token, NULL, 10);
    char before[24];
    (void)snprintf(before, sizeof before, "%lld", number - 1);
    assert_status(evq_queue_release(fx->queue, ID, first->token, NULL), EVQ_OK);
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "meta"), "token", before, NULL));
    struct evq_claim *second = fixture_claim(fx);
    assert_int_equal(strtoll(second->token, NULL, 10), number);
    assert_string_not_equal(second->token, first->token);
    assert_status(evq_queue_complete(fx->queue, ID, first->token, NULL), EVQ_E_LEASE_LOST);
    evq_claim_free(first);
    evq_claim_free(second);
}

/*
 * The answer to a claim was lost. Meanwhile, one of its jobs has ended, and another one belongs to
 * another worker.
 */
static void claim_repeated_gives_only_what_still_holds(void **state)
{
    struct fixture *fx = *state;
    struct evq_claim *claims[3] = {NULL}, *again[3] = {NULL};
    struct evq_claimed claimed = {0};
    const struct evq_claim_request request = {.worker = "worker-1",
                                              .request = "the-same",
                                              .lease_ms = 15000,
                                              .claims_max = 3,
                                              .classes = fx->classes,
                                              .class_count = fx->class_count};

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    (void)fixture_submit(fx, "r/3/regular/quick");
    assert_status(evq_queue_claim(fx->queue, &request, claims, &claimed, NULL), EVQ_OK);
    assert_int_equal(claimed.count, 3);
    assert_status(evq_queue_complete(fx->queue, claims[0]->id, claims[0]->token, NULL), EVQ_OK);
    assert_status(evq_queue_release(fx->queue, claims[1]->id, claims[1]->token, NULL), EVQ_OK);
    struct evq_claim *other = fixture_claim_as(fx, "worker-2");
    assert_string_equal(other->id, claims[1]->id);
    assert_status(evq_queue_claim(fx->queue, &request, again, &claimed, NULL), EVQ_OK);
    assert_int_equal(claimed.count, 1);
    assert_string_equal(again[0]->id, claims[2]->id);
    assert_string_equal(again[0]->token, claims[2]->token);
    evq_claim_free(other);
    evq_claim_free(again[0]);
    for (int i = 0; i < 3; i++) {
        evq_claim_free(claims[i]);
    }
    fixture_audit(fx);
}

/*
 * Repeated calls of split, of publish after the end, and of a reported cancel give the same answer
 * and change nothing.
 */
static void repeated_words_are_answered_as_before(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;
    bool duplicate = false;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_split(fx->queue, ID, claim->token, 2, NULL), EVQ_OK);
    char *before = fixture_keyspace(fx);
    assert_string_equal(ask(fx, "evalq_v1_split", ID, claim->token, "2").text, "ok");
    char *again = fixture_keyspace(fx);
    assert_string_equal(before, again);
    free(before);
    free(again);
    evq_claim_free(claim);
    assert_status(evq_queue_cancel(fx->queue, ID, "", &after, NULL), EVQ_OK);

    (void)fixture_submit(fx, "r/200/regular/quick");
    claim = fixture_claim(fx);
    fixture_publish(fx, claim, "t", 0.5);
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    struct evq_result *result = fixture_result(claim, "t", 0.5);
    assert_status_err(
        evq_queue_publish(fx->queue, claim->id, claim->token, result, &duplicate, &err), EVQ_OK,
        &err);
    assert_true(duplicate);
    evq_result_free(result);
    evq_claim_free(claim);

    (void)fixture_submit(fx, "r/300/regular/quick");
    claim = fixture_claim(fx);
    assert_status(evq_queue_cancel(fx->queue, claim->id, "", &after, NULL), EVQ_OK);
    struct evq_beat beats[] = {{.id = claim->id, .token = claim->token, .done = -1, .total = -1}};
    for (int i = 0; i < 2; i++) {
        assert_status(evq_queue_heartbeat(fx->queue, "worker-1", "{}", 15000, beats, 1, NULL, NULL),
                      EVQ_OK);
        assert_int_equal(beats[0].answer, EVQ_BEAT_CANCEL);
    }
    assert_int_equal(fixture_ends(fx, "cancelled"), 2);
    evq_claim_free(claim);
    fixture_audit(fx);
}

/* The numbers of a shard are only a part; the merge has those of the job. */
static void shard_may_not_publish(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    bool duplicate = false;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_split(fx->queue, ID, claim->token, 2, NULL), EVQ_OK);
    struct evq_claim *shard = fixture_claim(fx);
    assert_int_equal(shard->shard_count, 2);
    struct evq_result *result = fixture_result(claim, "t", 0.5);
    assert_status(evq_queue_publish(fx->queue, shard->id, shard->token, result, &duplicate, &err),
                  EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "shard"));
    assert_int_equal(fixture_entries(fx), 0);
    evq_result_free(result);
    evq_claim_free(shard);
    evq_claim_free(claim);
    fixture_audit(fx);
}

/* A submit without a fingerprint must not evaluate the checkpoint twice. */
static void submit_without_a_fingerprint_equals_any(void **state)
{
    struct fixture *fx = *state;

    assert_int_equal(fixture_submit_print(fx, "r/1/regular/quick", '1').answer, EVQ_SUBMIT_QUEUED);
    assert_int_equal(fixture_submit_print(fx, "r/1/regular/quick", '\0').answer,
                     EVQ_SUBMIT_DUPLICATE);
    assert_int_equal(fixture_submit_print(fx, "r/2/regular/quick", '\0').answer, EVQ_SUBMIT_QUEUED);
    assert_int_equal(fixture_submit_print(fx, "r/2/regular/quick", '1').answer,
                     EVQ_SUBMIT_DUPLICATE);
    fixture_audit(fx);
}

/* All tasks of a job use the same definition of its suite. */
static void other_suite_than_the_first_ends_the_job(void **state)
{
    struct fixture *fx = *state;
    bool duplicate = false;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_publish(fx, claim, "t", 0.5);
    struct evq_result *result = fixture_result(claim, "u", 0.5);
    result->suite_digest = "ffffffffffffffffffffffffffffffff";
    assert_status(evq_queue_publish(fx->queue, claim->id, claim->token, result, &duplicate, NULL),
                  EVQ_E_CHANGED);
    fixture_assert_state(fx, ID, "skipped");
    assert_int_equal(fixture_results_published(fx), 1);
    evq_result_free(result);
    evq_claim_free(claim);
    fixture_audit(fx);
}

/* A stale entry in the queue must not run a job again that has ended. */
static void entry_of_a_job_that_ended_is_set_aside(void **state)
{
    struct fixture *fx = *state;
    char key[64];

    fixture_finish(fx, "r/1/regular/quick", 0.5);
    (void)fixture_submit(fx, "r/2/regular/quick");
    (void)snprintf(key, sizeof key, "wait:r/regular/quick:%u:2", fx->classes[0]);
    evq_reply_free(fixture_call(fx->raw, "ZADD", fixture_key(fx, key), "1", "1", NULL));
    struct evq_claim *claim = fixture_claim(fx);
    assert_string_equal(claim->id, "r/2/regular/quick");
    assert_int_equal(fixture_bad_entries(fx), 1);
    fixture_claim_none(fx);
    evq_claim_free(claim);
}

/*
 * A job that was set aside never runs again. If its checkpoint is submitted again, that is a new
 * job.
 */
static void submit_follows_a_job_that_was_set_aside(void **state)
{
    struct fixture *fx = *state;
    struct evq_submitted answer;

    (void)fixture_submit(fx, ID);
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "job:" ID), NULL));
    fixture_claim_none(fx);
    assert_int_equal(fixture_bad_entries(fx), 1);
    fixture_assert_state(fx, ID, "bad");
    answer = fixture_submit(fx, ID);
    assert_int_equal(answer.answer, EVQ_SUBMIT_FOLLOWED);
    assert_string_equal(answer.id, ID "~2");
    assert_int_equal(fixture_submit(fx, ID).answer, EVQ_SUBMIT_DUPLICATE);
    struct evq_claim *claim = fixture_claim(fx);
    assert_string_equal(claim->id, ID "~2");
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void key_spoil(struct fixture *fx, const char *name)
{
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, name), NULL));
    evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, name), "rubbish", NULL));
}

static void job_spoil(struct fixture *fx, const char *id)
{
    char key[128];

    (void)snprintf(key, sizeof key, "job:%s", id);
    key_spoil(fx, key);
}

/* One of three records has a wrong type. The others are submitted and completed. */
static void rubbish_among_many_holds_nobody_up(void **state)
{
    struct fixture *fx = *state;
    static const char *const ids[] = {"r/1/regular/quick", "r/2/regular/quick",
                                      "r/3/regular/quick"};
    struct evq_job *jobs[3];
    struct evq_submitted submitted[3];
    enum evq_status statuses[3];
    struct evq_claim *claims[3];
    struct evq_completion done[3];
    struct evq_error err = {EVQ_OK, ""};

    for (int i = 0; i < 3; i++) {
        jobs[i] = fixture_job(ids[i]);
    }
    job_spoil(fx, ids[1]);
    assert_status(evq_queue_submit_batch(fx->queue, (const struct evq_job *const *)jobs, 3,
                                         submitted, statuses, &err),
                  EVQ_OK);
    assert_status(statuses[0], EVQ_OK);
    assert_int_not_equal(statuses[1], EVQ_OK);
    assert_status(statuses[2], EVQ_OK);
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "job:r/2/regular/quick"), NULL));
    (void)fixture_submit(fx, ids[1]);
    for (int i = 0; i < 3; i++) {
        claims[i] = fixture_claim(fx);
        assert_string_equal(claims[i]->id, ids[i]);
        done[i] = (struct evq_completion){.id = claims[i]->id, .token = claims[i]->token};
        evq_job_free(jobs[i]);
    }
    job_spoil(fx, ids[1]);
    assert_status(evq_queue_complete_many(fx->queue, done, 3, &err), EVQ_OK);
    assert_status(done[0].status, EVQ_OK);
    assert_status(done[1].status, EVQ_E_CORRUPT);
    assert_status(done[2].status, EVQ_OK);
    assert_int_equal(fixture_ends(fx, "done"), 2);
    for (int i = 0; i < 3; i++) {
        evq_claim_free(claims[i]);
    }
}

/*
 * Runs two jobs. The first is completed alone, the second as one of many. Before operation number
 * `when`, the key is replaced by garbage. The operations are submit, claim, publish, complete, and
 * complete among many.
 */
static void jobs_go_through(struct fixture *fx, const char *name, int when)
{
    static const char *const ids[] = {"r/1/regular/quick", "r/2/regular/quick"};
    struct evq_claim *claims[2];
    struct evq_completion done[1];
    char key[128];
    int move = 0;

#define MOVE() (move++ == when ? key_spoil(fx, name) : (void)0)
    MOVE();
    (void)fixture_submit(fx, ids[0]);
    (void)fixture_submit(fx, ids[1]);
    MOVE();
    for (int i = 0; i < 2; i++) {
        claims[i] = fixture_claim(fx);
        // This is long enough ago to see the effect.
        (void)snprintf(key, sizeof key, "job:%s", ids[i]);
        evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, key), "started", "1", NULL));
    }
    MOVE();
    fixture_publish(fx, claims[0], "t", 0.5);
    fixture_publish(fx, claims[1], "t", 0.5);
    MOVE();
    assert_status(evq_queue_complete(fx->queue, ids[0], claims[0]->token, NULL), EVQ_OK);
    MOVE();
    done[0] = (struct evq_completion){.id = ids[1], .token = claims[1]->token};
    assert_status(evq_queue_complete_many(fx->queue, done, 1, NULL), EVQ_OK);
    assert_status(done[0].status, EVQ_OK);
    evq_claim_free(claims[0]);
    evq_claim_free(claims[1]);
#undef MOVE
}

/*
 * A bad key blocks nobody and loses no job. audit names it, and the function that needs the key
 * creates it again.
 */
static void key_of_another_type_is_made_anew(void **state)
{
    struct fixture *fx = *state;
    static const char *const names[] = {"results", "cost", "wake:1", "leases"};
    char *stats = NULL;

    for (int i = 0; i < 20; i++) {
        const char *name = names[i / 5];
        const int when = i % 5;
        fixture_reset(fx);
        key_spoil(fx, name);
        struct evq_reply *audit = fixture_audit_slice(fx, "");
        assert_holds(audit->text, name);
        evq_reply_free(audit);
        assert_status(evq_queue_stats(fx->queue, &stats, NULL), EVQ_OK); // Reads continue.
        free(stats);
        evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, name), NULL));
        jobs_go_through(fx, name, when);
        if (name == names[0]) { // Its old content is lost, but no end that came later.
            assert_int_equal(fixture_ends(fx, "done"), when < 4 ? 2 : 1);
            assert_int_equal(fixture_results_published(fx), when < 3 ? 2 : 0);
        }
        fixture_finish(fx, "s/1/regular/quick", 0.5);
        assert_int_equal(fixture_bad_entries(fx), 1);
        fixture_audit(fx);
    }
}

/* A key that only maintains the queue is created again by the function that uses it. */
static void heartbeat_keeps_order_where_a_key_is_rubbish(void **state)
{
    struct fixture *fx = *state;
    static const char *const anew[] = {"ended:done", "ended:dead", "ended:bad", "workers",
                                       "worker:w"};
    static const char *const left[] = {"delayed", "supersede",  "unpark",
                                       "flows",   "ticketopen", "ticketended"};
    int64_t removed = 0;

    for (size_t i = 0; i < sizeof anew / sizeof *anew; i++) {
        key_spoil(fx, anew[i]);
        assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, NULL, 0, NULL, NULL),
                      EVQ_OK);
        assert_int_equal(fixture_bad_entries(fx), (int64_t)i + 1);
    }
    // The rest of the work is done as usual.
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        fixture_finish(fx, "r/1/regular/quick", 0.5);
        key_spoil(fx, left[i]);
        evq_reply_free(fixture_call(fx->raw, "ZADD", fixture_key(fx, "ended:done"), "1",
                                    "r/1/regular/quick", NULL));
        assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, NULL, 0, NULL, NULL),
                      EVQ_OK);
        assert_status(evq_queue_gc(fx->queue, &removed, NULL), EVQ_OK);
        assert_int_equal(
            fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, "job:r/1/regular/quick"), NULL),
            0);
        fixture_reset(fx);
    }
    key_spoil(fx, "bad");
    job_spoil(fx, "r/2/regular/quick");
    evq_reply_free(
        fixture_call(fx->raw, "ZADD", fixture_key(fx, "leases"), "1", "r/2/regular/quick", NULL));
    assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, NULL, 0, NULL, NULL), EVQ_OK);
    assert_int_equal(fixture_bad_entries(fx), 1);
}

/*
 * Attempts whose leases were lost with the key are protected again by the next heartbeat, and are
 * counted correctly if they end without one.
 */
static void leases_that_were_lost_cost_no_attempt(void **state)
{
    struct fixture *fx = *state;
    static const char *const ids[] = {"r/1/regular/quick", "r/2/regular/quick",
                                      "r/3/regular/quick"};
    struct evq_claim *claims[3];
    struct evq_beat beats[3] = {{.answer = EVQ_BEAT_OK}};
    enum evq_job_state state_after;

    for (int i = 0; i < 3; i++) {
        (void)fixture_submit(fx, ids[i]);
        claims[i] = fixture_claim(fx);
        beats[i].id = ids[i];
        beats[i].token = claims[i]->token;
    }
    key_spoil(fx, "leases");
    assert_status(evq_queue_complete(fx->queue, ids[0], claims[0]->token, NULL), EVQ_OK);
    assert_status(evq_queue_fail(fx->queue, ids[1], claims[1]->token, EVQ_FAIL_RETRY, "why", "",
                                 &state_after, NULL),
                  EVQ_OK);
    assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, beats + 2, 1, NULL, NULL),
                  EVQ_OK);
    assert_int_equal(beats[2].answer, EVQ_BEAT_OK);
    fixture_audit(fx);
    key_spoil(fx, "leases"); // The same holds if the heartbeat is the first to notice.
    assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, beats + 2, 1, NULL, NULL),
                  EVQ_OK);
    assert_int_equal(beats[2].answer, EVQ_BEAT_OK);
    fixture_audit(fx);
    key_spoil(fx, "leases"); // The worker is gone, so a cancel ends the job.
    assert_status(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, NULL, 0, NULL, NULL), EVQ_OK);
    assert_status(evq_queue_cancel(fx->queue, ids[2], "", &state_after, NULL), EVQ_OK);
    assert_int_equal(state_after, EVQ_JOB_CANCELLED);
    fixture_audit(fx);
    for (int i = 0; i < 3; i++) {
        evq_claim_free(claims[i]);
    }
}

/*
 * A key that cannot be created again is named. The job is not set aside for it, and no other run
 * waits.
 */
static void key_in_the_way_is_named(void **state)
{
    struct fixture *fx = *state;
    static const struct {
        const char *key;
        enum evq_status submit, claim, complete;
    } ways[] = {{"meta", EVQ_E_RETRY, EVQ_E_RETRY, EVQ_E_RETRY},
                {"n", EVQ_E_RETRY, EVQ_E_CORRUPT, EVQ_E_CORRUPT},
                {"ready:1:2", EVQ_E_RETRY, EVQ_E_CORRUPT, EVQ_OK},
                {"class", EVQ_E_RETRY, EVQ_E_CORRUPT, EVQ_OK},
                {"run:r", EVQ_E_CORRUPT, EVQ_OK, EVQ_E_CORRUPT},
                {"index:r", EVQ_OK, EVQ_OK, EVQ_E_CORRUPT},
                {"flow:r/regular/quick", EVQ_E_CORRUPT, EVQ_OK, EVQ_OK}};
    struct evq_job *job = fixture_job("r/2/regular/quick");
    struct evq_submitted submitted;
    struct evq_claim *again[1] = {NULL};
    struct evq_claimed claimed;
    char said[64];

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_error claim_err = {EVQ_OK, ""};
        fixture_reset(fx);
        (void)snprintf(said, sizeof said, "the key evalq:{main}:%s is a string", ways[i].key);
        (void)fixture_submit(fx, "r/1/regular/quick");
        (void)fixture_submit(fx, "s/1/regular/quick");
        struct evq_claim *claim = fixture_claim(fx);
        const struct evq_claim_request request = {.worker = fx->worker,
                                                  .request = "again",
                                                  .lease_ms = 15000,
                                                  .claims_max = 1,
                                                  .classes = fx->classes,
                                                  .class_count = fx->class_count};
        key_spoil(fx, ways[i].key);
        assert_status(evq_queue_submit(fx->queue, job, 0, &submitted, &err), ways[i].submit);
        if (ways[i].submit != EVQ_OK) {
            assert_holds(err.message, said);
        }
        assert_status(evq_queue_claim(fx->queue, &request, again, &claimed, &claim_err),
                      ways[i].claim);
        if (ways[i].claim == EVQ_OK) {
            assert_int_equal(claimed.count, 1);
            assert_string_equal(again[0]->id, "s/1/regular/quick");
            evq_claim_free(again[0]);
        } else {
            assert_holds(claim_err.message, said);
        }
        assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, &err),
                      ways[i].complete);
        if (ways[i].complete != EVQ_OK) {
            assert_holds(err.message, said);
        }
        evq_claim_free(claim);
        assert_int_equal(fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, "bad"), NULL), 0);
    }
    evq_job_free(job);
}

/*
 * A claim finds that the job of one run is due and its hash is garbage. It serves and counts the
 * job of another run.
 */
static void run_in_the_way_keeps_no_other_from_being_counted(void **state)
{
    struct fixture *fx = *state;
    struct evq_run_counts counts;
    enum evq_job_state state_after;

    (void)fixture_submit(fx, "r/1/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_RETRY, "why", "",
                                 &state_after, NULL),
                  EVQ_OK);
    evq_claim_free(claim);
    (void)fixture_submit(fx, "s/1/regular/quick");
    fixture_due(fx, "r/1/regular/quick");
    key_spoil(fx, "run:r");
    claim = fixture_claim(fx);
    assert_string_equal(claim->id, "s/1/regular/quick");
    assert_status(evq_queue_run_counts(fx->queue, "s", &counts, NULL), EVQ_OK);
    assert_int_equal(counts.by_state[EVQ_JOB_RUNNING], 1);
    assert_int_equal(counts.by_state[EVQ_JOB_QUEUED], 0);
    evq_claim_free(claim);
}

/* The loss for the sinks is recorded, so that it can be replayed. */
static void stream_that_was_lost_is_a_loss_of_every_sink(void **state)
{
    struct fixture *fx = *state;
    char *stats = NULL;

    assert_status(evq_queue_sink_open(fx->queue, "jsonl", NULL), EVQ_OK);
    fixture_finish(fx, "r/1/regular/quick", 0.5);
    key_spoil(fx, "results");
    assert_status(evq_queue_sink_open(fx->queue, "jsonl", NULL), EVQ_OK);
    assert_status(evq_queue_stats(fx->queue, &stats, NULL), EVQ_OK);
    assert_holds(stats, "rubbish");
    free(stats);
    fixture_finish(fx, "r/2/regular/quick", 0.5);
    key_spoil(fx, "results");
    assert_status(evq_queue_sink_replay(fx->queue, "jsonl", NULL), EVQ_OK);
    key_spoil(fx, "results");
    fixture_sink_remove(fx, "jsonl");
    fixture_audit(fx);
}

int main(void)
{
#define GUARD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        GUARD_TEST(call_without_a_token_is_stale),
        GUARD_TEST(tokens_differ_where_the_counter_was_lost),
        GUARD_TEST(claim_repeated_gives_only_what_still_holds),
        GUARD_TEST(repeated_words_are_answered_as_before),
        GUARD_TEST(shard_may_not_publish),
        GUARD_TEST(submit_without_a_fingerprint_equals_any),
        GUARD_TEST(other_suite_than_the_first_ends_the_job),
        GUARD_TEST(entry_of_a_job_that_ended_is_set_aside),
        GUARD_TEST(submit_follows_a_job_that_was_set_aside),
        GUARD_TEST(rubbish_among_many_holds_nobody_up),
        GUARD_TEST(key_of_another_type_is_made_anew),
        GUARD_TEST(heartbeat_keeps_order_where_a_key_is_rubbish),
        GUARD_TEST(leases_that_were_lost_cost_no_attempt),
        GUARD_TEST(key_in_the_way_is_named),
        GUARD_TEST(run_in_the_way_keeps_no_other_from_being_counted),
        GUARD_TEST(stream_that_was_lost_is_a_loss_of_every_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
