/*
 * Tests the TensorBoard sink with the queue, which it asks for open steps.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logger/sinks/sink.h"
#include "shared/base/clock.h"
#include "tests/fixture/queue.h"

/* Returns how many read-only functions were called. */
static int64_t asked(struct fixture *fx)
{
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "commandstats", NULL);
    const char *calls = strstr(reply->text, "cmdstat_fcall_ro:calls=");
    const int64_t count = calls != NULL ? strtoll(strchr(calls, '=') + 1, NULL, 10) : 0;

    evq_reply_free(reply);
    return count;
}

static enum evq_status give_at(void *sink, const char *run, int64_t step, int64_t finished_ms)
{
    const struct evq_metric metric = {"loss", 0.5, -1, NAN};
    struct evq_error err;
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->run = run;
    result->step = step;
    result->variant = "regular";
    result->suite = "quick";
    result->task = "t";
    result->finished_ms = finished_ms;
    result->metrics = &metric;
    result->metric_count = 1;
    const enum evq_status status = evq_sink_tensorboard.write(sink, result, &err);
    evq_result_free(result);
    return status;
}

static enum evq_status give(void *sink, const char *run, int64_t step)
{
    return give_at(sink, run, step, evq_clock_unix_ms());
}

static void sink_tensorboard_asks_once_a_while_when_flows_take_turns(void **state)
{
    enum { FLOWS = 8, ROUNDS = 50 };
    struct fixture *fx = *state;
    const struct evq_sink_config config = {"tensorboard", "tensorboard", NULL, 0, false};
    struct evq_sink_context context = {.sink = &config, .queue = fx->queue};
    struct evq_error err;
    void *sink = NULL;
    char directory[64];
    char run[FLOWS][16];
    char id[64];

    fixture_dir_make(directory);
    context.directory = directory;
    for (int i = 0; i < FLOWS; i++) {
        (void)snprintf(run[i], sizeof(run[i]), "run-%d", i);
        (void)snprintf(id, sizeof(id), "%s/1/regular/quick", run[i]);
        (void)fixture_submit(fx, id);
    }
    assert_status_err(evq_sink_tensorboard.open(&context, &sink, &err), EVQ_OK, &err);
    const int64_t before = asked(fx);
    const int64_t begun_ms = evq_clock_mono_ms();
    for (int step = 2; step < 2 + ROUNDS; step++) {
        for (int i = 0; i < FLOWS; i++) {
            assert_status(give(sink, run[i], step), EVQ_E_INCOMPLETE);
        }
    }
    // Each flow is asked for once every 100 ms, even on a slow machine.
    const int64_t most = FLOWS * ((evq_clock_mono_ms() - begun_ms) / 100 + 1);
    const int64_t calls = asked(fx) - before;
    assert_true(calls >= FLOWS);
    if (calls > most) {
        fail_msg("%lld calls, at most %lld expected", (long long)calls, (long long)most);
    }
    evq_sink_tensorboard.close(sink);
    fixture_dir_remove(directory);
}

/* By this machine's clock, the result is from a time further in the future than any wait. */
static void sink_tensorboard_holds_nothing_back_by_a_clock_that_is_wrong(void **state)
{
    enum { HOLD_MS = 60000 };
    struct fixture *fx = *state;
    const struct evq_sink_config config = {"tensorboard", "tensorboard", NULL, 0, false};
    struct evq_sink_context context = {.sink = &config, .queue = fx->queue};
    struct evq_error err;
    void *sink = NULL;
    char directory[64];

    fixture_dir_make(directory);
    context.directory = directory;
    (void)fixture_submit(fx, "run/1/regular/quick");
    assert_status_err(evq_sink_tensorboard.open(&context, &sink, &err), EVQ_OK, &err);
    assert_status(give_at(sink, "run", 2, evq_clock_unix_ms() + HOLD_MS / 2), EVQ_E_INCOMPLETE);
    assert_status(give_at(sink, "run", 3, evq_clock_unix_ms() + 10 * HOLD_MS), EVQ_OK);
    evq_sink_tensorboard.close(sink);
    fixture_dir_remove(directory);
}

/* Opens the sink in a new directory. */
static void *opened(struct evq_sink_context *context, char directory[64])
{
    struct evq_error err;
    void *sink = NULL;

    fixture_dir_make(directory);
    context->directory = directory;
    assert_status_err(evq_sink_tensorboard.open(context, &sink, &err), EVQ_OK, &err);
    return sink;
}

static void sink_tensorboard_begins_anew_when_its_directory_was_removed(void **state)
{
    struct fixture *fx = *state;
    const struct evq_sink_config config = {"tensorboard", "tensorboard", NULL, 0, false};
    struct evq_sink_context context = {.sink = &config, .queue = fx->queue};
    struct evq_error err;
    char directory[64];
    void *sink = opened(&context, directory);

    assert_status(give(sink, "run", 1), EVQ_OK);
    assert_status_err(evq_sink_tensorboard.flush(sink, &err), EVQ_OK, &err);
    fixture_dir_remove(directory);
    assert_status(give(sink, "run", 2), EVQ_OK);
    assert_status(evq_sink_tensorboard.flush(sink, &err), EVQ_E_GONE);
    // The logger repeats entries that were not acknowledged.
    assert_status(give(sink, "run", 2), EVQ_OK);
    assert_status_err(evq_sink_tensorboard.flush(sink, &err), EVQ_OK, &err);
    evq_sink_tensorboard.close(sink);
    fixture_dir_remove(directory);
}

/*
 * A late result waits a moment after a rewrite, so that following late results share the next
 * rewrite.
 */
static void sink_tensorboard_defers_a_late_result_after_a_rewrite(void **state)
{
    struct fixture *fx = *state;
    const struct evq_sink_config config = {"tensorboard", "tensorboard", NULL, 0, false};
    struct evq_sink_context context = {.sink = &config, .queue = fx->queue};
    struct evq_error err;
    char directory[64];
    void *sink = opened(&context, directory);

    assert_status(give(sink, "run", 9), EVQ_OK);
    assert_status(give(sink, "run", 8), EVQ_OK);
    assert_status_err(evq_sink_tensorboard.flush(sink, &err), EVQ_OK, &err);
    const int64_t rewritten_ms = evq_clock_mono_ms();
    const enum evq_status status = give(sink, "run", 7);
    if (evq_clock_mono_ms() - rewritten_ms < 400) { // Otherwise this machine had stopped.
        assert_status(status, EVQ_E_INCOMPLETE);
    }
    assert_status(give(sink, "run", 10), EVQ_OK);
    context.must_take = true;
    assert_status(give(sink, "run", 7), EVQ_OK);
    assert_status_err(evq_sink_tensorboard.flush(sink, &err), EVQ_OK, &err);
    evq_sink_tensorboard.close(sink);
    fixture_dir_remove(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sink_tensorboard_asks_once_a_while_when_flows_take_turns,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            sink_tensorboard_holds_nothing_back_by_a_clock_that_is_wrong, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(sink_tensorboard_begins_anew_when_its_directory_was_removed,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(sink_tensorboard_defers_a_late_result_after_a_rewrite,
                                        fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
