/* The suites that ship in deploy/suites/ are understood by the evaluator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>

#include "worker/evaluators/native.h"

static void suites_that_ship_are_understood(void **state)
{
    glob_t found;

    (void)state;
    assert_int_equal(glob(EVQ_TEST_SOURCE "/deploy/suites/*.yaml", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 4);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const struct evq_config_source source = {.file = found.gl_pathv[i]};
        struct evq_config *config = NULL;
        struct evq_error err = {0};
        if (evq_config_load(&source, &config, &err) != EVQ_OK) {
            fail_msg("%s: %s", found.gl_pathv[i], err.message);
        }
        assert_int_equal(config->suite_count, 1);
        // A file is named after its suite, so that people find it.
        assert_non_null(strstr(found.gl_pathv[i], config->suites[0].name));
        if (evq_native_check(&config->suites[0], &err) != EVQ_OK) {
            fail_msg("%s: %s", found.gl_pathv[i], err.message);
        }
        for (size_t p = 0; p < config->suites[0].tasks[0].data_count; p++) {
            const struct evq_pair *pair = &config->suites[0].tasks[0].data[p];
            if (strcmp(pair->key, "text") == 0) {
                assert_non_null(strstr(pair->value, "/deploy/suites/data/")); // Beside the file.
            }
        }
        evq_config_free(config);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(suites_that_ship_are_understood)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
