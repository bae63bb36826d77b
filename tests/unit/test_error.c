#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "shared/base/error.h"
#include "tests/fixture/check.h"

static void error_set_fills_and_cuts_the_message(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    char longer[700];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';

    assert_status(evq_error_set(&err, EVQ_E_LIMIT, "%d of %s", 3, "four"), EVQ_E_LIMIT);
    assert_int_equal(err.status, EVQ_E_LIMIT);
    assert_string_equal(err.message, "3 of four");
    assert_status(evq_error_set(&err, EVQ_E_IO, "%s", longer), EVQ_E_IO);
    assert_int_equal(strlen(err.message), 511);
    assert_status(evq_error_set(NULL, EVQ_E_NOMEM, "%s", "nobody reads this"), EVQ_E_NOMEM);
}

static void error_set_says_that_memory_ran_out(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    (void)evq_error_set(&err, EVQ_E_NOMEM, "'%s'", "evalq.yaml");
    assert_string_equal(err.message, "out of memory: 'evalq.yaml'");
    (void)evq_error_set(&err, EVQ_E_NOMEM, "no memory for a queue");
    assert_string_equal(err.message, "no memory for a queue");
}

/* Messages reach terminals and logs, and quote names that come from outside. */
static void error_set_escapes_control_bytes(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    (void)evq_error_set(&err, EVQ_E_IO, "open '%s': %s", "a\033[2Jb\n", "no");
    assert_string_equal(err.message, "open 'a\\x1b[2Jb\\x0a': no");
    (void)evq_error_prefix(&err, "in '%s'", "\a");
    assert_string_equal(err.message, "in '\\x07': open 'a\\x1b[2Jb\\x0a': no");
}

/* A caller may wrap a message into a new one by passing it as an argument. */
static void error_set_accepts_its_own_message(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    (void)evq_error_set(&err, EVQ_E_IO, "inner");
    (void)evq_error_set(&err, EVQ_E_INVALID, "outer (%s)", err.message);
    assert_string_equal(err.message, "outer (inner)");
}

static void error_prefix_puts_text_before(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    (void)evq_error_set(&err, EVQ_E_IO, "open 'x': no");
    assert_status(evq_error_prefix(&err, "job %d", 7), EVQ_E_IO);
    assert_string_equal(err.message, "job 7: open 'x': no");
    for (int i = 0; i < 200; i++) {
        assert_status(evq_error_prefix(&err, "again"), EVQ_E_IO);
    }
    assert_int_equal(strlen(err.message), 511);
    assert_int_equal(strncmp(err.message, "again: again: ", 14), 0);
    assert_status(evq_error_prefix(NULL, "x"), EVQ_E_BUG);
}

static void error_names_and_exits_cover_every_status(void **state)
{
    (void)state;
    for (int i = 0; i < EVQ_STATUS_COUNT; i++) {
        assert_string_not_equal(evq_status_name((enum evq_status)i), "unknown");
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(evq_status_name((enum evq_status)i),
                                    evq_status_name((enum evq_status)j));
        }
        assert_int_equal(evq_status_exit_code((enum evq_status)i) == EVQ_EXIT_OK, i == EVQ_OK);
    }
    assert_string_equal(evq_status_name(EVQ_E_NOT_FOUND), "not_found");
    assert_string_equal(evq_status_name((enum evq_status)999), "unknown");
    assert_int_equal(evq_status_exit_code((enum evq_status)999), EVQ_EXIT_ERROR);
    assert_int_equal(evq_status_exit_code(EVQ_E_IO), EVQ_EXIT_UNREACHABLE);
    assert_int_equal(evq_status_exit_code(EVQ_E_TIMEOUT), EVQ_EXIT_TIMEOUT);
    assert_int_equal(evq_status_exit_code(EVQ_E_CORRUPT), EVQ_EXIT_BAD_INPUT);
}

static void error_escape_disarms_control_bytes(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *want;
    } cases[] = {
        {"plain text", "plain text"},
        {"\x1b[31mred", "\\x1b[31mred"},
        {"a\nb\tc\x7f", "a\\x0ab\\x09c\\x7f"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xc2\x9b"
         "2J",
         "\\xc2\\x9b2J"}, // U+009B is CSI.
        {"a\xe2\x80\xae"
         "b",
         "a\\xe2\\x80\\xaeb"}, // U+202E: what follows runs from right to left.
        {"\xe2\x81\xa9\xd8\x9c", "\\xe2\\x81\\xa9\\xd8\\x9c"},
        {"\xe2\x80\xa6", "\xe2\x80\xa6"}, // U+2026 turns nothing.
        {"\xff\xfe", "\\xff\\xfe"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, // A surrogate.
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(evq_error_escape(cases[i].text, strlen(cases[i].text), out, sizeof out),
                            cases[i].want);
    }
    assert_string_equal(evq_error_escape("a\0b", 3, out, sizeof out), "a\\x00b");
}

/* Whatever the room, the result is terminated, within it, and no escape or character is cut in two.
 */
static void error_escape_cuts_between_characters(void **state)
{
    (void)state;
    const char text[] = "a\x01\xc3\xbc\xf0\x9f\x98\x80z";
    for (size_t room = 1; room < 20; room++) {
        char out[20];
        memset(out, '#', sizeof out);
        (void)evq_error_escape(text, sizeof text - 1, out, room);
        size_t bytes = strlen(out);
        assert_true(bytes < room);
        assert_true(bytes == 0 || bytes == 1 || bytes == 5 || bytes == 7 || bytes == 11 ||
                    bytes == 12);
    }
}

static void error_cause_first_moves_paths_to_the_end(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *want;
    } cases[] = {
        {"open '/a/b/c': No such file", "open: No such file ('/a/b/c')"},
        {"'/a/b' has no weights file yet", "has no weights file yet ('/a/b')"},
        {"'/a/b': permission denied", "permission denied ('/a/b')"},
        {"fatal: open /a/b: denied", "fatal: open: denied (/a/b)"},
        {"link '/a/b' to '/c/d' failed", "link to failed ('/a/b', '/c/d')"},
        {"task 'x' is not known", "task 'x' is not known"},
        {"it's in 'a/b'", "it's in ('a/b')"},
        {"'/a/b'", "'/a/b'"},
        {"'/a/b is open", "'/a/b is open"},
        {"", ""},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(evq_error_cause_first(cases[i].text, out, sizeof out), cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_set_fills_and_cuts_the_message),
        cmocka_unit_test(error_set_says_that_memory_ran_out),
        cmocka_unit_test(error_set_escapes_control_bytes),
        cmocka_unit_test(error_set_accepts_its_own_message),
        cmocka_unit_test(error_prefix_puts_text_before),
        cmocka_unit_test(error_names_and_exits_cover_every_status),
        cmocka_unit_test(error_escape_disarms_control_bytes),
        cmocka_unit_test(error_escape_cuts_between_characters),
        cmocka_unit_test(error_cause_first_moves_paths_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
