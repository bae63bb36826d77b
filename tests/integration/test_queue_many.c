#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/keyspace.h"
#include "tests/fixture/random.h"

/*
 * Tests calls with several claims or ends. They share reads and writes, and this must not be
 * visible from outside. The same random history is run in both ways.
 */

enum { JOBS = 60, TAKEN = 32, TOGETHER = 16, ROUNDS = 60 };

static uint64_t random_state;

static unsigned draw(unsigned below)
{
    return (unsigned)(fixture_random(&random_state) % below);
}

struct held {
    struct evq_claim *claims[TAKEN];
    size_t count;
};

static void held_free(struct held *held)
{
    for (size_t i = 0; i < held->count; i++) {
        evq_claim_free(held->claims[i]);
    }
    held->count = 0;
}

/* The kind of queue: one flow or several; with or without caps, weights, bands and policies. */
struct kind {
    bool lone;
    bool ordinary;
};

/* Draws mostly rising steps, and now and then something else. */
static void submit_draw(struct fixture *fx, int at, struct kind kind)
{
    static const long long far[] = {127, 128, 255, 256, 65535, 65536, 1LL << 33};
    char id[EVQ_JOB_ID_BYTES_MAX];
    long long step = draw(8) == 0 ? far[draw(7)] : at;

    (void)snprintf(id, sizeof id, "%s/%lld/%s/%s", draw(kind.lone ? 30 : 3) == 0 ? "b-1.x" : "a",
                   step, draw(kind.lone ? 40 : 9) == 0 ? "ema" : "regular",
                   draw(kind.lone ? 20 : 5) == 0 ? "rare" : "quick");
    struct evq_job *job = fixture_job(id);
    if (!kind.ordinary) {
        job->policy = draw(12) == 0 ? (enum evq_job_policy)draw(EVQ_POLICY_COUNT) : EVQ_POLICY_ALL;
        job->keep = draw(10) == 0;
        job->priority = draw(6) == 0 ? draw(4) : 2;
    }
    (void)fixture_submit_job(fx, job);
    evq_job_free(job);
}

static void fill(struct fixture *fx)
{
    const struct kind kind = {.lone = draw(2) == 0, .ordinary = draw(3) == 0};

    fixture_reset(fx);
    (void)fixture_suite(fx, "rare");
    if (!kind.ordinary && draw(3) == 0) {
        assert_status(evq_queue_limit(fx->queue, "cap_run", "a", 1 + draw(6), NULL), EVQ_OK);
    }
    if (!kind.ordinary && draw(3) == 0) {
        assert_status(
            evq_queue_limit(fx->queue, "cap_suite", draw(2) == 0 ? "rare" : "quick", 3, NULL),
            EVQ_OK);
    }
    if (!kind.ordinary && draw(2) == 0) {
        assert_status(evq_queue_limit(fx->queue, "weight", "b-1.x", 30, NULL), EVQ_OK);
    }
    for (int i = 0; i < JOBS; i++) {
        submit_draw(fx, i, kind);
    }
    if (!kind.ordinary && draw(3) == 0) { // The steps of one suite are due only now and then.
        evq_reply_free(
            fixture_call(fx->raw, "HSET", fixture_key(fx, "class"), "every:rare", "3", NULL));
    }
}

/* Claims up to TAKEN jobs, at most `most` in one call. */
static void take(struct fixture *fx, uint32_t most, struct held *ret_held)
{
    struct evq_claimed claimed = {.count = 1};
    struct evq_error err = {EVQ_OK, ""};
    char request[32];

    ret_held->count = 0;
    while (ret_held->count < TAKEN && claimed.count > 0) {
        (void)snprintf(request, sizeof request, "r%zu", ret_held->count);
        const struct evq_claim_request wanted = {.worker = fx->worker,
                                                 .request = request,
                                                 .lease_ms = 15000,
                                                 .claims_max = most,
                                                 .classes = fx->classes,
                                                 .class_count = fx->class_count};
        assert_status_err(
            evq_queue_claim(fx->queue, &wanted, ret_held->claims + ret_held->count, &claimed, &err),
            EVQ_OK, &err);
        ret_held->count += claimed.count;
    }
}

/* Fails at the first line that differs between two keyspaces. */
static void assert_same(const char *want, const char *got)
{
    size_t at = 0;

    for (size_t i = 0; want[i] != '\0' && want[i] == got[i]; i++) {
        at = want[i] == '\n' ? i + 1 : at;
    }
    if (strcmp(want + at, got + at) != 0) {
        fail_msg("one by one '%.*s', together '%.*s'", (int)strcspn(want + at, "\n"), want + at,
                 (int)strcspn(got + at, "\n"), got + at);
    }
}

/* Returns the keyspace without the fields that depend on the number of calls. */
static char *keyspace(struct fixture *fx)
{
    static const char *const keys[] = {"worker:worker-1", "wake:1", "wake:2", "offers:quick",
                                       "offers:rare"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, keys[i]), NULL));
    }
    fixture_audit(fx);
    return fixture_keyspace(fx);
}

static void claims_together_take_what_single_claims_take(void **state)
{
    struct fixture *fx = *state;
    struct held single, together;
    size_t taken = 0;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = random_state;
        fill(fx);
        take(fx, 1, &single);
        char *before = keyspace(fx);
        random_state = start;
        fill(fx);
        take(fx, TOGETHER, &together);
        char *after = keyspace(fx);
        assert_int_equal(single.count, together.count);
        for (size_t i = 0; i < single.count; i++) {
            assert_string_equal(single.claims[i]->id, together.claims[i]->id);
            assert_int_equal(single.claims[i]->attempt, together.claims[i]->attempt);
        }
        assert_same(before, after);
        taken += single.count;
        held_free(&single);
        held_free(&together);
        free(before);
        free(after);
    }
    assert_true(taken > 8 * ROUNDS);
}

/*
 * From a flow that is alone in its band, at most so many are claimed together as come before the
 * sixteenth.
 */
static void claims_together_leave_the_sixteenth_to_the_lowest_band(void **state)
{
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];
    struct held held;

    for (int step = 1; step <= TAKEN; step++) {
        (void)snprintf(id, sizeof id, "%s/%d/regular/quick", step <= 2 ? "low" : "a", step);
        struct evq_job *job = fixture_job(id);
        job->priority = step <= 2 ? 3 : 2;
        (void)fixture_submit_job(fx, job);
        evq_job_free(job);
    }
    take(fx, TOGETHER, &held);
    assert_int_equal(held.count, TAKEN);
    for (size_t i = 0; i < TAKEN; i++) {
        assert_int_equal(strncmp(held.claims[i]->id, "low/", 4) == 0, i % 16 == 15);
    }
    held_free(&held);
}

/* A served flow comes again before one whose turn is later, although all three wait. */
static void claims_together_pass_nobody_who_was_put_back(void **state)
{
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];
    struct held held;

    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "run:late"), "vt:2", "100", NULL));
    for (int at = 0; at < 9; at++) {
        static const char *const runs[] = {"a", "b", "late"};
        (void)snprintf(id, sizeof id, "%s/%d/regular/quick", runs[at % 3], at);
        (void)fixture_submit(fx, id);
    }
    take(fx, TOGETHER, &held);
    assert_int_equal(held.count, 9);
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(held.claims[i]->id[0], i >= 6 ? 'l' : i % 2 == 0 ? 'a' : 'b');
    }
    held_free(&held);
}

/* An empty flow, which garbage left behind, blocks nobody. */
static void claims_together_go_on_behind_an_empty_flow(void **state)
{
    struct fixture *fx = *state;
    struct held held;

    (void)fixture_submit(fx, "b/1/regular/quick");
    evq_reply_free(
        fixture_call(fx->raw, "ZADD", fixture_key(fx, "ready:1:2"), "0", "a/regular/quick", NULL));
    take(fx, 2, &held);
    assert_int_equal(held.count, 1);
    held_free(&held);
    fixture_audit(fx);
}

/* At most as many are claimed as the caps of the run and the suite allow. */
static void check_cap(struct fixture *fx, const char *what, const char *name)
{
    char id[EVQ_JOB_ID_BYTES_MAX];
    struct held held;

    for (int step = 1; step <= 8; step++) {
        (void)snprintf(id, sizeof id, "a/%d/regular/quick", step);
        (void)fixture_submit(fx, id);
    }
    assert_status(evq_queue_limit(fx->queue, what, name, 3, NULL), EVQ_OK);
    take(fx, TOGETHER, &held);
    assert_int_equal(held.count, 3);
    held_free(&held);
}

static void claims_together_keep_the_cap_of_a_run(void **state)
{
    check_cap(*state, "cap_run", "a");
}

static void claims_together_keep_the_cap_of_a_suite(void **state)
{
    check_cap(*state, "cap_suite", "quick");
}

/* The possible states of an attempt when its end is reported. */
static void happen(struct fixture *fx, const struct evq_claim *claim)
{
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    switch (draw(12)) {
    case 0:
        fixture_publish(fx, claim, "t", 0.5);
        break;
    case 1:
        assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        break;
    case 2:
        assert_status(evq_queue_split(fx->queue, claim->id, claim->token, 2, NULL), EVQ_OK);
        break;
    case 3:
        fixture_lapse_lease(fx, claim);
        break;
    case 4:
        assert_status(evq_queue_cancel(fx->queue, claim->id, "", &after, NULL), EVQ_OK);
        break;
    case 5:
        assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        break;
    default:
        break;
    }
}

/* Reports the ends of all, at most `most` in one call; some twice, some with a wrong token. */
static char *end_all(struct fixture *fx, size_t most, enum evq_status *ret_statuses)
{
    struct held held;
    struct evq_completion done[TAKEN];

    fill(fx);
    take(fx, TOGETHER, &held);
    for (size_t i = 0; i < held.count; i++) {
        happen(fx, held.claims[i]);
        done[i] = (struct evq_completion){.id = held.claims[i]->id, .token = held.claims[i]->token};
        if (draw(16) == 0) {
            done[i].id = held.claims[draw((unsigned)held.count)]->id;
        }
    }
    for (size_t at = 0; at < held.count; at += most) {
        size_t count = held.count - at < most ? held.count - at : most;
        if (most == 1) {
            ret_statuses[at] = evq_queue_complete(fx->queue, done[at].id, done[at].token, NULL);
            continue;
        }
        assert_status(evq_queue_complete_many(fx->queue, done + at, count, NULL), EVQ_OK);
        for (size_t i = at; i < at + count; i++) {
            ret_statuses[i] = done[i].status;
        }
    }
    for (size_t i = held.count; i < TAKEN; i++) {
        ret_statuses[i] = EVQ_OK;
    }
    held_free(&held);
    return keyspace(fx);
}

/* Ends whose record differs from the fields of the entry. */
static int64_t records_wrong(struct fixture *fx)
{
    static const char script[] =
        "local wrong = 0\n"
        "for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do\n"
        "  local f = {}\n"
        "  for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end\n"
        "  local r = cmsgpack.unpack(f.record)\n"
        "  local j = redis.call('HMGET', ARGV[1] .. f.job, 'attempts', 'worker')\n"
        "  if f.task == '' and (r.job ~= f.job or r.run ~= f.run or r.step ~= tonumber(f.step) or\n"
        "      r.variant ~= f.variant or r.suite ~= f.suite or r.state ~= f.state or\n"
        "      r.reason ~= f.reason or r.attempt ~= (tonumber(j[1]) or 0) or\n"
        "      r.worker ~= (j[2] or '') or r.finished_ms ~= tonumber(f.finished_ms)) then\n"
        "    wrong = wrong + 1\n"
        "  end\n"
        "end\n"
        "return wrong\n";
    struct evq_reply *reply = fixture_call(fx->raw, "EVAL", script, "1", fixture_key(fx, "results"),
                                           fixture_key(fx, "job:"), NULL);
    assert_int_equal(reply->type, EVQ_REPLY_INTEGER);
    int64_t wrong = reply->integer;
    evq_reply_free(reply);
    return wrong;
}

static void ends_together_leave_what_single_ends_leave(void **state)
{
    struct fixture *fx = *state;
    enum evq_status single[TAKEN], together[TAKEN];
    int64_t ends = 0;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = random_state;
        char *before = end_all(fx, 1, single);
        random_state = start;
        char *after = end_all(fx, TOGETHER, together);
        for (int i = 0; i < TAKEN; i++) {
            assert_int_equal(single[i], together[i]);
        }
        assert_same(before, after);
        assert_int_equal(records_wrong(fx), 0);
        ends += fixture_ends(fx, "done");
        free(before);
        free(after);
    }
    assert_true(ends > 4 * ROUNDS);
}

/* The key has another type, and its content is lost. */
static void spoil(struct fixture *fx, const char *key)
{
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, key), NULL));
    evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, key), "rubbish", NULL));
}

static void unspoil(struct fixture *fx, const char *key)
{
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, key), NULL));
}

/*
 * If one end cannot be written because of a key's type, only that end gets an error; the others are
 * complete.
 */
static void ends_are_whole_where_a_key_is_rubbish(void **state)
{
    struct fixture *fx = *state;
    static const char *const ids[] = {"a/1/regular/quick", "b/1/regular/quick",
                                      "a/2/regular/quick"};
    static const char *const spoiled[] = {"index:a", "open:a/regular/quick"};
    struct evq_claim *claims[3];
    struct evq_completion done[3];

    for (int round = 0; round < 2; round++) {
        fixture_reset(fx);
        for (int i = 0; i < 3; i++) {
            (void)fixture_submit(fx, ids[i]);
        }
        for (int i = 0; i < 3; i++) {
            claims[i] = fixture_claim(fx);
            done[i] = (struct evq_completion){.id = claims[i]->id, .token = claims[i]->token};
        }
        spoil(fx, spoiled[round]);
        assert_status(evq_queue_complete_many(fx->queue, done, 3, NULL), EVQ_OK);
        for (int i = 0; i < 3; i++) {
            assert_status(done[i].status, done[i].id[0] == 'a' ? EVQ_E_CORRUPT : EVQ_OK);
            evq_claim_free(claims[i]);
        }
        unspoil(fx, spoiled[round]);
        fixture_audit(fx);
        assert_int_equal(fixture_ends(fx, "done"), 3);
    }
}

/* One suite has a cap, so each end checks whether its suite has one. */
static void ends_are_whole_where_their_suite_is_rubbish(void **state)
{
    struct fixture *fx = *state;
    static const char *const ids[] = {"a/1/regular/quick", "b/1/regular/quick", "a/1/regular/rare",
                                      "a/2/regular/quick"};
    struct evq_claim *claims[4];
    struct evq_completion done[4];

    (void)fixture_suite(fx, "rare");
    assert_status(evq_queue_limit(fx->queue, "cap_suite", "rare", 5, NULL), EVQ_OK);
    for (int i = 0; i < 4; i++) {
        (void)fixture_submit(fx, ids[i]);
    }
    for (int i = 0; i < 4; i++) {
        claims[i] = fixture_claim(fx);
        done[i] = (struct evq_completion){.id = claims[i]->id, .token = claims[i]->token};
    }
    spoil(fx, "suite:quick");
    assert_status(evq_queue_complete_many(fx->queue, done, 4, NULL), EVQ_OK);
    for (int i = 0; i < 4; i++) {
        assert_status(done[i].status, strstr(done[i].id, "quick") != NULL ? EVQ_E_CORRUPT : EVQ_OK);
    }
    unspoil(fx, "suite:quick");
    for (int i = 0; i < 4; i++) { // The worker does this too.
        assert_status(evq_queue_complete(fx->queue, done[i].id, done[i].token, NULL), EVQ_OK);
        evq_claim_free(claims[i]);
    }
    fixture_audit(fx);
    assert_int_equal(fixture_ends(fx, "done"), 4);
}

/*
 * If the set of ends is garbage, it is created again, and the run's cap no longer counts them. If
 * the counts are garbage, they are taken from their set.
 */
static void ends_are_noted_and_counted_apart(void **state)
{
    struct fixture *fx = *state;
    static const char *const spoiled[] = {"ended:done", "n"};
    struct evq_completion done[1];

    for (int round = 0; round < 2; round++) {
        fixture_reset(fx);
        assert_status(evq_queue_limit(fx->queue, "cap_run", "a", 1, NULL), EVQ_OK);
        (void)fixture_submit(fx, "a/1/regular/quick");
        (void)fixture_submit(fx, "a/2/regular/quick");
        struct evq_claim *claim = fixture_claim(fx);
        done[0] = (struct evq_completion){.id = claim->id, .token = claim->token};
        spoil(fx, spoiled[round]);
        assert_status(evq_queue_complete_many(fx->queue, done, 1, NULL),
                      round == 0 ? EVQ_OK : EVQ_E_CORRUPT);
        if (round == 1) {
            unspoil(fx, spoiled[round]);
        }
        assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        evq_claim_free(claim);
        evq_claim_free(fixture_claim(fx)); // The cap of one has space again.
        struct evq_reply *noted =
            fixture_call(fx->raw, "ZCARD", fixture_key(fx, "ended:done"), NULL);
        assert_int_equal(noted->integer, 1);
        evq_reply_free(noted);
    }
}

static void end_of_a_merge_among_many_drops_its_shards(void **state)
{
    struct fixture *fx = *state;
    struct evq_completion done[1];

    (void)fixture_submit(fx, "a/1/regular/quick");
    struct evq_claim *whole = fixture_claim(fx);
    assert_status(evq_queue_split(fx->queue, whole->id, whole->token, 2, NULL), EVQ_OK);
    for (int i = 0; i < 2; i++) {
        struct evq_claim *shard = fixture_claim(fx);
        assert_status(evq_queue_complete_shard(fx->queue, shard->id, shard->token, "part", 4, NULL),
                      EVQ_OK);
        evq_claim_free(shard);
    }
    struct evq_claim *merge = fixture_claim(fx);
    done[0] = (struct evq_completion){.id = merge->id, .token = merge->token};
    assert_status(evq_queue_complete_many(fx->queue, done, 1, NULL), EVQ_OK);
    assert_status(done[0].status, EVQ_OK);
    char *left = fixture_keyspace(fx);
    assert_null(strstr(left, "part:"));
    assert_null(strstr(left, "job:a/1/regular/quick@"));
    free(left);
    fixture_audit(fx);
    evq_claim_free(merge);
    evq_claim_free(whole);
}

/* One job of a flow whose jobs are claimed together is garbage. Only that job is set aside. */
static void claims_set_rubbish_aside_and_take_the_rest(void **state)
{
    struct fixture *fx = *state;
    static const char *const fields[] = {"state", "class", "priority", "place"};
    char id[EVQ_JOB_ID_BYTES_MAX], key[EVQ_JOB_ID_BYTES_MAX + 8];
    struct held held;

    for (size_t round = 0; round < sizeof fields / sizeof *fields; round++) {
        fixture_reset(fx);
        for (int step = 1; step <= 8; step++) {
            (void)snprintf(id, sizeof id, "a/%d/regular/quick", step);
            (void)fixture_submit(fx, id);
        }
        (void)snprintf(key, sizeof key, "job:%s", "a/4/regular/quick");
        evq_reply_free(
            fixture_call(fx->raw, "HSET", fixture_key(fx, key), fields[round], "rubbish", NULL));
        take(fx, TOGETHER, &held);
        assert_int_equal(held.count, 7);
        assert_int_equal(fixture_bad_entries(fx), 1);
        fixture_assert_state(fx, "a/4/regular/quick", "bad");
        fixture_audit(fx);
        held_free(&held);
    }
}

/* The job's results are garbage. The job is set aside and its count corrected. */
static void claim_of_a_job_whose_results_are_rubbish_sets_it_aside(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, "a/1/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    fixture_publish(fx, claim, "t", 0.5);
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    spoil(fx, "res:a/1/regular/quick");
    fixture_claim_none(fx);
    fixture_assert_state(fx, "a/1/regular/quick", "bad");
    fixture_audit(fx);
}

/*
 * The first waiting flow is garbage. The others get their turns, and the first one gets its turn
 * when it is repaired.
 */
static void claims_go_round_a_flow_that_is_rubbish(void **state)
{
    struct fixture *fx = *state;
    struct held held;

    (void)fixture_submit(fx, "a/1/regular/quick");
    (void)fixture_submit(fx, "b/1/regular/quick");
    (void)fixture_submit(fx, "c/1/regular/quick");
    spoil(fx, "flow:a/regular/quick");
    take(fx, TOGETHER, &held);
    assert_int_equal(held.count, 2);
    assert_string_equal(held.claims[0]->id, "b/1/regular/quick");
    held_free(&held);
    unspoil(fx, "flow:a/regular/quick");
    evq_claim_free(fixture_claim(fx));
    fixture_audit(fx);
}

static int seed(void **state)
{
    (void)state;
    random_state = fixture_seed();
    return 0;
}

int main(void)
{
#define MANY_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        MANY_TEST(claims_together_take_what_single_claims_take),
        MANY_TEST(claims_together_leave_the_sixteenth_to_the_lowest_band),
        MANY_TEST(claims_together_pass_nobody_who_was_put_back),
        MANY_TEST(claims_together_go_on_behind_an_empty_flow),
        MANY_TEST(claims_together_keep_the_cap_of_a_run),
        MANY_TEST(claims_together_keep_the_cap_of_a_suite),
        MANY_TEST(claims_set_rubbish_aside_and_take_the_rest),
        MANY_TEST(ends_together_leave_what_single_ends_leave),
        MANY_TEST(end_of_a_merge_among_many_drops_its_shards),
        MANY_TEST(ends_are_whole_where_a_key_is_rubbish),
        MANY_TEST(ends_are_whole_where_their_suite_is_rubbish),
        MANY_TEST(ends_are_noted_and_counted_apart),
        MANY_TEST(claim_of_a_job_whose_results_are_rubbish_sets_it_aside),
        MANY_TEST(claims_go_round_a_flow_that_is_rubbish),
    };
    return cmocka_run_group_tests(tests, seed, NULL);
}
