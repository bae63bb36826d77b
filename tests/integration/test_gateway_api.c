/*
 * Tests the JSON API of evalq-gateway with a real queue.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fixture/http.h"
#include "tests/fixture/safetensors.h"

#define BIN EVQ_TEST_BIN "/evalq-gateway"

static int setup(void **state)
{
    *state = fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "0", NULL);
    return 0;
}

static int teardown(void **state)
{
    fixture_audit(((struct fixture_gateway *)*state)->fx);
    fixture_gateway_close(*state);
    return 0;
}

static json_t *get(const struct fixture_gateway *gateway, int code, const char *target)
{
    return fixture_http_json(gateway, code, "GET", target, FIXTURE_TOKEN_READ, NULL);
}

static json_t *post(const struct fixture_gateway *gateway, int code, const char *target,
                    const char *body)
{
    return fixture_http_json(gateway, code, "POST", target, FIXTURE_TOKEN_WRITE, body);
}

/* Returns the value at a path such as "jobs.0.state" as text; "" if there is none. */
static const char *at(const json_t *json, const char *path)
{
    static char texts[4][128];
    static int next = 0;
    char word[64];
    while (json != NULL && *path != '\0') {
        const size_t bytes = strcspn(path, ".");
        (void)snprintf(word, sizeof word, "%.*s", (int)bytes, path);
        json = json_is_array(json) ? json_array_get(json, (size_t)atoi(word))
                                   : json_object_get(json, word);
        path += bytes + (path[bytes] == '.');
    }
    char *text = texts[next = (next + 1) % 4];
    if (json_is_integer(json)) {
        (void)snprintf(text, sizeof texts[0], "%lld", (long long)json_integer_value(json));
        return text;
    }
    (void)snprintf(text, sizeof texts[0], "%s",
                   json_is_string(json) ? json_string_value(json) : "");
    return text;
}

static void checkpoint(const struct fixture_gateway *gateway, const char *name, float value)
{
    char path[256];
    const float weights[4] = {value, 1, 2, 3};
    const struct fixture_tensor tensor = {
        .name = "0.weight", .dtype = EVQ_DTYPE_F32, .rank = 2, .shape = {2, 2}, .data = weights};
    (void)snprintf(path, sizeof path, "%s/ckpt/%s", gateway->dir, name);
    fixture_safetensors(path, &tensor, 1);
}

static void submit_accepts_the_options_of_evalq_submit(void **state)
{
    struct fixture_gateway *gateway = *state;
    char body[512];
    checkpoint(gateway, "5.safetensors", 1);
    (void)snprintf(body, sizeof body,
                   "{\"run\": \"a\", \"step\": 5, \"suites\": \"quick\", \"path\": "
                   "\"%s/ckpt/5.safetensors\", \"priority\": \"high\", \"params\": {\"k\": 3}}",
                   gateway->dir);
    json_t *answer = post(gateway, 200, "/v1/jobs", body);
    assert_string_equal(at(answer, "jobs.0.id"), "a/5/regular/quick");
    assert_string_equal(at(answer, "jobs.0.answer"), "queued");
    assert_int_equal(strlen(at(answer, "fingerprint")), 32);
    json_decref(answer);
    answer = post(gateway, 200, "/v1/jobs", body); // However often it is sent, it has one effect.
    assert_string_equal(at(answer, "jobs.0.answer"), "duplicate");
    json_decref(answer);
    struct evq_claim *claim = fixture_claim(gateway->fx);
    assert_string_equal(claim->id, "a/5/regular/quick");
    assert_string_equal(claim->job->root, "ckpt");
    assert_string_equal(claim->job->path, "5.safetensors");
    assert_string_equal(claim->job->params[0].value, "3");
    assert_int_equal(claim->job->priority, 1);
    assert_holds(claim->job->manifest, "5.safetensors\t");
    evq_claim_free(claim);
    answer = post(gateway, 200, "/v1/jobs",
                  "{\"run\": \"a b\", \"step\": 6, \"suites\": [\"quick\", \"full\"], \"root\": "
                  "\"elsewhere\", \"path\": \"x/6\", \"needs\": \"gpus=1\", \"policy\": "
                  "\"latest\", \"variant\": \"ema\"}");
    assert_holds(at(answer, "jobs.0.id"), "/6/ema/quick");
    assert_holds(at(answer, "jobs.1.id"), "/6/ema/full");
    json_decref(answer);
}

/* The error is one sentence that names the member, and the queue does not change. */
static void submit_refuses_what_is_wrong_by_name(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char *const cases[][2] = {
        {"", "'run' is missing"},
        {"{", "not JSON"},
        {"[]", "not a JSON object"},
        {"{\"run\": 3}", "'run' is not text"},
        {"{\"run\": \"a\"}", "'step' is missing"},
        {"{\"run\": \"a\", \"step\": 1.5}", "'step' is not a whole number"},
        {"{\"run\": \"a\", \"step\": -1}", "'step' is not a whole number"},
        {"{\"run\": \"a\", \"step\": 99999999999999}", "'step' is not a whole number"},
        {"{\"run\": \"a\", \"step\": 1}", "'suites' is missing"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": [1]}", "'suites' holds something"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"a b\"}", "suite 'a b'"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\"}", "'path' is missing"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"path\": \"x\"}", "'root' is missing"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"path\": \"/no\"}", "beneath no root"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"r\", \"path\": \"../x\"}",
         "path"},
        {"{\"run\": \"a\", \"stepp\": 1}", "did you mean 'step'?"},
        {"{\"run\": \"a\", \"run\": \"b\"}", "not JSON"},
        {"{\"run\": \"a\\u0000b\"}", "not JSON"},
        {"{\"run\": \"\xff\"}", "not JSON"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"r\", \"path\": \"x\", "
         "\"priority\": \"top\"}",
         "expected one of: urgent, high, normal, backfill"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"r\", \"path\": \"x\", "
         "\"params\": {\"a\": []}}",
         "'params.a'"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"r\", \"path\": \"x\", "
         "\"needs\": \"gpus=many\"}",
         "'needs'"},
        {"{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"r\", \"path\": \"x\", "
         "\"fingerprint\": \"12\"}",
         "fingerprint"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *answer = post(gateway, 400, "/v1/jobs", cases[i][0]);
        assert_holds(at(answer, "detail"), cases[i][1]);
        json_decref(answer);
    }
    json_t *answer = post(gateway, 409, "/v1/jobs", // The root exists here, but the file does not.
                          "{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"ckpt\", "
                          "\"path\": \"gone\"}");
    assert_string_equal(at(answer, "error"), "gone");
    json_decref(answer);
    fixture_file_write(gateway->dir, "ckpt/half.safetensors", "\x40");
    answer = post(gateway, 409, "/v1/jobs",
                  "{\"run\": \"a\", \"step\": 1, \"suites\": \"q\", \"root\": \"ckpt\", \"path\": "
                  "\"half.safetensors\"}");
    assert_string_equal(at(answer, "error"), "incomplete");
    json_decref(answer);
    json_t *queue = get(gateway, 200, "/v1/queue");
    assert_string_equal(at(queue, "states.queued"), "0");
    json_decref(queue);
}

static void rights_separate_readers_from_writers(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char *const writes[] = {"/v1/jobs", "/v1/jobs/a/1/regular/quick/cancel",
                                         "/v1/jobs/a/1/regular/quick/retry"};
    (void)fixture_submit(gateway->fx, "a/1/regular/quick");
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        json_decref(fixture_http_json(gateway, 403, "POST", writes[i], FIXTURE_TOKEN_READ, "{}"));
        json_decref(fixture_http_json(gateway, 403, "POST", writes[i], FIXTURE_TOKEN_LMMS, "{}"));
        json_decref(fixture_http_json(gateway, 401, "POST", writes[i], NULL, "{}"));
    }
    fixture_assert_state(gateway->fx, "a/1/regular/quick", "queued");
}

static void jobs_are_listed_in_pages_over_all_states(void **state)
{
    struct fixture_gateway *gateway = *state;
    char id[64];
    char target[256] = "/v1/jobs?count=4";
    int seen = 0;
    fixture_finish(gateway->fx, "a/0/regular/quick", 0.5);
    for (int i = 1; i <= 8; i++) {
        (void)snprintf(id, sizeof id, "%s/%d/regular/quick", i % 2 == 0 ? "b" : "a", i);
        (void)fixture_submit(gateway->fx, id);
    }
    struct evq_claim *claim = fixture_claim(gateway->fx);
    json_t *page = get(gateway, 200, target);
    assert_string_equal(at(page, "jobs.0.id"), claim->id);
    assert_string_equal(at(page, "jobs.0.state"), "running");
    for (int i = 0; i < 20; i++) {
        seen += (int)json_array_size(json_object_get(page, "jobs"));
        const char *cursor = at(page, "cursor");
        if (cursor[0] == '\0') {
            break;
        }
        (void)snprintf(target, sizeof target, "/v1/jobs?count=4&cursor=%s", cursor);
        json_decref(page);
        page = get(gateway, 200, target);
    }
    assert_int_equal(seen, 9);
    json_decref(page);
    page = get(gateway, 200, "/v1/jobs?state=queued&run=b");
    const size_t of_b = json_array_size(json_object_get(page, "jobs"));
    assert_true(of_b == 4 || of_b == 3); // The claimed job may be the one of b.
    json_decref(page);
    json_decref(get(gateway, 400, "/v1/jobs?state=queud"));
    json_decref(get(gateway, 400, "/v1/jobs?count=0"));
    json_decref(get(gateway, 400, "/v1/jobs?count=1x"));
    json_decref(get(gateway, 400, "/v1/jobs?cursor=%00"));
    json_decref(get(gateway, 400, "/v1/jobs?run=a%20b"));
    json_decref(get(gateway, 400, "/v1/jobs?cursor=queued-nonsense"));
    json_decref(get(gateway, 400, "/v1/jobs?cursor=dead-1:99999999999999999999"));
    json_decref(get(gateway, 400, "/v1/jobs?state=queued&cursor=dead"));
    evq_claim_free(claim);
}

static void job_is_shown_cancelled_and_queued_again(void **state)
{
    struct fixture_gateway *gateway = *state;
    (void)fixture_submit(gateway->fx, "a/1/regular/quick");
    json_t *job = get(gateway, 200, "/v1/jobs/a/1/regular/quick");
    assert_string_equal(at(job, "job.state"), "queued");
    assert_string_equal(at(job, "message.root"), "ckpt");
    json_decref(job);
    json_decref(get(gateway, 404, "/v1/jobs/a/2/regular/quick"));
    json_decref(get(gateway, 400, "/v1/jobs/a/x/regular/quick"));
    json_decref(get(gateway, 404, "/v1/jobs/a/1/regular"));
    json_t *answer =
        post(gateway, 200, "/v1/jobs/a/1/regular/quick/cancel", "{\"reason\": \"not wanted\"}");
    assert_string_equal(at(answer, "state"), "cancelled");
    json_decref(answer);
    assert_string_equal(fixture_job_field(gateway->fx, "a/1/regular/quick", "reason").text,
                        "not wanted");
    answer = post(gateway, 200, "/v1/jobs/a/1/regular/quick/retry", NULL);
    assert_string_equal(at(answer, "id"), "a/1/regular/quick");
    json_decref(answer);
    // The client may have lost the answer, so it asks again.
    json_decref(post(gateway, 200, "/v1/jobs/a/1/regular/quick/retry", NULL));
    evq_claim_free(fixture_claim(gateway->fx));
    json_decref(post(gateway, 200, "/v1/jobs/a/1/regular/quick/retry", NULL));
    (void)fixture_submit(gateway->fx, "a/9/regular/quick");
    // The job had not failed.
    json_decref(post(gateway, 409, "/v1/jobs/a/9/regular/quick/retry", NULL));
    json_decref(post(gateway, 404, "/v1/jobs/b/1/regular/quick/retry", NULL));
    json_decref(post(gateway, 404, "/v1/jobs/b/1/regular/quick/cancel", NULL));
    json_decref(post(gateway, 400, "/v1/jobs/a/1/regular/quick/cancel", "{\"why\": \"\"}"));
}

/*
 * A client without an answer repeats its request with the same name, even long after the job is
 * done.
 */
static void repeated_request_gets_the_first_answer(void **state)
{
    static const char path[] = "/v1/jobs/a/1/regular/quick/retry";
    static const char *const wrong[] = {
        "{\"request\": \"a b\"}", "{\"request\": 7}", "{\"reason\": \"it\"}",
        "{\"request\": \"01234567890123456789012345678901234567890\"}"};
    struct fixture_gateway *gateway = *state;
    struct fixture *fx = gateway->fx;

    (void)fixture_submit(fx, "a/1/regular/quick");
    json_decref(post(gateway, 200, "/v1/jobs/a/1/regular/quick/cancel", NULL));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_decref(post(gateway, 400, path, wrong[i]));
    }
    fixture_assert_state(fx, "a/1/regular/quick", "cancelled");
    for (int i = 0; i < 2; i++) {
        json_t *answer = post(gateway, 200, path, "{\"request\": \"mine-1\"}");
        assert_string_equal(at(answer, "id"), "a/1/regular/quick");
        assert_string_equal(at(answer, "state"), "queued");
        json_decref(answer);
        if (i == 0) {
            struct evq_claim *claim = fixture_claim(fx);
            assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
            evq_claim_free(claim);
        }
    }
    fixture_assert_state(fx, "a/1/regular/quick", "done");
    json_decref(post(gateway, 409, path, "{\"request\": \"mine-2\"}")); // This is another request.
    json_decref(post(gateway, 409, path, NULL));
}

static void log_is_the_file_or_its_copy_in_redis(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct fixture *fx = gateway->fx;
    struct evq_queue_info info;
    char path[256];
    enum evq_job_state ended = EVQ_JOB_QUEUED;
    (void)fixture_submit(fx, "a/1/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL, "no memory",
                                 "last words \xff\n", &ended, NULL),
                  EVQ_OK);
    evq_claim_free(claim);
    json_t *log = get(gateway, 200, "/v1/jobs/a/1/regular/quick/log");
    assert_holds(at(log, "log"), "last words");
    json_decref(log);
    (void)snprintf(path, sizeof path, "%s/scratch", gateway->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/scratch/logs", gateway->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    // A log of another queue's job with this name is not returned.
    fixture_file_write(gateway->dir, "scratch/logs/a_1_regular_quick.a1.01234567.log", "foreign\n");
    log = get(gateway, 200, "/v1/jobs/a/1/regular/quick/log");
    assert_holds(at(log, "log"), "last words");
    json_decref(log);
    assert_status(evq_queue_info(fx->queue, &info, NULL), EVQ_OK);
    (void)snprintf(path, sizeof path, "scratch/logs/a_1_regular_quick.a1.%.8s.log", info.epoch);
    fixture_file_write(gateway->dir, path, "\033[31mthe whole\xff log\n");
    log = get(gateway, 200, "/v1/jobs/a/1/regular/quick/log?attempt=1&bytes=16");
    assert_string_equal(at(log, "log"), "mthe whole\xef\xbf\xbd log\n");
    json_decref(log);
    json_decref(get(gateway, 404, "/v1/jobs/a/9/regular/quick/log"));
}

static void runs_give_results_and_their_best(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct evq_best best = {.run = "a",
                            .metric = "eval/t/accuracy",
                            .value = 0.75,
                            .step = 2,
                            .job = "a/2/regular/quick",
                            .checkpoint = "ckpt:2"};
    fixture_finish(gateway->fx, "a/1/regular/quick", 0.5);
    fixture_finish(gateway->fx, "a/2/regular/quick", 0.75);
    assert_status(evq_queue_best_put(gateway->fx->queue, &best, NULL), EVQ_OK);
    json_t *runs = get(gateway, 200, "/v1/runs");
    assert_string_equal(at(runs, "runs.0.run"), "a");
    assert_string_equal(at(runs, "runs.0.counts.done"), "2");
    json_decref(runs);
    json_t *run = get(gateway, 200, "/v1/runs/a");
    assert_string_equal(at(run, "counts.done"), "2");
    json_decref(run);
    json_decref(get(gateway, 404, "/v1/runs/b"));
    json_decref(get(gateway, 400, "/v1/runs/a%20b"));
    json_t *results = get(gateway, 200, "/v1/runs/a/results");
    assert_string_equal(at(results, "results.0.result_id"), "a/1/regular/quick#t");
    assert_string_equal(at(results, "results.1.state"), "done");
    const json_t *metrics =
        json_object_get(json_array_get(json_object_get(results, "results"), 2), "metrics");
    assert_near(json_number_value(json_object_get(metrics, "accuracy")), 0.75, 0);
    assert_string_equal(at(results, "cursor"), "4");
    json_decref(results);
    results = get(gateway, 200, "/v1/runs/a/results?cursor=4");
    assert_int_equal(json_array_size(json_object_get(results, "results")), 0);
    json_decref(results);
    json_t *found = get(gateway, 200, "/v1/runs/a/best?metric=eval%2Ft%2Faccuracy");
    assert_string_equal(at(found, "job"), "a/2/regular/quick");
    json_decref(found);
    json_decref(get(gateway, 404, "/v1/runs/a/best?metric=other"));
    json_t *workers = get(gateway, 200, "/v1/workers");
    assert_true(json_is_array(json_object_get(workers, "workers")));
    json_decref(workers);
}

static void jobs_are_explained_when_asked(void **state)
{
    struct fixture_gateway *gateway = *state;
    (void)fixture_submit(gateway->fx, "a/1/regular/quick");
    struct evq_claim *claim = fixture_claim(gateway->fx);
    assert_status(evq_queue_fail(gateway->fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL,
                                 "broke", "broke: the whole first line\nand a log", NULL, NULL),
                  EVQ_OK);
    evq_claim_free(claim);
    (void)fixture_submit(gateway->fx, "a/2/regular/other");
    json_t *page = get(gateway, 200, "/v1/jobs?explain=1&state=dead");
    assert_string_equal(at(page, "jobs.0.cause"), "broke: the whole first line");
    json_decref(page);
    page = get(gateway, 200, "/v1/jobs?explain=1&state=queued");
    assert_string_equal(at(page, "jobs.0.why"), "no worker offers suite other");
    json_decref(page);
    page = get(gateway, 200, "/v1/jobs?state=queued");
    assert_null(json_object_get(json_array_get(json_object_get(page, "jobs"), 0), "why"));
    json_decref(page);
    json_decref(get(gateway, 400, "/v1/jobs?explain=1&count=101"));
}

static void pause_is_for_writers_and_says_what_it_did(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char run[] = "{\"kind\": \"run\", \"name\": \"a\"}";
    (void)fixture_submit(gateway->fx, "a/1/regular/quick");
    json_t *answer = get(gateway, 200, "/v1/access");
    assert_true(json_is_false(json_object_get(answer, "write")));
    json_decref(answer);
    json_decref(fixture_http_json(gateway, 403, "POST", "/v1/pause", FIXTURE_TOKEN_READ, run));
    answer = post(gateway, 200, "/v1/pause", run);
    assert_string_equal(at(answer, "name"), "a");
    json_decref(answer);
    answer = get(gateway, 200, "/v1/queue");
    assert_string_equal(at(answer, "paused.runs.0"), "a");
    json_decref(answer);
    json_decref(
        post(gateway, 200, "/v1/pause", "{\"kind\": \"run\", \"name\": \"a\", \"paused\": false}"));
    json_decref(post(gateway, 400, "/v1/pause", "{\"kind\": \"run\"}"));
    json_decref(post(gateway, 400, "/v1/pause", "{\"name\": \"a\"}"));
    json_decref(post(gateway, 400, "/v1/pause", "{\"kind\": \"worker\", \"name\": \"a\"}"));
    answer = get(gateway, 200, "/v1/queue");
    assert_int_equal(json_array_size(json_object_get(json_object_get(answer, "paused"), "runs")),
                     0);
    json_decref(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(submit_accepts_the_options_of_evalq_submit, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(submit_refuses_what_is_wrong_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(rights_separate_readers_from_writers, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_are_listed_in_pages_over_all_states, setup, teardown),
        cmocka_unit_test_setup_teardown(job_is_shown_cancelled_and_queued_again, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_are_explained_when_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(pause_is_for_writers_and_says_what_it_did, setup, teardown),
        cmocka_unit_test_setup_teardown(repeated_request_gets_the_first_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(log_is_the_file_or_its_copy_in_redis, setup, teardown),
        cmocka_unit_test_setup_teardown(runs_give_results_and_their_best, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
