/* The suites that ship in deploy/suites/ are understood by the evaluator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>
#include <unistd.h>

#include "worker/evaluators/native/native.h"

/* The suites of a file that the native evaluator runs; programs understand the others. */
static size_t check_natives(const char *file, const struct evq_config *config)
{
    struct evq_error err = {0};
    size_t natives = 0;

    for (size_t s = 0; s < config->suite_count; s++) {
        const struct evq_suite *suite = &config->suites[s];
        if (strcmp(suite->evaluator, "native") != 0) {
            continue;
        }
        // A file is named after its suite, so that people find it.
        assert_non_null(strstr(file, suite->name));
        if (evq_native_check(suite, &err) != EVQ_OK) {
            fail_msg("%s: %s", file, err.message);
        }
        for (size_t p = 0; p < suite->tasks[0].data_count; p++) {
            const struct evq_pair *pair = &suite->tasks[0].data[p];
            if (strcmp(pair->key, "text") == 0) {
                assert_non_null(strstr(pair->value, "/deploy/suites/data/")); // Beside the file.
            }
        }
        natives++;
    }
    return natives;
}

static void suites_that_ship_are_understood(void **state)
{
    glob_t found;
    size_t natives = 0;

    (void)state;
    assert_int_equal(glob(EVQ_TEST_SOURCE "/deploy/suites/*.yaml", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const struct evq_config_source source = {.file = found.gl_pathv[i]};
        struct evq_config *config = NULL;
        struct evq_error err = {0};
        if (evq_config_load(&source, &config, &err) != EVQ_OK) {
            fail_msg("%s: %s", found.gl_pathv[i], err.message);
        }
        assert_true(config->suite_count > 0);
        natives += check_natives(found.gl_pathv[i], config);
        evq_config_free(config);
    }
    globfree(&found);
    assert_true(natives >= 4);
}

static const struct evq_suite *suite_of(const struct evq_config *config, const char *name)
{
    for (size_t i = 0; i < config->suite_count; i++) {
        if (strcmp(config->suites[i].name, name) == 0) {
            return &config->suites[i];
        }
    }
    fail_msg("no suite '%s'", name);
    return NULL;
}

/* The file that docs/lmms.md gives worker and gateway: what one asks for the other has, and its
 * programs lie beside it. */
static void suites_of_lmms_are_those_that_the_gateway_asks_for(void **state)
{
    const struct evq_config_source source = {.file = EVQ_TEST_SOURCE "/deploy/suites/lmms.yaml"};
    struct evq_config *config = NULL;
    struct evq_error err = {0};

    (void)state;
    if (evq_config_load(&source, &config, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(suite_of(config, config->gateway.lmms.suite)->prepare, "");
    const struct evq_suite *merged = suite_of(config, config->gateway.lmms.merged_suite);
    assert_string_equal(merged->prepare, "fsdp2-merge");
    assert_string_equal(suite_of(config, config->gateway.lmms.merge_suite)->prepare,
                        merged->prepare);
    assert_int_equal(config->evaluator_count, 3);
    for (size_t i = 0; i < config->evaluator_count; i++) {
        const char *program = config->evaluators[i].argv[1]; // Behind its Python.
        char path[512];
        (void)snprintf(path, sizeof path, "%s/deploy/suites%s", EVQ_TEST_SOURCE,
                       strrchr(program, '/'));
        if (access(path, R_OK) != 0) {
            fail_msg("no program '%s'", path);
        }
    }
    evq_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(suites_that_ship_are_understood),
        cmocka_unit_test(suites_of_lmms_are_those_that_the_gateway_asks_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
