/* The exec sink: exit status 0 is the acknowledgement; a command that fails, hangs or reads nothing
 * is not one. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/redis.h"

struct scene {
    char directory[64];
    char script[96];
    struct evq_pair options[4];
    struct evq_sink_config config;
    struct evq_sink_context context;
    void *sink;
};

static void scene_open(struct scene *scene, const char *text, const char *timeout_seconds,
                       const atomic_bool *stop)
{
    struct evq_error err;

    fixture_dir_make(scene->directory);
    (void)snprintf(scene->script, sizeof(scene->script), "%s/sink.sh", scene->directory);
    FILE *file = fopen(scene->script, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "#!/bin/sh\n%s\n", text) > 0);
    assert_int_equal(fclose(file), 0);
    scene->options[0] = (struct evq_pair){"command.0", "/bin/sh"};
    scene->options[1] = (struct evq_pair){"command.1", scene->script};
    scene->options[2] = (struct evq_pair){"command.2", scene->directory};
    scene->options[3] = (struct evq_pair){"timeout_seconds", timeout_seconds};
    scene->config = (struct evq_sink_config){"tracker", "exec", scene->options, 4, false};
    scene->context = (struct evq_sink_context){
        .sink = &scene->config, .directory = scene->directory, .stop = stop};
    assert_status_err(evq_sink_exec.open(&scene->context, &scene->sink, &err), EVQ_OK, &err);
}

static void scene_close(struct scene *scene)
{
    evq_sink_exec.close(scene->sink);
    fixture_dir_remove(scene->directory);
}

static void give(struct scene *scene, int count)
{
    struct evq_error err;
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->job = "digits/5/regular/quick";
    result->run = "digits";
    result->task = "t";
    for (int i = 0; i < count; i++) {
        assert_status_err(evq_sink_exec.write(scene->sink, result, &err), EVQ_OK, &err);
    }
    evq_result_free(result);
}

static int lines_of(const struct scene *scene, const char *name)
{
    char path[128];
    int lines = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", scene->directory, name);
    FILE *file = fopen(path, "r");
    for (int byte; file != NULL && (byte = fgetc(file)) != EOF;) {
        lines += byte == '\n';
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return lines;
}

static void sink_exec_gives_one_line_a_result_and_none_twice_when_the_command_succeeds(void **state)
{
    (void)state;
    struct scene scene;
    struct evq_error err;

    scene_open(&scene, "cat >>\"$1/got\"", "30", NULL);
    give(&scene, 3);
    assert_status_err(evq_sink_exec.flush(scene.sink, &err), EVQ_OK, &err);
    assert_status_err(evq_sink_exec.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(lines_of(&scene, "got"), 3);
    give(&scene, 1);
    assert_status_err(evq_sink_exec.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(lines_of(&scene, "got"), 4);
    scene_close(&scene);
}

static void sink_exec_reports_the_exit_status_when_the_command_fails(void **state)
{
    (void)state;
    struct scene scene;
    struct evq_error err;

    scene_open(&scene, "cat >/dev/null; exit 3", "30", NULL);
    give(&scene, 1);
    assert_status(evq_sink_exec.flush(scene.sink, &err), EVQ_E_IO);
    assert_holds(err.message, "ended with status 3");
    scene_close(&scene);
}

/* Whether it took them nobody can say, so they come again. */
static void sink_exec_does_not_take_an_unknown_end_for_success(void **state)
{
    (void)state;
    struct scene scene;
    struct evq_error err;

    scene_open(&scene, "cat >/dev/null; exit 3", "30", NULL);
    give(&scene, 1);
    (void)signal(SIGCHLD, SIG_IGN); // Children are reaped unseen.
    const enum evq_status status = evq_sink_exec.flush(scene.sink, &err);
    (void)signal(SIGCHLD, SIG_DFL);
    assert_int_equal(status, EVQ_E_IO);
    assert_holds(err.message, "is not known");
    scene_close(&scene);
}

static void sink_exec_survives_a_command_that_reads_nothing(void **state)
{
    (void)state;
    struct scene scene;
    struct evq_error err;

    scene_open(&scene, "exit 0", "30", NULL);
    give(&scene, 20000); // More than any socket buffer: a SIGPIPE here would end the test.
    assert_status(evq_sink_exec.flush(scene.sink, &err), EVQ_E_IO);
    assert_holds(err.message, "before it had read everything");
    scene_close(&scene);
}

/* The logger ignores SIGPIPE. A pipeline in the command needs it: `yes | head -1` would not end. */
static void sink_exec_gives_its_command_the_usual_sigpipe(void **state)
{
    (void)state;
    struct scene scene;
    struct evq_error err;

    scene_open(&scene, "cat >/dev/null; kill -s PIPE $$", "30", NULL);
    give(&scene, 1);
    (void)signal(SIGPIPE, SIG_IGN);
    const enum evq_status status = evq_sink_exec.flush(scene.sink, &err);
    (void)signal(SIGPIPE, SIG_DFL);
    assert_int_equal(status, EVQ_E_IO);
    assert_holds(err.message, "ended with signal 13");
    scene_close(&scene);
}

static void sink_exec_kills_a_command_past_its_time(void **state)
{
    (void)state;
    struct scene scene;
    struct evq_error err;

    scene_open(&scene, "cat >/dev/null; while :; do :; done", "0.3", NULL);
    give(&scene, 1);
    assert_status(evq_sink_exec.flush(scene.sink, &err), EVQ_E_TIMEOUT);
    assert_holds(err.message, "was killed");
    scene_close(&scene);
}

/* A supervisor that stops the logger kills it when a command of a long time is waited for: the same
 * lines come again. */
static void sink_exec_heeds_a_stop_while_its_command_runs(void **state)
{
    (void)state;
    static const char *const commands[] = {"cat >/dev/null; exec sleep 60",
                                           "exec sleep 60"}; // Reads nothing.
    struct scene scene;
    struct evq_error err;
    const atomic_bool stop = true;

    for (size_t i = 0; i < 2; i++) {
        scene_open(&scene, commands[i], "20", &stop);
        give(&scene, i == 0 ? 1 : 20000);
        const int64_t begun_ms = fixture_now_ms();
        assert_status(evq_sink_exec.flush(scene.sink, &err), EVQ_E_IO);
        assert_holds(err.message, "stopped while '/bin/sh' ran");
        const int64_t took_ms = fixture_now_ms() - begun_ms;
        assert_true(took_ms >= 3000 && took_ms < 15000); // It may end by itself.
        scene_close(&scene);
    }
    scene_open(&scene, "cat >>\"$1/got\"", "30", &stop);
    give(&scene, 2);
    assert_status_err(evq_sink_exec.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(lines_of(&scene, "got"), 2);
    scene_close(&scene);
}

static void sink_exec_refuses_a_configuration_without_command(void **state)
{
    (void)state;
    struct evq_error err;
    void *sink = NULL;
    struct evq_sink_config config = {"tracker", "exec", NULL, 0, false};
    struct evq_sink_context context = {.sink = &config, .directory = "/tmp"};

    assert_status(evq_sink_exec.open(&context, &sink, &err), EVQ_E_INVALID);
    assert_holds(err.message, "no command");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            sink_exec_gives_one_line_a_result_and_none_twice_when_the_command_succeeds),
        cmocka_unit_test(sink_exec_reports_the_exit_status_when_the_command_fails),
        cmocka_unit_test(sink_exec_does_not_take_an_unknown_end_for_success),
        cmocka_unit_test(sink_exec_survives_a_command_that_reads_nothing),
        cmocka_unit_test(sink_exec_gives_its_command_the_usual_sigpipe),
        cmocka_unit_test(sink_exec_kills_a_command_past_its_time),
        cmocka_unit_test(sink_exec_heeds_a_stop_while_its_command_runs),
        cmocka_unit_test(sink_exec_refuses_a_configuration_without_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
