/* Which sinks run: those of the configuration, and the defaults that it does not turn off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/check.h"

/* The names of the sinks that run with this text as the configuration's logger.sinks. */
static void assert_sinks(const char *sinks, const char *expected)
{
    const struct evq_sink_config *collected[EVQ_SINKS_MAX];
    struct evq_config *config = NULL;
    char text[256];
    char names[256] = "";

    (void)snprintf(text, sizeof(text), "logger: {%s%s}", sinks[0] != '\0' ? "sinks: " : "", sinks);
    struct evq_error err = {0};
    assert_status_err(evq_config_parse(text, strlen(text), "f.yaml", &config, &err), EVQ_OK, &err);
    const size_t count = evq_sink_collect(config, collected);
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(names);
        (void)snprintf(names + used, sizeof(names) - used, "%s ", collected[i]->name);
        assert_status(evq_sink_check(collected[i], NULL), EVQ_OK);
    }
    assert_string_equal(names, expected);
    evq_config_free(config);
}

static void sinks_are_the_defaults_when_none_is_configured(void **state)
{
    (void)state;
    assert_sinks("", "jsonl best tensorboard ");
    assert_sinks("[]", "jsonl best tensorboard ");
}

static void sinks_keep_jsonl_and_best_beside_configured_ones(void **state)
{
    (void)state;
    assert_sinks("[{kind: csv}]", "csv jsonl best ");
    assert_sinks("[{name: mine, kind: best}, tensorboard]", "mine tensorboard jsonl ");
}

static void sink_runs_without_options_when_only_its_name_is_given(void **state)
{
    (void)state;
    assert_sinks("[jsonl, tensorboard]", "jsonl tensorboard best ");
}

static void sink_is_turned_off_by_its_name(void **state)
{
    (void)state;
    assert_sinks("[csv, {kind: best, enabled: false}]", "csv jsonl ");
    assert_sinks("[{kind: jsonl, enabled: true}, {kind: best, enabled: false}]", "jsonl ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinks_are_the_defaults_when_none_is_configured),
        cmocka_unit_test(sinks_keep_jsonl_and_best_beside_configured_ones),
        cmocka_unit_test(sink_runs_without_options_when_only_its_name_is_given),
        cmocka_unit_test(sink_is_turned_off_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
