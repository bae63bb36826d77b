/*
 * The MLflow sink against a small server that answers as MLflow does: what it asks for in which
 * order, how much goes into one call, and what one refused result costs the others. The real server
 * is in tests/peers/test_mlflow.py.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "logger/sinks/mlflow_api.h"
#include "logger/sinks/sink.h"
#include "tests/fixture/receiver.h"
#include "tests/fixture/redis.h"

struct scene {
    char directory[64];
    struct fixture_receiver *server;
    // What the server holds and does.
    const char *tagged;   // The run that is tagged for results; NULL: none.
    const char *made;     // The one that was created; NULL: none.
    bool experiment_away; // It is not there yet.
    const char *poison;   // Calls that hold this text are refused.
    const char *models;   // What a search for logged models finds; NULL: it has no such call.
    const char *outputs;  // The ids of the run's models, as JSON objects.
    struct evq_pair options[3];
    struct evq_config configuration;
    struct evq_sink_config config;
    struct evq_sink_context context;
    void *sink;
};

static void answer_search(const struct scene *scene, const char *body,
                          struct fixture_receiver_answer *ret)
{
    const char *run = strstr(body, "evalq.results") != NULL ? scene->tagged : scene->made;

    (void)snprintf(ret->body, sizeof ret->body,
                   run != NULL ? "{\"runs\":[{\"info\":{\"run_id\":\"%s\"}}]}" : "{}%s",
                   run != NULL ? run : "");
}

/* Answers the calls for logged models. The one that it makes is m1. */
static void answer_models(const struct scene *scene, const char *head,
                          struct fixture_receiver_answer *ret)
{
    if (strstr(head, "runs/get?") != NULL) {
        (void)snprintf(ret->body, sizeof ret->body,
                       "{\"run\":{\"info\":{\"experiment_id\":\"9\"},\"outputs\":"
                       "{\"model_outputs\":[%s]}}}",
                       scene->outputs != NULL ? scene->outputs : "");
    } else if (strstr(head, "logged-models/search") != NULL && scene->models == NULL) {
        ret->status = "404 Not Found";
    } else if (strstr(head, "logged-models/search") != NULL) {
        (void)snprintf(ret->body, sizeof ret->body, "{\"models\":[%s]}", scene->models);
    } else if (strstr(head, "logged-models ") != NULL) {
        (void)snprintf(ret->body, sizeof ret->body, "{\"model\":{\"info\":{\"model_id\":\"m1\"}}}");
    }
}

static void answer(void *context, size_t number, const struct fixture_receiver_request *request,
                   struct fixture_receiver_answer *ret)
{
    struct scene *scene = context;
    const char *head = request->head;

    (void)number;
    (void)snprintf(ret->body, sizeof ret->body, "{}");
    if (strstr(head, "experiments/get-by-name") != NULL && scene->experiment_away) {
        ret->status = "404 Not Found";
        (void)snprintf(ret->body, sizeof ret->body, "{\"error_code\":\"RESOURCE_DOES_NOT_EXIST\"}");
    } else if (strstr(head, "experiments/get-by-name") != NULL) {
        (void)snprintf(ret->body, sizeof ret->body,
                       "{\"experiment\":{\"experiment_id\":\"7\",\"lifecycle_stage\":\"active\"}}");
    } else if (strstr(head, "experiments/create") != NULL) {
        (void)snprintf(ret->body, sizeof ret->body, "{\"experiment_id\":\"7\"}");
    } else if (strstr(head, "runs/search") != NULL) {
        answer_search(scene, request->body, ret);
    } else if (strstr(head, "runs/create") != NULL) {
        scene->made = "new";
        (void)snprintf(ret->body, sizeof ret->body, "{\"run\":{\"info\":{\"run_id\":\"new\"}}}");
    } else if (strstr(head, "runs/log-batch") != NULL && scene->poison != NULL &&
               strstr(request->body, scene->poison) != NULL) {
        ret->status = "400 Bad Request";
        (void)snprintf(ret->body, sizeof ret->body,
                       "{\"error_code\":\"INVALID_PARAMETER_VALUE\",\"message\":\"no such key\"}");
    } else {
        answer_models(scene, head, ret);
    }
}

static int setup(void **state)
{
    static const char *const variables[] = {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN",
                                            "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
                                            "MLFLOW_EXPERIMENT_NAME"};
    struct scene *scene = calloc(1, sizeof *scene);

    assert_non_null(scene);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        (void)unsetenv(variables[i]);
    }
    fixture_dir_make(scene->directory);
    scene->server = fixture_receiver_start(answer, scene);
    scene->configuration.redis.queue = "main";
    scene->options[0] = (struct evq_pair){"uri", scene->server->url};
    scene->options[1] = (struct evq_pair){"experiment", "a b/c"};
    scene->config = (struct evq_sink_config){"mlflow", "mlflow", scene->options, 2, false};
    scene->context = (struct evq_sink_context){
        .config = &scene->configuration, .sink = &scene->config, .directory = scene->directory};
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    evq_sink_mlflow.close(scene->sink);
    fixture_receiver_stop(scene->server);
    fixture_dir_remove(scene->directory);
    free(scene);
    return 0;
}

static void scene_open(struct scene *scene)
{
    struct evq_error err;

    assert_status_err(evq_sink_mlflow.open(&scene->context, &scene->sink, &err), EVQ_OK, &err);
}

static void give_metrics(struct scene *scene, const char *run, int64_t step,
                         struct evq_metric *metrics, size_t count, const struct evq_pair *tracker)
{
    char job[64];
    struct evq_error err;
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    (void)snprintf(job, sizeof job, "%s/%lld/regular/quick", run, (long long)step);
    result->job = job;
    result->run = run;
    result->task = "t";
    result->step = step;
    result->finished_ms = 1700000000123;
    result->metrics = metrics;
    result->metric_count = count;
    result->trackers = tracker;
    result->tracker_count = tracker != NULL ? 1 : 0;
    assert_status_err(evq_sink_mlflow.write(scene->sink, result, &err), EVQ_OK, &err);
    evq_result_free(result);
}

static void give(struct scene *scene, const char *run, int64_t step, const char *name, size_t count,
                 const struct evq_pair *tracker)
{
    struct evq_metric metrics[EVQ_RESULT_METRICS_MAX];
    char names[EVQ_RESULT_METRICS_MAX][64];

    for (size_t i = 0; i < count; i++) {
        (void)snprintf(names[i], sizeof names[i], "%s%zu", name, i);
        metrics[i] = (struct evq_metric){.name = names[i], .value = i == 1 ? NAN : 0.1};
    }
    give_metrics(scene, run, step, metrics, count, tracker);
}

static void flush(struct scene *scene)
{
    struct evq_error err;

    assert_status_err(evq_sink_mlflow.flush(scene->sink, &err), EVQ_OK, &err);
}

/* The calls as "get-by-name search create ..."; forgets none. */
static const char *calls(const struct scene *scene)
{
    static char text[8192];
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < atomic_load(&scene->server->count); i++) {
        const char *path = strstr(scene->server->requests[i].head, "/api/2.0/mlflow/");
        assert_non_null(path);
        path += strlen("/api/2.0/mlflow/");
        path = strncmp(path, "logged-models", 13) == 0 ? path : strchr(path, '/') + 1;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", i > 0 ? " " : "",
                                 (int)strcspn(path, " ?"), path);
    }
    return text;
}

static const struct fixture_receiver_request *last(const struct scene *scene)
{
    return &scene->server->requests[atomic_load(&scene->server->count) - 1];
}

static void sink_mlflow_makes_experiment_and_run_once_and_logs_as_published(void **state)
{
    struct scene *scene = *state;

    scene->experiment_away = true;
    assert_int_equal(setenv("MLFLOW_TRACKING_TOKEN", "t0ken", 1), 0);
    scene_open(scene);
    give(scene, "digits", 400, "acc,", 2, NULL);
    flush(scene);
    assert_string_equal(calls(scene),
                        "get-by-name create search search create set-tag update log-batch");
    assert_non_null(strstr(scene->server->requests[0].head, "experiment_name=a%20b%2Fc"));
    assert_string_equal(fixture_receiver_header(last(scene), "Authorization"), "Bearer t0ken");
    assert_string_equal(
        last(scene)->body,
        "{\"run_id\":\"new\",\"metrics\":[{\"key\":\"eval/t/acc_0\",\"value\":0.10000000000000001,"
        "\"timestamp\":1700000000123,\"step\":400},{\"key\":\"eval/t/acc_1\",\"value\":\"NaN\","
        "\"timestamp\":1700000000123,\"step\":400}]}");
    give(scene, "digits", 800, "acc", 1, NULL);
    flush(scene);
    assert_string_equal(
        calls(scene), "get-by-name create search search create set-tag update log-batch log-batch");
    assert_int_equal(unsetenv("MLFLOW_TRACKING_TOKEN"), 0);
}

/* By underscores alone two metrics would be one. */
static void sink_mlflow_keeps_the_letters_of_a_name(void **state)
{
    static const struct {
        const char *name;
        const char *key;
    } cases[] = {
        {"\u51c6\u786e\u7387", "\u51c6\u786e\u73870"}, // Accuracy,
        {"\u53ec\u56de\u7387", "\u53ec\u56de\u73870"}, // recall.
        {"pr\u00e9cision,none", "pr\u00e9cision_none0"},
        {"\u062f\u0642\u0629", "\u062f\u0642\u06290"}, // Accuracy again.
        {"\u0e04\u0e27\u0e32\u0e21", "\u0e04\u0e27\u0e32\u0e210"},
        {"\u00b11 \u2192 \u00d7\u00f7", "_1 _ __0-a04ca4e5"}, // What is no letter: with a hash.
        {"\u0e2b\u0e19\u0e36\u0e48\u0e07", "\u0e2b\u0e19__\u0e070-98667747"},
        {"\u0e2b\u0e19\u0e37\u0e48\u0e07", "\u0e2b\u0e19__\u0e070-2d5e0efc"},
    };
    char wanted[128];
    struct scene *scene = *state;

    scene->tagged = "a";
    scene_open(scene);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        give(scene, "digits", 400, cases[i].name, 1, NULL);
        flush(scene);
        (void)snprintf(wanted, sizeof wanted, "\"key\":\"eval/t/%s\"", cases[i].key);
        if (strstr(last(scene)->body, wanted) == NULL) {
            fail_msg("%s is not in %s", wanted, last(scene)->body);
        }
    }
}

static void sink_mlflow_tells_names_apart_that_differ_in_signs_alone(void **state)
{
    static const char *const keys[] = {"iou_0.5-112d312a", "iou_0.5-1d4e0968", "acc_none",
                                       "acc_none-b779113e", "at_5"};
    struct evq_metric metrics[] = {
        {.name = "iou<0.5"},  {.name = "iou>0.5"}, {.name = "acc_none"},
        {.name = "acc,none"}, {.name = "at@5"},
    };
    char wanted[128];
    struct scene *scene = *state;

    scene->tagged = "a";
    scene_open(scene);
    give_metrics(scene, "digits", 400, metrics, sizeof metrics / sizeof metrics[0], NULL);
    flush(scene);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        (void)snprintf(wanted, sizeof wanted, "\"key\":\"eval/t/%s\"", keys[i]);
        if (strstr(last(scene)->body, wanted) == NULL) {
            fail_msg("%s is not in %s", wanted, last(scene)->body);
        }
    }
}

static void sink_mlflow_tells_names_apart_that_are_too_long(void **state)
{
    char key[400];
    struct evq_buffer out[2];

    (void)state;
    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    for (size_t i = 0; i < 2; i++) {
        evq_buffer_init(&out[i], 0);
        key[sizeof key - 2] = i == 0 ? 'a' : 'b';
        evq_mlflow_metric(&out[i], key, true, 0.5, 1, 1, "");
        const char *text = evq_buffer_string(&out[i]);
        assert_non_null(text);
        assert_int_equal(strcspn(text + strlen("{\"key\":\""), "\""), EVQ_MLFLOW_KEY_BYTES_MAX);
    }
    assert_string_not_equal(evq_buffer_string(&out[0]), evq_buffer_string(&out[1]));
    evq_buffer_free(&out[0]);
    evq_buffer_free(&out[1]);
}

static void sink_mlflow_goes_on_where_a_killed_logger_stopped(void **state)
{
    struct scene *scene = *state;

    scene->made = "left"; // Created, and then the process died before it was chosen.
    scene_open(scene);
    give(scene, "digits", 400, "acc", 1, NULL);
    flush(scene);
    assert_string_equal(calls(scene), "get-by-name search search set-tag update log-batch");
    assert_non_null(strstr(last(scene)->body, "\"run_id\":\"left\""));
    scene->tagged = "chosen"; // The one for results goes before any other.
    evq_sink_mlflow.close(scene->sink);
    scene_open(scene);
    give(scene, "digits", 400, "acc", 1, NULL);
    flush(scene);
    assert_non_null(strstr(last(scene)->body, "\"run_id\":\"chosen\""));
}

static void sink_mlflow_stays_within_the_limits_of_a_call(void **state)
{
    struct scene *scene = *state;
    size_t metrics = 0;

    scene->tagged = "a";
    scene_open(scene);
    for (int64_t step = 0; step < 20; step++) {
        give(scene, step % 2 == 0 ? "even" : "odd", step, "metric", 200, NULL);
    }
    flush(scene);
    const size_t count = atomic_load(&scene->server->count);
    for (size_t i = 0; i < count; i++) {
        if (strstr(scene->server->requests[i].head, "log-batch") == NULL) {
            continue;
        }
        json_t *body = json_loads(scene->server->requests[i].body, 0, NULL);
        const size_t in_call = json_array_size(json_object_get(body, "metrics"));
        assert_true(in_call > 0 && in_call <= EVQ_MLFLOW_METRICS_MAX);
        assert_true(scene->server->requests[i].body_bytes < 1000000);
        metrics += in_call;
        json_decref(body);
    }
    assert_int_equal(metrics, 20 * 200);
}

static void sink_mlflow_lets_one_refused_result_cost_no_other(void **state)
{
    struct scene *scene = *state;
    size_t good = 0;

    scene->tagged = "a";
    scene->poison = "\"step\":3}";
    scene_open(scene);
    for (int64_t step = 0; step < 6; step++) {
        give(scene, "digits", step, "acc", 1, NULL);
    }
    flush(scene); // Together refused, then each by itself: the run is looked for again each time.
    for (size_t i = 0; i < atomic_load(&scene->server->count); i++) {
        const struct fixture_receiver_request *request = &scene->server->requests[i];
        good += strstr(request->head, "log-batch") != NULL &&
                strstr(request->body, "\"step\":3}") == NULL;
    }
    assert_int_equal(good, 5);
}

static void sink_mlflow_logs_into_the_run_that_the_training_gave(void **state)
{
    struct scene *scene = *state;
    const struct evq_pair tracker = {"mlflow_run_id", "0123456789abcdef"};

    scene_open(scene);
    give(scene, "digits", 1, "acc", 1, &tracker);
    flush(scene);
    assert_string_equal(calls(scene), "log-batch");
    assert_non_null(strstr(last(scene)->body, "\"run_id\":\"0123456789abcdef\""));
    evq_sink_mlflow.close(scene->sink);
    scene->options[2] = (struct evq_pair){"own_run", "true"};
    scene->config.option_count = 3;
    scene_open(scene);
    give(scene, "digits", 1, "acc", 1, &tracker);
    flush(scene);
    assert_non_null(strstr(last(scene)->body, "\"run_id\":\"new\""));
}

static void models_open(struct scene *scene)
{
    scene->tagged = "a";
    scene->options[2] = (struct evq_pair){"logged_models", "true"};
    scene->config.option_count = 3;
    scene_open(scene);
}

static void sink_mlflow_makes_one_model_of_each_checkpoint(void **state)
{
    struct scene *scene = *state;

    scene->models = "";
    models_open(scene);
    give(scene, "dig.its", 400, "acc", 2, NULL);
    give(scene, "dig.its", 400, "loss", 1, NULL); // Another task of the same checkpoint.
    flush(scene);
    assert_string_equal(calls(scene), "get-by-name search get logged-models/search logged-models "
                                      "outputs logged-models/m1 log-batch");
    const struct fixture_receiver_request *requests = scene->server->requests;
    assert_non_null(strstr(requests[2].head, "run_id=a"));
    assert_non_null(strstr(requests[3].body, "\"experiment_ids\":[\"9\"]"));
    assert_non_null(strstr(requests[3].body, "'main/dig.its/400/regular'"));
    assert_non_null(strstr(requests[4].body, "\"experiment_id\":\"9\",\"source_run_id\":\"a\","
                                             "\"name\":\"dig_its-400\""));
    assert_non_null(strstr(requests[4].body, "\"value\":\"main/dig.its/400/regular\""));
    assert_string_equal(requests[5].body,
                        "{\"run_id\":\"a\",\"models\":[{\"model_id\":\"m1\",\"step\":400}]}");
    assert_int_equal(strncmp(requests[6].head, "PATCH ", 6), 0);
    // A model has no NaN: the server would store it as 0.
    assert_non_null(strstr(last(scene)->body,
                           "acc1\",\"value\":\"NaN\",\"timestamp\":1700000000123,"
                           "\"step\":400}"));
    assert_non_null(strstr(last(scene)->body, "\"step\":400,\"model_id\":\"m1\"}]}"));
}

static void sink_mlflow_finds_the_model_that_a_killed_logger_made(void **state)
{
    struct scene *scene = *state;

    scene->models = "{\"info\":{\"model_id\":\"m7\",\"status\":\"LOGGED_MODEL_PENDING\"}}";
    models_open(scene);
    give(scene, "digits", 400, "acc", 1, NULL);
    flush(scene); // It was made, and not yet linked.
    assert_string_equal(calls(scene), "get-by-name search get logged-models/search outputs "
                                      "logged-models/m7 log-batch");
    evq_sink_mlflow.close(scene->sink);
    scene->outputs = "{\"model_id\":\"m6\"},{\"model_id\":\"m7\"}";
    scene->models = "{\"info\":{\"model_id\":\"m7\",\"status\":\"LOGGED_MODEL_READY\"}}";
    scene_open(scene);
    give(scene, "digits", 400, "acc", 1, NULL);
    flush(scene); // It is complete.
    assert_string_equal(calls(scene), "get-by-name search get logged-models/search outputs "
                                      "logged-models/m7 log-batch get-by-name search get "
                                      "logged-models/search log-batch");
    assert_non_null(strstr(last(scene)->body, "\"model_id\":\"m7\""));
}

static void sink_mlflow_says_that_a_server_has_no_logged_models(void **state)
{
    struct scene *scene = *state;
    const struct evq_metric metric = {.name = "acc", .value = 0.5};
    struct evq_error err;
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->job = "digits/1/regular/quick";
    result->run = "digits";
    result->step = 1;
    result->metrics = &metric;
    result->metric_count = 1;
    models_open(scene);
    assert_status(evq_sink_mlflow.write(scene->sink, result, &err), EVQ_E_RETRY);
    assert_holds(err.message, "logged_models needs MLflow 3");
    evq_result_free(result);
}

static void sink_mlflow_says_what_is_wrong_with_its_options(void **state)
{
    struct scene *scene = *state;
    struct evq_error err;

    scene->options[0].value = "databricks";
    assert_status(evq_sink_mlflow.open(&scene->context, &scene->sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "expected uri: http://HOST:PORT or $MLFLOW_TRACKING_URI");
    scene->options[0].value = "http://me:pass@example.org";
    assert_status(evq_sink_mlflow.open(&scene->context, &scene->sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "password_file");
    assert_null(strstr(err.message, "pass@"));
    assert_null(scene->sink);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sink_mlflow_makes_experiment_and_run_once_and_logs_as_published),
        TEST(sink_mlflow_keeps_the_letters_of_a_name),
        TEST(sink_mlflow_tells_names_apart_that_differ_in_signs_alone),
        TEST(sink_mlflow_tells_names_apart_that_are_too_long),
        TEST(sink_mlflow_goes_on_where_a_killed_logger_stopped),
        TEST(sink_mlflow_stays_within_the_limits_of_a_call),
        TEST(sink_mlflow_lets_one_refused_result_cost_no_other),
        TEST(sink_mlflow_logs_into_the_run_that_the_training_gave),
        TEST(sink_mlflow_makes_one_model_of_each_checkpoint),
        TEST(sink_mlflow_finds_the_model_that_a_killed_logger_made),
        TEST(sink_mlflow_says_that_a_server_has_no_logged_models),
        TEST(sink_mlflow_says_what_is_wrong_with_its_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
