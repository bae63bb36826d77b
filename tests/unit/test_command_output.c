/*
 * What a command wrote to its terminal, as complete lines and as bars that it still rewrites.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "producer/cli/terminal.h"
#include "producer/cli/up/command_output.h"

static int setup(void **state)
{
    static struct evq_command_output output;
    evq_command_output_init(&output);
    *state = &output;
    return 0;
}

static int teardown(void **state)
{
    evq_command_output_free(*state);
    return 0;
}

static void take(struct evq_command_output *output, const char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++) { // Reads may end anywhere.
        evq_command_output_take(output, text + i, 1);
    }
}

/* Complete lines, which are taken away, then the rows with bars, each behind a '|'. */
static void assert_shows(struct evq_command_output *output, const char *lines, const char *bars)
{
    char shown[512] = "";
    char bar[128];
    size_t used = 0;
    assert_string_equal(evq_buffer_string(&output->lines), lines);
    evq_buffer_clear(&output->lines);
    for (size_t i = 0; i < output->row_count; i++) {
        evq_command_output_plain(&output->rows[i], bar, sizeof bar);
        if (bar[0] != '\0') {
            used += (size_t)snprintf(shown + used, sizeof shown - used, "|%s", bar);
        }
    }
    assert_string_equal(shown, bars);
}

static void output_shows_lines_when_they_are_complete(void **state)
{
    struct evq_command_output *output = *state;
    take(output, "one\ntwo\r\nthr");
    assert_shows(output, "one\ntwo\n", "|thr");
    take(output, "ee\n\n\033[31mred\033[0m\n");
    assert_shows(output, "three\n\n\033[31mred\033[0m\n", "");
    take(output, "last");
    evq_command_output_end(output);
    assert_shows(output, "last\n", "");
}

static void output_keeps_a_bar_until_its_line_is_complete(void **state)
{
    struct evq_command_output *output = *state;
    take(output, "\r 10% \xe2\x96\x88\r\033[K 50%\r\033[32m 90%\033[0m");
    assert_shows(output, "", "| 90%");
    evq_command_output_tick(output);
    evq_command_output_tick(output);
    assert_shows(output, "", "| 90%");
    take(output, "\r100%\nsaved\n");
    assert_shows(output, "", "|100%|saved"); // It may go back to the bar.
    evq_command_output_tick(output);
    evq_command_output_tick(output);
    assert_shows(output, "100%\nsaved\n", "");
    take(output, "\r  1%\r    \r\ndone\n");
    evq_command_output_end(output);
    assert_shows(output, "done\n", ""); // A bar that was wiped leaves no line.
}

/* As tqdm writes a bar below another: a newline, the bar, and back up. */
static void output_keeps_nested_bars_in_place(void **state)
{
    struct evq_command_output *output = *state;
    take(output, "\router 1");
    for (int i = 0; i < 5; i++) {
        take(output, "\n\rinner\033[A");
        evq_command_output_tick(output);
        take(output, "\router 2");
        assert_shows(output, "", "|outer 2|inner");
    }
    take(output, "\n\r     \r\033[A\router 3\n");
    evq_command_output_end(output);
    assert_shows(output, "outer 3\n", "");
}

static void output_completes_the_first_of_many_rows(void **state)
{
    struct evq_command_output *output = *state;
    take(output, "\rbar\ra bar\n1\n2\n3\n4\n5\n6\n");
    assert_shows(output, "a bar\n1\n2\n3\n4\n5\n6\n", "");
}

static void last_state_is_what_a_terminal_shows(void **state)
{
    (void)state;
    const struct {
        const char *line;
        const char *want;
    } cases[] = {
        {"plain", "plain"}, {"10%\r20%\r30%", "30%"}, {"30%\r", "30%"}, {"", ""}, {"\r\r", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = strlen(cases[i].line);
        const char *shown = evq_terminal_last_state(cases[i].line, &bytes);
        assert_int_equal(bytes, strlen(cases[i].want));
        assert_memory_equal(shown, cases[i].want, bytes);
    }
}

int main(void)
{
#define OUTPUT_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        OUTPUT_TEST(output_shows_lines_when_they_are_complete),
        OUTPUT_TEST(output_keeps_a_bar_until_its_line_is_complete),
        OUTPUT_TEST(output_keeps_nested_bars_in_place),
        OUTPUT_TEST(output_completes_the_first_of_many_rows),
        cmocka_unit_test(last_state_is_what_a_terminal_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
