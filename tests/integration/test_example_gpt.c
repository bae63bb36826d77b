/*
 * Tests the example that trains a GPT in C: its checkpoint can be read as a GPT-2, and evalq finds
 * the same held-out loss as the example. The two programs share no code of the model.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "tests/fixture/folder.h"
#include "tests/fixture/program.h"

static double number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    if (at == NULL) {
        print_error("%s\n", text);
        fail_msg("'%s' was not printed", word);
        return (double)NAN;
    }
    return strtod(at + strlen(word), NULL);
}

static void example_gpt_is_evaluated_as_it_evaluates_itself(void **state)
{
    static struct fixture_output trained;
    static struct fixture_output evaluated;
    const char *dir = ((const struct fixture_folder *)*state)->path;

    struct fixture_program program = {.path = EVQ_TEST_BIN "/train_gpt", .dir = dir};
    fixture_program_run(&program, &trained, "--text", EVQ_TEST_DATA "/tinyshakespeare.txt", "--out",
                        "out", "--steps", "12", "--every", "12", NULL);
    assert_int_equal(trained.exit_code, 0);
    fixture_file_write(dir, "evalq.yaml",
                       "suites:\n  text:\n    tasks:\n"
                       "      - {name: t, type: perplexity, mode: blocks, data: {format: text, "
                       "text: out/heldout.txt}}\n");
    program.path = EVQ_TEST_BIN "/evalq-worker";
    fixture_program_run(&program, &evaluated, "eval", "out/checkpoint-12", "--suite", "text",
                        "--json", NULL);
    if (evaluated.exit_code != 0) {
        fail_msg("%s", evaluated.err);
    }
    json_t *answer = json_loads(evaluated.out, 0, NULL);
    const json_t *task = json_object_get(json_object_get(answer, "tasks"), "t");
    const double loss = json_real_value(json_object_get(json_object_get(task, "metrics"), "loss"));
    const double own = number_after(trained.out, "held-out loss here ");
    print_message("held-out loss: %.8f, by the trainer %.6f\n", loss, own);
    assert_true(own < 5.0); // The model has learned something: random bytes give 5.545.
    assert_false(!(fabs(loss - own) <= 2e-6));
    json_decref(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(example_gpt_is_evaluated_as_it_evaluates_itself,
                                        fixture_folder_setup, fixture_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
