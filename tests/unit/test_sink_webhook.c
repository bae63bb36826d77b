/*
 * The webhook sink against a small HTTP server: what it sends and signs, what it makes of each
 * answer, and where it does not go.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

#include "logger/sinks/sink.h"
#include "shared/base/base64.h"
#include "shared/base/clock.h"
#include "shared/base/sha256.h"
#include "tests/fixture/receiver.h"
#include "tests/fixture/redis.h"

struct scene {
    char directory[64];
    char secrets[96];
    char url[128];
    struct fixture_receiver *server;
    const char *statuses[8]; // Of the first answers; then 200.
    const char *headers;
    bool long_answers; // Of 4 MiB.
    bool cut;          // Answers break off,
    bool hangs;        // or stand still.
    struct evq_pair options[5];
    struct evq_sink_config config;
    struct evq_sink_context context;
    void *sink;
};

static void answer(void *context, size_t number, const struct fixture_receiver_request *request,
                   struct fixture_receiver_answer *ret)
{
    const struct scene *scene = context;

    (void)request;
    if (number < 8 && scene->statuses[number] != NULL) {
        ret->status = scene->statuses[number];
        ret->headers = scene->headers != NULL ? scene->headers : "";
        (void)snprintf(ret->body, sizeof ret->body, "because of number %zu", number);
    }
    ret->cut = scene->cut;
    ret->hangs = scene->hangs;
    if (scene->long_answers) {
        const size_t said = strlen(ret->body);
        memset(ret->body + said, '.', 4096 - said);
        ret->body[4096] = '\0';
        ret->times = 1024;
    }
}

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);

    assert_non_null(scene);
    (void)unsetenv("EVALQ_WEBHOOK_SECRET");
    (void)unsetenv("EVALQ_WEBHOOK_URL");
    fixture_dir_make(scene->directory);
    (void)snprintf(scene->secrets, sizeof scene->secrets, "%s/secrets", scene->directory);
    scene->server = fixture_receiver_start(answer, scene);
    (void)snprintf(scene->url, sizeof scene->url, "%s/hooks/T0PSECRET", scene->server->url);
    scene->options[0] = (struct evq_pair){"url", scene->url};
    scene->options[1] = (struct evq_pair){"allow_private", "true"};
    scene->options[2] = (struct evq_pair){"timeout_seconds", "20"};
    scene->config = (struct evq_sink_config){"hook", "webhook", scene->options, 3, false};
    scene->context =
        (struct evq_sink_context){.sink = &scene->config, .directory = scene->directory};
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    evq_sink_webhook.close(scene->sink);
    fixture_receiver_stop(scene->server);
    fixture_dir_remove(scene->directory);
    free(scene);
    return 0;
}

static void scene_open(struct scene *scene)
{
    struct evq_error err;

    assert_status_err(evq_sink_webhook.open(&scene->context, &scene->sink, &err), EVQ_OK, &err);
}

static void secrets_write(struct scene *scene, const char *text, mode_t mode)
{
    FILE *file = fopen(scene->secrets, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(scene->secrets, mode), 0);
    scene->options[3] = (struct evq_pair){"secret_file", scene->secrets};
    scene->config.option_count = 4;
}

static enum evq_status give(struct scene *scene, const char *job, const char *task,
                            struct evq_error *err)
{
    const struct evq_metric metric = {.name = "accuracy", .value = 0.5, .higher_is_better = 1};
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->job = job;
    result->run = "digits";
    result->task = task;
    result->step = 100;
    result->finished_ms = 1700000000123;
    result->metrics = &metric;
    result->metric_count = task[0] != '\0' ? 1 : 0;
    const enum evq_status status = evq_sink_webhook.write(scene->sink, result, err);
    evq_result_free(result);
    return status;
}

static void assert_signed(const struct fixture_receiver_request *request, const void *key,
                          size_t key_bytes, const char *signature)
{
    uint8_t digest[EVQ_SHA256_BYTES];
    char coded[EVQ_BASE64_CHARS(EVQ_SHA256_BYTES) + 1];
    char text[8192];

    const int bytes =
        snprintf(text, sizeof text, "%s.%s.%s", fixture_receiver_header(request, "webhook-id"),
                 fixture_receiver_header(request, "webhook-timestamp"), request->body);
    evq_sha256_hmac(key, key_bytes, text, (size_t)bytes, digest);
    evq_base64_encode(digest, sizeof digest, coded);
    assert_memory_equal(signature, "v1,", 3);
    assert_memory_equal(signature + 3, coded, strlen(coded));
}

static void sink_webhook_sends_and_signs_as_standard_webhooks_says(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    secrets_write(scene, "whsec_c2VjcmV0LWtleQ==\nplain secret\n", 0600);
    scene_open(scene);
    assert_status_err(give(scene, "digits/100/regular/quick", "t", &err), EVQ_OK, &err);
    assert_int_equal(atomic_load(&scene->server->count), 1);
    const struct fixture_receiver_request *request = &scene->server->requests[0];
    assert_memory_equal(request->head, "POST /hooks/T0PSECRET HTTP/1.1\r\n", 32);
    assert_string_equal(fixture_receiver_header(request, "content-type"), "application/json");
    assert_string_equal(fixture_receiver_header(request, "webhook-id"),
                        "digits/100/regular/quick#t");
    const int64_t seconds =
        strtoll(fixture_receiver_header(request, "webhook-timestamp"), NULL, 10);
    assert_true(llabs(seconds - evq_clock_unix_ms() / 1000) < 60);
    const char *signature = fixture_receiver_header(request, "webhook-signature");
    assert_signed(request, "secret-key", 10, signature);
    assert_non_null(strchr(signature, ' '));
    assert_signed(request, "plain secret", 12, strchr(signature, ' ') + 1);
    json_t *body = json_loads(request->body, 0, NULL);
    assert_non_null(body);
    assert_string_equal(json_string_value(json_object_get(body, "type")), "evaluation.result");
    assert_string_equal(json_string_value(json_object_get(body, "timestamp")),
                        "2023-11-14T22:13:20.123Z");
    const json_t *data = json_object_get(body, "data");
    assert_string_equal(json_string_value(json_object_get(data, "result_id")),
                        "digits/100/regular/quick#t");
    assert_true(json_real_value(json_object_get(json_object_get(data, "metrics"), "accuracy")) ==
                0.5);
    json_decref(body);
}

static void sink_webhook_keeps_the_id_of_what_it_sends_again(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    scene->statuses[0] = "500 Oops";
    scene_open(scene);
    assert_status(give(scene, "digits/2/regular/quick", "t", &err), EVQ_E_RETRY);
    assert_holds(err.message, "answers 500: because of number 0");
    assert_null(strstr(err.message, "T0PSECRET"));
    assert_status_err(give(scene, "digits/2/regular/quick", "t", &err), EVQ_OK, &err);
    assert_int_equal(atomic_load(&scene->server->count), 2);
    assert_string_equal(fixture_receiver_header(&scene->server->requests[0], "webhook-id"),
                        fixture_receiver_header(&scene->server->requests[1], "webhook-id"));
    assert_status_err(evq_sink_webhook.flush(scene->sink, &err), EVQ_OK, &err);
}

static void sink_webhook_refuses_for_good_only_what_the_receiver_says_is_wrong(void **state)
{
    static const struct {
        const char *status;
        enum evq_status want;
    } cases[] = {{"400 Bad Request", EVQ_E_INVALID}, {"422 Unprocessable", EVQ_E_INVALID},
                 {"401 Unauthorized", EVQ_E_RETRY},  {"404 Not Found", EVQ_E_RETRY},
                 {"410 Gone", EVQ_E_RETRY},          {"302 Found", EVQ_E_RETRY},
                 {"413 Too Large", EVQ_E_INVALID},   {"502 Bad Gateway", EVQ_E_RETRY}};
    struct scene *scene = *state;
    struct evq_error err;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        scene->statuses[i] = cases[i].status;
    }
    scene->headers = "Location: /elsewhere\r\n"; // Here, where it would be counted.
    scene_open(scene);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_status(give(scene, "digits/1/regular/quick", "t", &err), cases[i].want);
    }
    assert_int_equal(atomic_load(&scene->server->count),
                     sizeof cases / sizeof cases[0]); // No redirect.
}

static void sink_webhook_leaves_the_receiver_alone_when_it_asks_to(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    scene->statuses[0] = "429 Too Many Requests";
    scene->headers = "Retry-After: 600\r\n";
    scene_open(scene);
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_RETRY);
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_RETRY);
    assert_holds(err.message, "asked for a pause");
    assert_int_equal(atomic_load(&scene->server->count), 1);
}

/* However long the receiver goes on: it has taken the result, or said that it never will. */
static void sink_webhook_goes_by_the_code_of_an_answer_that_is_too_long(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    scene->long_answers = true;
    scene->statuses[0] = "400 Bad Request";
    scene->statuses[1] = "503 Busy";
    scene_open(scene);
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_INVALID);
    assert_holds(err.message, "answers 400: because of number 0...");
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_RETRY);
    assert_holds(err.message, "answers 503: because of number 1...");
    assert_status_err(give(scene, "digits/1/regular/quick", "t", &err), EVQ_OK, &err);
    assert_int_equal(atomic_load(&scene->server->count), 3);
}

/* A receiver that is slow to end what it says has taken the result all the same. */
static void sink_webhook_goes_by_the_code_of_an_answer_that_does_not_end(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    scene->cut = true;
    scene->statuses[0] = "400 Bad Request";
    scene->statuses[1] = "503 Busy";
    scene_open(scene);
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_INVALID);
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_RETRY);
    assert_holds(err.message, "answers 503: because of number 1");
    assert_status_err(give(scene, "digits/1/regular/quick", "t", &err), EVQ_OK, &err);
    evq_sink_webhook.close(scene->sink);
    scene->hangs = true;
    scene->options[2] = (struct evq_pair){"timeout_seconds", "4"};
    scene_open(scene);
    assert_status_err(give(scene, "digits/1/regular/quick", "t", &err), EVQ_OK, &err);
    assert_int_equal(atomic_load(&scene->server->count), 4);
}

static void sink_webhook_connects_to_no_private_address_unless_allowed(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "127.1", "2130706433",
                                        "[::ffff:127.0.0.1]"};
    struct scene *scene = *state;
    struct evq_error err;

    scene->options[1] = (struct evq_pair){"allow_private", "false"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        (void)snprintf(scene->url, sizeof scene->url, "http://%s:%d/", hosts[i],
                       scene->server->port);
        assert_int_equal(setenv("http_proxy", scene->server->url, 1), 0); // No way round either.
        scene_open(scene);
        assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_IO);
        assert_holds(err.message, "not public: allow_private");
        evq_sink_webhook.close(scene->sink);
        scene->sink = NULL;
        assert_int_equal(unsetenv("http_proxy"), 0);
    }
    assert_int_equal(atomic_load(&scene->server->count), 0);
}

static void sink_webhook_says_what_is_wrong_with_its_options(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;
    void *sink = NULL;

    scene->options[0].value = "ftp://example.org/";
    assert_status(evq_sink_webhook.open(&scene->context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "expected url: https://HOST/PATH");
    scene->options[0].value = scene->url;
    scene->options[1].value = "maybe";
    assert_status(evq_sink_webhook.open(&scene->context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "expected true or false");
    scene->options[1].value = "true";
    secrets_write(scene, "secret", 0644);
    assert_status(evq_sink_webhook.open(&scene->context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "chmod 600");
    secrets_write(scene, "whsec_***", 0600);
    assert_status(evq_sink_webhook.open(&scene->context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "base64");
    assert_null(strstr(err.message, "***"));
    scene->options[3].value = "/nowhere/at/all";
    assert_status(evq_sink_webhook.open(&scene->context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "/nowhere/at/all");
    scene->options[3] = (struct evq_pair){"secret", "in the file"};
    assert_status(evq_sink_check(&scene->config, &err), EVQ_E_INVALID);
    assert_holds(err.message, "option 'secret' is unknown");
    assert_null(strstr(err.message, "in the file"));
    assert_null(sink);
}

static void sink_webhook_is_down_when_nobody_listens(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    (void)snprintf(scene->url, sizeof scene->url, "http://127.0.0.1:%d/secret",
                   fixture_free_port());
    scene_open(scene);
    assert_status(give(scene, "digits/1/regular/quick", "t", &err), EVQ_E_IO);
    assert_holds(err.message, "sink 'hook': '127.0.0.1:");
    assert_null(strstr(err.message, "/secret"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sink_webhook_sends_and_signs_as_standard_webhooks_says),
        TEST(sink_webhook_keeps_the_id_of_what_it_sends_again),
        TEST(sink_webhook_refuses_for_good_only_what_the_receiver_says_is_wrong),
        TEST(sink_webhook_leaves_the_receiver_alone_when_it_asks_to),
        TEST(sink_webhook_goes_by_the_code_of_an_answer_that_is_too_long),
        TEST(sink_webhook_goes_by_the_code_of_an_answer_that_does_not_end),
        TEST(sink_webhook_connects_to_no_private_address_unless_allowed),
        TEST(sink_webhook_says_what_is_wrong_with_its_options),
        TEST(sink_webhook_is_down_when_nobody_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
