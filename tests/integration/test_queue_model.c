/*
 * Sends the same random operations to the server and to a model in memory. After each, the answers,
 * states, positions, tokens and counters must be equal. $EVALQ_TEST_SEED repeats a run.
 */

#include "queue_drive.h"

static void submit(struct drive *d)
{
    static const char *const policies[] = {"all", "latest", "backfill"};
    char session[8];
    char step[16];
    char band[4];
    char fingerprint[2] = {(char)('1' + roll(d, 2)), '\0'};
    struct model_submit s = {.flow = (int)roll(d, MODEL_FLOWS),
                             .step = (int64_t)roll(d, 14),
                             .session = 1 + (int64_t)roll(d, 12) / 10,
                             .band = roll(d, 3) == 0 ? (int)roll(d, 4) : 2,
                             .keep = roll(d, 7) == 0,
                             .fingerprint = *fingerprint,
                             .delayed = roll(d, 9) == 0};
    s.policy = (enum evq_job_policy)((uint64_t)s.flow + (roll(d, 8) == 0) + 2) % EVQ_POLICY_COUNT;
    int job = -1;

    (void)snprintf(session, sizeof session, "%lld", (long long)s.session);
    (void)snprintf(step, sizeof step, "%lld", (long long)s.step);
    (void)snprintf(band, sizeof band, "%d", s.band);
    (void)snprintf(d->what, sizeof d->what,
                   "submit flow %d step %s session %s %s band %s keep %d print %s delayed %d",
                   s.flow, step, session, policies[s.policy], band, s.keep, fingerprint, s.delayed);
    const char *answer = model_submit(d->m, &s, &job);
    struct evq_reply *reply =
        ask(d, "submit", model_run_name(s.flow / MODEL_SUITES), session, step, "regular",
            model_suite_name(s.flow % MODEL_SUITES), policies[s.policy], band, s.keep ? "1" : "0",
            fingerprint, "0", "", s.delayed ? "100000" : "0", "\x81\xa7version\x01", NULL);
    char id[EVQ_JOB_ID_BYTES_MAX];
    model_id(d->m, job, id);
    if (reply->item_count < 3 || strcmp(reply->items[1]->text, id) != 0 ||
        strcmp(reply->items[2]->text, evq_job_state_name(d->m->jobs[job].state)) != 0) {
        broken(d, id, reply->item_count < 3 ? "a shorter reply" : reply->items[1]->text);
    }
    d->events[SUBMIT]++;
    d->events[DUPLICATE] += strcmp(answer, "duplicate") == 0;
    d->events[REPLACED] += strcmp(answer, "replaced") == 0;
    d->events[FOLLOWED] += strcmp(answer, "followed") == 0;
    d->events[SKIPPED] += strcmp(answer, "skipped") == 0;
    expect(d, reply, answer);
}

static struct evq_reply *claim_call(struct drive *d, const char *worker, const char *request,
                                    const char *count, unsigned suites)
{
    return suites == 3   ? ask(d, "claim", worker, request, "600000", count, "2", "1", "2", NULL)
           : suites == 1 ? ask(d, "claim", worker, request, "600000", count, "1", "1", NULL)
                         : ask(d, "claim", worker, request, "600000", count, "1", "2", NULL);
}

static void claim_row(struct drive *d, const struct evq_reply *row, unsigned suites)
{
    int job = model_find(d->m, row->items[0]->text);
    const char *why = job < 0 ? "there is no such job" : model_claimable(d->m, suites, job);
    if (why != NULL) {
        broken(d, why, row->items[0]->text);
    }
    d->events[LOWEST_FIRST] += (d->m->served + 1) % 16 == 0;
    model_claimed(d->m, job, row->items[1]->text, d->last_worker);
    const struct model_job *j = &d->m->jobs[job];
    int tasks = (j->tasks & 1) + (j->tasks >> 1 & 1) + (j->tasks >> 2 & 1);
    char want[64];
    char got[128];
    (void)snprintf(want, sizeof want, "%d %d %d %d %d %d", j->attempts, j->shard,
                   j->shard >= 0 ? j->shards : 0, j->merge, j->alone, tasks);
    (void)snprintf(got, sizeof got, "%s %s %s %s %s %d", row->items[3]->text, row->items[4]->text,
                   row->items[5]->text, row->items[6]->text, row->items[7]->text,
                   (int)row->item_count - 9);
    if (strcmp(want, got) != 0) {
        broken(d, want, got);
    }
    d->events[CLAIMED]++;
    d->events[SHARD] += j->shard >= 0;
    d->events[MERGE] += j->merge;
    struct held *held = &d->held[d->held_count++ % TOKENS_MAX];
    (void)snprintf(held->id, sizeof held->id, "%s", row->items[0]->text);
    (void)snprintf(held->token, sizeof held->token, "%s", row->items[1]->text);
    d->last_rows[d->last_count++] = *held;
}

static void claim(struct drive *d)
{
    char count[4];
    unsigned suites = 1 + (unsigned)roll(d, 3);
    uint64_t wanted = 1 + roll(d, 3);

    (void)snprintf(count, sizeof count, "%d", (int)wanted);
    (void)snprintf(d->last_worker, sizeof d->last_worker, "w%d", (int)roll(d, 3));
    (void)snprintf(d->last_request, sizeof d->last_request, "q%llu",
                   (unsigned long long)++d->request);
    d->last_suites = suites;
    d->last_count = 0;
    (void)snprintf(d->what, sizeof d->what, "claim %s suites %u", count, suites);
    struct evq_reply *reply = claim_call(d, d->last_worker, d->last_request, count, suites);
    for (size_t i = 4; i < reply->item_count; i++) {
        claim_row(d, reply->items[i], suites);
    }
    if (reply->item_count - 4 < wanted && !model_nothing_to_claim(d->m, suites)) {
        broken(d, "another job", "no more");
    }
    d->events[CLAIM]++;
    d->events[NONE] += reply->item_count == 4;
    expect(d, reply, reply->item_count > 4 ? "jobs" : "none");
}

/*
 * The reply to the last claim was lost. The repeated request returns the claims that are still
 * valid.
 */
static void claim_again(struct drive *d)
{
    if (d->last_count == 0) {
        return;
    }
    (void)snprintf(d->what, sizeof d->what, "repeat %s of %s", d->last_request, d->last_worker);
    struct evq_reply *reply = claim_call(d, d->last_worker, d->last_request, "3", d->last_suites);
    size_t at = 4;
    for (int i = 0; i < d->last_count; i++) {
        int job = model_find(d->m, d->last_rows[i].id);
        if (job < 0 || strcmp(d->m->jobs[job].token, d->last_rows[i].token) != 0) {
            continue;
        }
        if (at >= reply->item_count ||
            strcmp(reply->items[at]->items[0]->text, d->last_rows[i].id) != 0 ||
            strcmp(reply->items[at]->items[1]->text, d->last_rows[i].token) != 0) {
            broken(d, d->last_rows[i].id,
                   at < reply->item_count ? reply->items[at]->items[0]->text : "nothing");
        }
        at++;
    }
    if (at != reply->item_count) {
        broken(d, "no further claim", reply->items[at]->items[0]->text);
    }
    d->events[REPEAT]++;
    expect(d, reply, at > 4 ? "jobs" : "none");
}

/* Returns a claim of this round, mostly a late one. false: no claim has a known job. */
static bool some_held(struct drive *d, struct held *ret_held, int *ret_job)
{
    if (d->held_count == 0) {
        return false;
    }
    int back = (int)roll(d, roll(d, 3) == 0 ? (uint64_t)d->held_count : 6);
    int at = d->held_count - 1 - (back < d->held_count ? back : d->held_count - 1);
    *ret_held = d->held[at % TOKENS_MAX];
    *ret_job = model_find(d->m, ret_held->id);
    if (*ret_job >= 0 && d->m->jobs[*ret_job].state != EVQ_JOB_RUNNING &&
        strcmp(d->m->jobs[*ret_job].token, ret_held->token) == 0 && *ret_held->token != '\0') {
        d->events[REGAIN]++;
    }
    return *ret_job >= 0;
}

static void publish(struct drive *d)
{
    struct held h;
    int job;
    if (!some_held(d, &h, &job) || d->m->jobs[job].shard >= 0) {
        return;
    }
    int task = (int)roll(d, 3);
    char task_name[4];
    char weights[2] = {roll(d, 6) == 0 ? 'b' : 'a', '\0'};
    (void)snprintf(task_name, sizeof task_name, "t%d", task);
    (void)snprintf(d->what, sizeof d->what, "publish %s %s %s %s", h.id, h.token, task_name,
                   weights);
    const char *want = model_publish(d->m, job, h.token, task, *weights);
    d->events[PUBLISH]++;
    d->events[CHANGED] += strcmp(want, "changed") == 0;
    expect(d, ask(d, "publish", h.id, h.token, task_name, weights, "", "\x80", "0", NULL), want);
}

static void complete(struct drive *d)
{
    struct held h;
    int job;
    bool found = some_held(d, &h, &job);
    for (int i = 0; i < 8 && found && d->m->jobs[job].shard < 0; i++) {
        // It prefers shards, because all of them must succeed for one merge.
        found = some_held(d, &h, &job);
    }
    if (!found) {
        return;
    }
    (void)snprintf(d->what, sizeof d->what, "complete %s %s", h.id, h.token);
    const char *part = d->m->jobs[job].shard >= 0 ? "part" : "";
    d->events[COMPLETE]++;
    expect(d, ask(d, "complete", h.id, h.token, part, NULL), model_complete(d->m, job, h.token));
}

static void fail_one(struct drive *d)
{
    static const char *const kinds[] = {"retry", "crash",   "crash",    "timeout",
                                        "fatal", "changed", "vanished", "incomplete"};
    struct held h;
    int job;
    if (!some_held(d, &h, &job)) {
        return;
    }
    const char *kind = kinds[roll(d, 8)];
    char worker[4];
    (void)snprintf(worker, sizeof worker, "w%d", (int)roll(d, 3));
    (void)snprintf(d->what, sizeof d->what, "fail %s %s %s %s", h.id, h.token, kind, worker);
    const char *want = model_fail(d->m, job, h.token, kind, worker);
    d->events[FAIL]++;
    d->events[DEAD] += strcmp(want, "dead") == 0;
    expect(d, ask(d, "fail", h.id, h.token, kind, "why", "detail", worker, NULL), want);
}

static void release(struct drive *d)
{
    struct held h;
    int job;
    if (!some_held(d, &h, &job)) {
        return;
    }
    (void)snprintf(d->what, sizeof d->what, "release %s %s", h.id, h.token);
    d->events[RELEASE]++;
    expect(d, ask(d, "release", h.id, h.token, NULL), model_release(d->m, job, h.token));
}

static void split(struct drive *d)
{
    struct held h;
    int job;
    if (!some_held(d, &h, &job) || d->m->jobs[job].shard >= 0 ||
        (d->m->jobs[job].shards > 0 && strcmp(d->m->jobs[job].token, h.token) == 0)) {
        return; // The attempt that merges must not split again; another test covers this error.
    }
    char shards[4];
    int n = 2 + (int)roll(d, 2);
    (void)snprintf(shards, sizeof shards, "%d", n);
    (void)snprintf(d->what, sizeof d->what, "split %s %s %s", h.id, h.token, shards);
    d->events[SPLIT]++;
    expect(d, ask(d, "split", h.id, h.token, shards, NULL), model_split(d->m, job, h.token, n));
}

static void beat(struct drive *d)
{
    struct held h;
    int job;
    if (!some_held(d, &h, &job)) {
        return;
    }
    (void)snprintf(d->what, sizeof d->what, "heartbeat %s %s", h.id, h.token);
    const char *want = model_beat(d->m, job, h.token);
    struct evq_reply *reply =
        ask(d, "heartbeat", "w0", "{}", "600000", "1", h.id, h.token, "1", "2", "s", NULL);
    if (reply->item_count != 3 || strcmp(reply->items[2]->text, want) != 0) {
        broken(d, want, reply->item_count == 3 ? reply->items[2]->text : "another length");
    }
    d->events[BEAT]++;
    evq_reply_free(reply);
}

/* Returns any job of the model in the state; -1: there is none. */
static int some_job(struct drive *d, enum evq_job_state state)
{
    if (d->m->count == 0) {
        return -1;
    }
    int start = (int)roll(d, (uint64_t)d->m->count);
    for (int i = 0; i < d->m->count; i++) {
        int at = (start + i) % d->m->count;
        if (d->m->jobs[at].used &&
            (state == EVQ_JOB_STATE_COUNT || d->m->jobs[at].state == state)) {
            return at;
        }
    }
    return -1;
}

static void look(struct drive *d)
{
    int job = some_job(d, EVQ_JOB_RUNNING);
    char id[EVQ_JOB_ID_BYTES_MAX];
    if (job < 0) {
        return;
    }
    model_id(d->m, job, id);
    (void)snprintf(d->what, sizeof d->what, "look at %s", id);
    if (fixture_call_integer(d->fx->raw, "ZADD", fixture_key(d->fx, "leases"), "XX", "CH", "1", id,
                             NULL) == 1) {
        int lost = d->m->jobs[job].lost;
        model_look(d->m, job);
        d->events[LOOK]++;
        d->events[RECLAIM] += d->m->jobs[job].lost != lost;
        evq_reply_free(ask(d, "heartbeat", "watcher", "{}", "600000", "0", NULL));
    }
}

static void fall_due(struct drive *d)
{
    int job = some_job(d, EVQ_JOB_DELAYED);
    char id[EVQ_JOB_ID_BYTES_MAX];
    if (job < 0) {
        return;
    }
    model_id(d->m, job, id);
    (void)snprintf(d->what, sizeof d->what, "%s falls due", id);
    fixture_due(d->fx, id);
    model_promote(d->m, job);
    d->events[PROMOTE]++;
    evq_reply_free(ask(d, "heartbeat", "watcher", "{}", "600000", "0", NULL));
}

static void cancel(struct drive *d)
{
    int job = some_job(d, EVQ_JOB_STATE_COUNT);
    char id[EVQ_JOB_ID_BYTES_MAX];
    if (job < 0) {
        return;
    }
    model_id(d->m, job, id);
    (void)snprintf(d->what, sizeof d->what, "cancel %s", id);
    d->events[CANCEL]++;
    expect(d, ask(d, "cancel", id, "", NULL), model_cancel(d->m, job));
}

static void retry(struct drive *d)
{
    static const enum evq_job_state states[] = {EVQ_JOB_DEAD, EVQ_JOB_SKIPPED, EVQ_JOB_CANCELLED,
                                                EVQ_JOB_DONE};
    int job = some_job(d, states[roll(d, 4)]);
    char id[EVQ_JOB_ID_BYTES_MAX];
    for (int i = 0; i < 12 && (job < 0 || d->m->jobs[job].tasks == 0); i++) {
        job = some_job(d, states[roll(d, 3)]); // It prefers a job that has published something.
    }
    if (job < 0 || d->m->jobs[job].shard >= 0) {
        return;
    }
    model_id(d->m, job, id);
    (void)snprintf(d->what, sizeof d->what, "retry %s", id);
    int again = -1;
    const char *want = model_retry(d->m, job, &again);
    struct evq_reply *reply = ask(d, "retry", id, NULL);
    d->events[RETRY]++;
    d->events[RETRY_NEW] += again != job;
    expect(d, reply, want);
}

static void operate(struct drive *d)
{
    const char *on = roll(d, 4) == 0 ? "1" : "0";
    int run = (int)roll(d, MODEL_RUNS);
    int suite = (int)roll(d, MODEL_SUITES);
    int value = (int)roll(d, 3);
    char cap[4];

    (void)snprintf(cap, sizeof cap, "%d", value);
    uint64_t kind = roll(d, 5);
    (void)snprintf(d->what, sizeof d->what, "operate %d run %d suite %d value %s on %s", (int)kind,
                   run, suite, cap, on);
    if (kind == 0) {
        d->m->paused = *on == '1';
        expect(d, ask(d, "pause", "queue", "", on, NULL), "ok");
    } else if (kind == 1) {
        d->m->suite_paused[suite] = *on == '1';
        expect(d, ask(d, "pause", "suite", model_suite_name(suite), on, NULL), "ok");
    } else if (kind == 2) {
        d->m->runs[run].paused = *on == '1';
        expect(d, ask(d, "pause", "run", model_run_name(run), on, NULL), "ok");
    } else if (kind == 3) {
        d->m->runs[run].cap = value;
        expect(d, ask(d, "limit", "cap_run", model_run_name(run), cap, NULL), "ok");
    } else {
        d->m->suite_cap[suite] = value;
        expect(d, ask(d, "limit", "cap_suite", model_suite_name(suite), cap, NULL), "ok");
    }
    d->events[kind < 3 ? PAUSE : LIMIT]++;
}

static void forget(struct drive *d)
{
    int run = (int)roll(d, MODEL_RUNS);
    (void)snprintf(d->what, sizeof d->what, "forget %s", model_run_name(run));
    const char *want = model_forget(d->m, run);
    struct evq_reply *reply = NULL;
    for (int slices = 0; slices < 100; slices++) {
        evq_reply_free(reply);
        reply = ask(d, "forget", model_run_name(run), NULL);
        if (strcmp(word_of(reply), "running") == 0 || strcmp(word_of(reply), "0") == 0) {
            break;
        }
    }
    d->events[FORGET] += strcmp(want, "0") == 0;
    expect(d, reply, want);
}

static void one_operation(struct drive *d)
{
    uint64_t dice = roll(d, 100);
    if (dice < 26) {
        submit(d);
    } else if (dice < 46) {
        claim(d);
    } else if (dice < 49) {
        claim_again(d);
    } else if (dice < 57) {
        publish(d);
    } else if (dice < 69) {
        complete(d);
    } else if (dice < 74) {
        fail_one(d);
    } else if (dice < 76) {
        release(d);
    } else if (dice < 79) {
        split(d);
    } else if (dice < 83) {
        beat(d);
    } else if (dice < 88) {
        look(d);
    } else if (dice < 92) {
        fall_due(d);
    } else if (dice < 94) {
        cancel(d);
    } else if (dice < 96) {
        retry(d);
    } else if (dice < 98 || roll(d, 3) != 0) {
        operate(d);
    } else {
        forget(d);
    }
}

static void round_begin(struct drive *d)
{
    fixture_audit(d->fx);
    fixture_reset(d->fx);
    fixture_call_integer(d->fx->raw, "DEL", fixture_key(d->fx, "class"),
                         fixture_key(d->fx, "classes"), fixture_key(d->fx, "suite:quick"),
                         fixture_key(d->fx, "suites"), NULL);
    assert_int_equal(fixture_suite(d->fx, "s0"), 1);
    assert_int_equal(fixture_suite(d->fx, "s1"), 2);
    model_reset(d->m);
    d->held_count = 0;
    d->last_count = 0;
}

static void queue_agrees_with_a_model_over_random_operations(void **state)
{
    struct drive *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->m = calloc(1, sizeof *d->m);
    assert_non_null(d->m);
    d->fx = *state;
    d->seed = fixture_seed();
    d->random = d->seed;

    for (d->operation = 0; d->operation < OPERATIONS; d->operation++) {
        if (d->operation % ROUND == 0) {
            round_begin(d);
        }
        one_operation(d);
        compare(d);
    }
    fixture_audit(d->fx);
    for (int i = 0; i < EVENT_COUNT; i++) {
        print_message("%s %lld  ", operation_names[i], (long long)d->events[i]);
        assert_true(d->events[i] >= 10); // Otherwise the test has not covered its subject.
    }
    print_message("\n");
    free(d->m);
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(queue_agrees_with_a_model_over_random_operations,
                                        fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
