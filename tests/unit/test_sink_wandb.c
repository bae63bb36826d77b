/*
 * The W&B sink, the others that use a tracker's SDK, and the lines that they and their helpers
 * speak. The helper here is a script. The real ones with the real SDKs are in
 * tests/peers/test_wandb.py and test_trackers.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/redis.h"

struct scene {
    char directory[64];
    char script[96];
    struct evq_pair options[6];
    struct evq_config configuration;
    struct evq_sink_config config;
    struct evq_sink_context context;
    void *sink;
};

/* text: a shell script, which has the directory as $1. */
static void scene_open(struct scene *scene, const char *text, const char *timeout_seconds)
{
    struct evq_error err;

    fixture_dir_make(scene->directory);
    (void)snprintf(scene->script, sizeof scene->script, "%s/helper.sh", scene->directory);
    FILE *file = fopen(scene->script, "w");
    assert_non_null(file);
    assert_true(fprintf(file,
                        "read -r settings\necho \"$settings\" >\"$1/settings\"\necho started "
                        ">>\"$1/starts\"\n%s\n",
                        text) > 0);
    assert_int_equal(fclose(file), 0);
    scene->options[0] = (struct evq_pair){"command.0", "/bin/sh"};
    scene->options[1] = (struct evq_pair){"command.1", scene->script};
    scene->options[2] = (struct evq_pair){"command.2", scene->directory};
    scene->options[3] = (struct evq_pair){"timeout_seconds", timeout_seconds};
    scene->options[4] = (struct evq_pair){"project", "an \"own\" one"};
    scene->options[5] = (struct evq_pair){"mode", "offline"};
    scene->configuration.redis.queue = "main";
    scene->config = (struct evq_sink_config){"wb", "wandb", scene->options, 6, false};
    scene->context = (struct evq_sink_context){
        .config = &scene->configuration, .sink = &scene->config, .directory = scene->directory};
    assert_status_err(evq_sink_wandb.open(&scene->context, &scene->sink, &err), EVQ_OK, &err);
}

static void scene_close(struct scene *scene)
{
    evq_sink_wandb.close(scene->sink);
    fixture_dir_remove(scene->directory);
}

static void give_of(struct scene *scene, const char *run, int64_t step, size_t metric_count)
{
    const struct evq_metric metric = {.name = "accuracy", .value = 0.5, .higher_is_better = 1};
    struct evq_error err;
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->job = "digits/5/ema/quick";
    result->run = run;
    result->task = "t";
    result->variant = "ema";
    result->step = step;
    result->metrics = &metric;
    result->metric_count = metric_count;
    assert_status_err(evq_sink_wandb.write(scene->sink, result, &err), EVQ_OK, &err);
    evq_result_free(result);
}

static void give(struct scene *scene, int64_t step, size_t metric_count)
{
    give_of(scene, "digits", step, metric_count);
}

/* The lines of a file; the last one goes to text (of 4096), unless that is NULL. */
static int lines_of(const struct scene *scene, const char *name, char *text)
{
    char path[128];
    char line[4096];
    int lines = 0;

    (void)snprintf(path, sizeof path, "%s/%s", scene->directory, name);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        lines++;
        if (text != NULL) {
            (void)snprintf(text, 4096, "%s", line);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return lines;
}

// Keeps results, answers flushes.
#define GOOD                                                                                       \
    "while read -r line; do case $line in '{\"flush\":'*) n=${line#*:}; echo "                     \
    "\"{\\\"flushed\\\":${n%\\}}}\";;"                                                             \
    " *) echo \"$line\" >>\"$1/got\";; esac; done"

static void sink_wandb_gives_settings_once_then_results_and_waits_for_its_answer(void **state)
{
    struct scene scene = {0};
    struct evq_error err;
    char text[4096];

    (void)state;
    scene_open(&scene, GOOD, "30");
    assert_status_err(evq_sink_wandb.flush(scene.sink, &err), EVQ_OK, &err); // Nothing: no helper.
    assert_int_equal(lines_of(&scene, "starts", NULL), 0);
    give(&scene, 100, 1);
    give(&scene, 200, 1);
    give(&scene, 300, 0); // An end: nothing to draw.
    assert_status_err(evq_sink_wandb.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(lines_of(&scene, "got", text), 2);
    json_t *line = json_loads(text, 0, NULL);
    assert_non_null(line);
    const json_t *keys = json_object_get(line, "keys");
    assert_string_equal(json_string_value(json_object_get(keys, "accuracy")),
                        "eval_ema/t/accuracy");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(line, "result"), "step")),
                     200);
    json_decref(line);
    give(&scene, 400, 1);
    assert_status_err(evq_sink_wandb.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(lines_of(&scene, "got", NULL), 3);
    assert_int_equal(lines_of(&scene, "starts", NULL), 1);
    assert_int_equal(lines_of(&scene, "settings", text), 1);
    line = json_loads(text, 0, NULL);
    const json_t *settings = json_object_get(line, "open");
    assert_string_equal(json_string_value(json_object_get(settings, "queue")), "main");
    assert_string_equal(json_string_value(json_object_get(settings, "project")), "an \"own\" one");
    assert_string_equal(json_string_value(json_object_get(settings, "mode")), "offline");
    assert_non_null(strstr(json_string_value(json_object_get(settings, "directory")), "/wb"));
    json_decref(line);
    scene_close(&scene);
}

static void sink_sdk_gives_each_tracker_the_options_of_its_own(void **state)
{
    static const struct {
        const struct evq_sink_ops *ops;
        const char *kind;
        struct evq_pair own;
        const char *want; // How the options come to the helper.
    } cases[] = {
        {&evq_sink_trackio,
         "trackio",
         {"server_url", "http://h"},
         "{\"open\":{\"queue\":\"main\",\"project\":\"p\",\"server_url\":\"http://h\",\"directory"},
        {&evq_sink_swanlab,
         "swanlab",
         {"mode", "offline"},
         "{\"open\":{\"queue\":\"main\",\"project\":\"p\",\"mode\":\"offline\",\"directory"},
        {&evq_sink_comet,
         "comet",
         {"workspace", "w"},
         "{\"open\":{\"queue\":\"main\",\"project\":\"p\",\"workspace\":\"w\",\"directory"},
    };
    struct evq_error err;
    char text[4096];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scene scene = {0};
        scene_open(&scene, GOOD, "30");
        evq_sink_wandb.close(scene.sink);
        scene.options[4].value = "p";
        scene.options[5] = cases[i].own;
        scene.config.kind = cases[i].kind;
        assert_status_err(cases[i].ops->open(&scene.context, &scene.sink, &err), EVQ_OK, &err);
        give(&scene, 100, 1);
        assert_status_err(cases[i].ops->flush(scene.sink, &err), EVQ_OK, &err);
        assert_int_equal(lines_of(&scene, "settings", text), 1);
        assert_int_equal(strncmp(text, cases[i].want, strlen(cases[i].want)), 0);
        scene.config.option_count = 0; // Without command: evalq-KIND, wherever PATH has it.
        cases[i].ops->close(scene.sink);
        assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
        assert_status_err(cases[i].ops->open(&scene.context, &scene.sink, &err), EVQ_OK, &err);
        give(&scene, 100, 1);
        assert_status(cases[i].ops->flush(scene.sink, &err), EVQ_E_IO);
        (void)snprintf(text, sizeof text, "start 'evalq-%s'", cases[i].kind);
        assert_holds(err.message, text);
        assert_int_equal(setenv("PATH", "/usr/bin:/bin", 1), 0);
        scene_close(&scene);
    }
}

/* A batch may be of hundreds of runs, which the SDK takes seconds each to begin: the time limit is
 * for a few of them, or none of it would ever be done. */
static void sink_wandb_waits_for_an_answer_each_few_runs(void **state)
{
    enum { TURNS = 8, COUNT = 2 * TURNS + 4 };
    struct scene scene = {0};
    struct evq_error err;

    (void)state;
    scene_open(&scene, GOOD, "30");
    for (int64_t step = 0; step < COUNT; step++) {
        give_of(&scene, step % 2 == 0 ? "a" : "b", step, 1);
    }
    assert_int_equal(lines_of(&scene, "got", NULL), 2 * TURNS);
    assert_status_err(evq_sink_wandb.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(lines_of(&scene, "got", NULL), COUNT);
    for (int64_t step = 0; step < COUNT; step++) {
        give(&scene, step, 1);
    }
    assert_int_equal(lines_of(&scene, "got", NULL), COUNT); // Of one run all go at once.
    scene_close(&scene);
}

static void sink_wandb_starts_another_helper_when_one_fails(void **state)
{
    static const struct {
        const char *script;
        enum evq_status want;
        const char *words;
    } cases[] = {
        {"read -r line; exit 3", EVQ_E_IO, "its helper ended"},
        {"exec <&-; exit 0", EVQ_E_IO, "its helper ended"},
        {"read -r line; echo '{\"error\": \"no such project\"}'; cat >/dev/null", EVQ_E_RETRY,
         "no such project"},
        {"read -r line; echo hello; cat >/dev/null", EVQ_E_IO, "says 'hello'"},
        {"read -r line; printf 'a\\000b\\n'; cat >/dev/null", EVQ_E_IO, "writes no text"},
        {"read -r line; echo '{\"flushed\": 77}'; exit 0", EVQ_E_IO, "its helper ended"},
    };
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scene scene = {0};
        scene_open(&scene, cases[i].script, "30");
        give(&scene, 100, 1);
        assert_status(evq_sink_wandb.flush(scene.sink, &err), cases[i].want);
        assert_holds(err.message, cases[i].words);
        give(&scene, 100, 1);
        assert_status(evq_sink_wandb.flush(scene.sink, &err), cases[i].want);
        assert_int_equal(lines_of(&scene, "starts", NULL), 2);
        scene_close(&scene);
    }
}

static void sink_wandb_kills_a_helper_that_does_not_answer(void **state)
{
    struct scene scene = {0};
    struct evq_error err;

    (void)state;
    scene_open(&scene, "while :; do :; done", "0.3");
    give(&scene, 100, 1);
    assert_status(evq_sink_wandb.flush(scene.sink, &err), EVQ_E_TIMEOUT);
    assert_holds(err.message, "does not answer in time");
    scene_close(&scene);
}

static void sink_wandb_goes_on_past_a_result_that_the_helper_refuses(void **state)
{
    struct scene scene = {0};
    struct evq_error err;

    (void)state;
    scene_open(&scene, "echo '{\"refused\": \"digits/5/ema/quick#t\", \"reason\": \"no\"}'\n" GOOD,
               "30");
    give(&scene, 100, 1);
    assert_status_err(evq_sink_wandb.flush(scene.sink, &err), EVQ_OK, &err);
    scene_close(&scene);
}

static void sink_wandb_says_what_is_wrong(void **state)
{
    struct scene scene = {0};
    struct evq_error err;
    void *sink = NULL;

    (void)state;
    scene_open(&scene, GOOD, "30");
    scene.options[5].value = "disabled";
    assert_status(evq_sink_wandb.open(&scene.context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "expected online or offline");
    scene.options[5].value = "offline";
    scene.options[0].value = "/nonexistent/evalq-wandb";
    assert_status_err(evq_sink_wandb.open(&scene.context, &sink, &err), EVQ_OK, &err);
    evq_sink_wandb.close(scene.sink);
    scene.sink = sink;
    give(&scene, 100, 1);
    assert_status(evq_sink_wandb.flush(scene.sink, &err), EVQ_E_IO); // It may be installed yet.
    assert_holds(err.message, "start '/nonexistent/evalq-wandb'");
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sink_wandb_gives_settings_once_then_results_and_waits_for_its_answer),
        cmocka_unit_test(sink_sdk_gives_each_tracker_the_options_of_its_own),
        cmocka_unit_test(sink_wandb_waits_for_an_answer_each_few_runs),
        cmocka_unit_test(sink_wandb_starts_another_helper_when_one_fails),
        cmocka_unit_test(sink_wandb_kills_a_helper_that_does_not_answer),
        cmocka_unit_test(sink_wandb_goes_on_past_a_result_that_the_helper_refuses),
        cmocka_unit_test(sink_wandb_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
