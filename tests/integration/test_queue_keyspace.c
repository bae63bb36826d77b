#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/keyspace.h"

/*
 * Runs one operation after the other. After each, the expected file has every changed line of the
 * keyspace, and no other.
 */
struct walk {
    struct fixture *fx;
    struct evq_buffer text;
    char *last;
};

static void step(struct walk *w, const char *title)
{
    fixture_keyspace_diff(w->fx, title, &w->last, &w->text);
}

static void walk_end(struct walk *w, const char *file)
{
    assert_false(w->text.failed);
    fixture_audit(w->fx);
    fixture_golden_text(file, &w->text);
    evq_buffer_free(&w->text);
    free(w->last);
}

static struct walk walk_begin(struct fixture *fx)
{
    struct walk w = {.fx = fx};
    evq_buffer_init(&w.text, 1 << 20);
    step(&w, "a queue with the suite quick");
    return w;
}

static void beat(struct walk *w, const struct evq_claim *claim, enum evq_beat_answer want)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_beat beats[] = {
        {.id = claim->id, .token = claim->token, .done = 5, .total = 10, .status = "compute"}};
    assert_status_err(
        evq_queue_heartbeat(w->fx->queue, "worker-1", "{}", 15000, beats, 1, NULL, &err), EVQ_OK,
        &err);
    assert_int_equal(beats[0].answer, want);
}

static void fail_as(struct walk *w, const struct evq_claim *claim, enum evq_fail_kind kind,
                    enum evq_job_state want)
{
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state state = EVQ_JOB_STATE_COUNT;
    assert_status_err(evq_queue_fail(w->fx->queue, claim->id, claim->token, kind, "it broke",
                                     "exit 1", &state, &err),
                      EVQ_OK, &err);
    assert_int_equal(state, want);
}

static void keyspace_changes_as_written_over_the_life_of_a_job(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct walk w = walk_begin(fx);
    char id[EVQ_JOB_ID_BYTES_MAX];
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    (void)fixture_submit(fx, "r/100/regular/quick");
    step(&w, "submit");
    (void)fixture_submit(fx, "r/100/regular/quick");
    step(&w, "submit the same");
    (void)fixture_submit_print(fx, "r/100/regular/quick", '2');
    step(&w, "submit it with another fingerprint");
    struct evq_claim *claim = fixture_claim(fx);
    step(&w, "claim");
    beat(&w, claim, EVQ_BEAT_OK);
    step(&w, "heartbeat");
    fixture_publish(fx, claim, "t", 0.5);
    step(&w, "publish");
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    step(&w, "complete");
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    step(&w, "complete again");
    evq_claim_free(claim);
    (void)fixture_submit_print(fx, "r/100/regular/quick", '3');
    step(&w, "submit the finished one with another fingerprint");
    claim = fixture_claim(fx);
    step(&w, "claim the second generation");
    assert_status_err(evq_queue_release(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    step(&w, "release");
    evq_claim_free(claim);
    claim = fixture_claim(fx);
    step(&w, "claim again");
    fail_as(&w, claim, EVQ_FAIL_RETRY, EVQ_JOB_DELAYED);
    step(&w, "fail");
    evq_claim_free(claim);
    fixture_due(fx, "r/100/regular/quick~2");
    claim = fixture_claim(fx);
    step(&w, "fall due and claim");
    fail_as(&w, claim, EVQ_FAIL_FATAL, EVQ_JOB_DEAD);
    step(&w, "fail for good");
    evq_claim_free(claim);
    assert_status_err(evq_queue_retry(fx->queue, "r/100/regular/quick~2", "", id, &err), EVQ_OK,
                      &err);
    assert_string_equal(id, "r/100/regular/quick~2");
    step(&w, "retry");
    assert_status_err(evq_queue_cancel(fx->queue, id, "not wanted", &after, &err), EVQ_OK, &err);
    step(&w, "cancel");
    assert_status_err(evq_queue_retry(fx->queue, "r/100/regular/quick~2", "", id, &err), EVQ_OK,
                      &err);
    claim = fixture_claim(fx);
    step(&w, "retry and claim");
    assert_status_err(evq_queue_cancel(fx->queue, id, "not wanted", &after, &err), EVQ_OK, &err);
    assert_int_equal(after, EVQ_JOB_RUNNING);
    step(&w, "cancel the running one");
    beat(&w, claim, EVQ_BEAT_CANCEL);
    step(&w, "heartbeat of the cancelled one");
    evq_claim_free(claim);
    walk_end(&w, EVQ_TEST_DATA "/queue_keyspace_job.txt");
}

static void keyspace_changes_as_written_when_a_lease_lapses(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct walk w = walk_begin(fx);

    (void)fixture_submit(fx, "r/100/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    step(&w, "submit and claim");
    fixture_look(fx, claim->id);
    step(&w, "the first look");
    fixture_look(fx, claim->id);
    step(&w, "the second look");
    beat(&w, claim, EVQ_BEAT_OK);
    step(&w, "heartbeat after all");
    fixture_lapse_lease(fx, claim);
    fixture_lapse_lease(fx, claim);
    step(&w, "lapse again");
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    step(&w, "complete after all");
    evq_claim_free(claim);
    walk_end(&w, EVQ_TEST_DATA "/queue_keyspace_lease.txt");
}

static void keyspace_changes_as_written_for_shards(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct walk w = walk_begin(fx);

    (void)fixture_submit(fx, "r/100/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    step(&w, "submit and claim");
    assert_status_err(evq_queue_split(fx->queue, claim->id, claim->token, 2, &err), EVQ_OK, &err);
    evq_claim_free(claim);
    step(&w, "split in two");
    for (int k = 0; k < 2; k++) {
        claim = fixture_claim(fx);
        assert_int_equal(claim->shard, k);
        step(&w, "claim a shard");
        assert_status_err(
            evq_queue_complete_shard(fx->queue, claim->id, claim->token, "part", 4, &err), EVQ_OK,
            &err);
        evq_claim_free(claim);
        step(&w, "complete the shard");
    }
    claim = fixture_claim(fx);
    assert_true(claim->merge);
    step(&w, "claim the merge");
    fixture_publish(fx, claim, "t", 0.5);
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    evq_claim_free(claim);
    step(&w, "publish and complete the merge");
    walk_end(&w, EVQ_TEST_DATA "/queue_keyspace_shards.txt");
}

static void keyspace_changes_as_written_by_operators(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct walk w = walk_begin(fx);
    int64_t left = -1;

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    step(&w, "submit two");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, "", true, &err), EVQ_OK);
    step(&w, "pause the queue");
    fixture_claim_none(fx);
    step(&w, "claim nothing");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, "", false, &err), EVQ_OK);
    step(&w, "resume the queue");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "r", true, &err), EVQ_OK);
    fixture_claim_none(fx);
    step(&w, "pause the run, claim nothing");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "r", false, &err), EVQ_OK);
    step(&w, "resume the run");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", true, &err), EVQ_OK);
    fixture_claim_none(fx);
    step(&w, "pause the suite, claim nothing");
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", false, &err), EVQ_OK);
    step(&w, "resume the suite");
    assert_status(evq_queue_limit(fx->queue, "cap_run", "r", 1, &err), EVQ_OK);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_claim_none(fx);
    step(&w, "cap the run at one, claim twice");
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK);
    evq_claim_free(claim);
    step(&w, "complete");
    assert_status(evq_queue_sink_open(fx->queue, "jsonl", &err), EVQ_OK);
    step(&w, "open a sink");
    assert_status(evq_queue_forget(fx->queue, "r", &left, &err), EVQ_OK);
    assert_int_equal(left, 0);
    step(&w, "forget the run");
    walk_end(&w, EVQ_TEST_DATA "/queue_keyspace_operate.txt");
}

static void keyspace_is_left_alone_by_every_refusal_and_every_stale_call(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};

    (void)fixture_submit(fx, "r/1/regular/quick");
    struct evq_claim *old = fixture_claim(fx);
    assert_status_err(evq_queue_release(fx->queue, old->id, old->token, &err), EVQ_OK, &err);
    struct evq_claim *held = fixture_claim(fx);
    char *before = fixture_keyspace(fx);
    const char *const calls[][16] = {
        {"complete", held->id, old->token, ""},
        {"complete", held->id, "", ""},
        {"complete", held->id, "1.0", ""},
        {"complete", "r/1/regular", old->token, ""},
        {"release", "r/9/regular/quick", old->token},
        {"split", held->id, old->token, "3"},
        {"split", held->id, held->token, "1"},
        {"split", held->id, held->token, "1025"},
        {"fail", held->id, old->token, "retry", "x", "y", "w"},
        {"fail", held->id, held->token, "nonsense", "x", "y", "w"},
        {"publish", held->id, old->token, "t", "", "", "\x80", "0"},
        {"publish", held->id, held->token, "t", "", "", "not a map", "0"},
        {"publish", held->id, held->token, "t#t", "", "", "\x80", "0"},
        {"publish", held->id, held->token, "t", "", "", "\x80", "2", "only", "three", "words"},
        {"cancel", "nothing", ""},
        {"cancel", "r/9/regular/quick", ""},
        {"retry", "r/1/regular/quick"},
        {"pause", "moon", "x", "1"},
        {"limit", "cap_run", "r", "-1"},
        {"limit", "weight", "r", "0"},
        {"submit", "r", "1", "2", "regular", "quick", "all", "4", "0", "", "0", "", "0", "\x80"},
        {"submit", "r r", "1", "2", "regular", "quick", "all", "2", "0", "", "0", "", "0", "\x80"},
        {"submit", "r", "1", "1099511627776", "regular", "quick", "all", "2", "0", "", "0", "", "0",
         "\x80"},
        {"submit", "r", "1", "2", "regular", "quick", "all", "2", "0", "", "0", "", "0", "text"},
        {"submit", "r", "1"},
        {"submit_batch", "2", "r"},
        {"claim", "w", "q", "0", "1", "1", "1"},
        {"claim", "w", "q", "15000", "65", "1", "1"},
        {"claim", "w", "q", "15000", "1", "2", "1"},
        {"claim", "w", "q", "15000", "1", "1", "65"},
        {"claim", "w w", "q", "15000", "1", "1", "1"},
        {"suite", "quick", "", "", "1", "1", "{}", "here", "register", "w"},
        {"suite", "quick", "other", "", "1", "1", "{}", "here", "register", "w"},
        {"sink_ack", "nobody", ""},
        {"sink_serve", "nobody", "a", "here"},
        {"sink_serve", "nobody", "a b", "here"},
        {"adopt", "w", "15000", held->id, "99.abc", "1", "r", "1", "1", "regular", "quick", "all",
         "2", "0", "", "0"},
        {"put", "{\"run\":1}"},
        {"put", "[]"},
        {"best_put", "r", "m", "many", "1", "j", "c"},
        {"forget", "r"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        char function[64];
        const char *words[20] = {"FCALL", function, "1", evq_queue_prefix(fx->queue)};
        size_t count = 4;
        (void)snprintf(function, sizeof function, "evalq_v1_%s", calls[i][0]);
        for (size_t k = 1; k < 16 && calls[i][k] != NULL; k++) {
            words[count++] = calls[i][k];
        }
        struct evq_reply *reply = NULL;
        enum evq_status status = evq_conn_call(fx->raw, count, words, NULL, 0, &reply, &err);
        assert_true(status == EVQ_OK || status == EVQ_E_INVALID || status == EVQ_E_NOT_FOUND);
        evq_reply_free(reply);
        char *after = fixture_keyspace(fx);
        if (strcmp(before, after) != 0) {
            fail_msg("call %zu (%s) changed the keyspace", i, calls[i][0]);
        }
        free(after);
    }
    free(before);
    evq_claim_free(old);
    evq_claim_free(held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keyspace_changes_as_written_over_the_life_of_a_job,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(keyspace_changes_as_written_when_a_lease_lapses,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(keyspace_changes_as_written_for_shards, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(keyspace_changes_as_written_by_operators, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(
            keyspace_is_left_alone_by_every_refusal_and_every_stale_call, fixture_setup,
            fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
