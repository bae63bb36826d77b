#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/log.h"
#include "tests/fixture/check.h"

/* Standard error for the while: a datagram socket, so that each write(2) is one message. */
struct capture {
    int saved;
    int ends[2];
    char line[65536];
};

static void capture_open(struct capture *capture)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, capture->ends), 0);
    (void)fflush(stderr);
    capture->saved = dup(STDERR_FILENO);
    assert_true(capture->saved >= 0);
    assert_true(dup2(capture->ends[1], STDERR_FILENO) >= 0);
}

/* The next line, without waiting; "" when nothing was written. */
static const char *capture_line(struct capture *capture)
{
    ssize_t got = recv(capture->ends[0], capture->line, sizeof capture->line - 1, MSG_DONTWAIT);
    capture->line[got > 0 ? got : 0] = '\0';
    return capture->line;
}

static void capture_close(struct capture *capture)
{
    assert_true(dup2(capture->saved, STDERR_FILENO) >= 0);
    (void)close(capture->saved);
    (void)close(capture->ends[0]);
    (void)close(capture->ends[1]);
}

static void log_writes_one_logfmt_line_per_event(void **state)
{
    (void)state;
    struct capture capture;
    char pairs[65536];
    capture_open(&capture);
    (void)unsetenv("JOURNAL_STREAM");
    evq_log_open("evalq-test", EVQ_LOG_INFO, EVQ_LOG_LOGFMT);
    evq_log(EVQ_LOG_INFO, "job_done", "job=%s ms=%d ratio=%.2f n=%ju at=%s:%d neg=%ld", "a/1/b/c",
            12, 0.5, (uintmax_t)UINT64_MAX, "host", 80, -5L);
    (void)snprintf(pairs, sizeof pairs, "%s", capture_line(&capture));
    evq_log(EVQ_LOG_DEBUG, "hidden", "");
    const char *hidden = capture_line(&capture);
    bool silent = hidden[0] == '\0';
    evq_log(EVQ_LOG_WARN, "plain", "");
    const char *plain = capture_line(&capture);
    bool ended = strstr(plain, " level=warn program=evalq-test event=plain\n") != NULL;
    capture_close(&capture);

    assert_int_equal(strncmp(pairs, "time=2", 6), 0);
    assert_holds(pairs,
                 "Z level=info program=evalq-test event=job_done job=a/1/b/c ms=12 ratio=0.50 "
                 "n=18446744073709551615 at=host:80 neg=-5\n");
    assert_true(silent);
    assert_true(ended);
}

/* A value from outside must not be able to end its line, its quotes or its pair. */
static void log_escapes_values(void **state)
{
    (void)state;
    struct capture capture;
    char line[65536];
    const char *volatile nothing = NULL; // Volatile, so that the compiler does not see the mistake.
    capture_open(&capture);
    evq_log_open("evalq-test", EVQ_LOG_INFO, EVQ_LOG_LOGFMT);
    evq_log(EVQ_LOG_INFO, "e", "a=%s b=%s c=%s d=%s e=%.*s f=%s", "x\nlevel=error", "say \"hi\"",
            "", nothing, 2, "abcdef", "\x1b[2J\xff");
    (void)snprintf(line, sizeof line, "%s", capture_line(&capture));
    capture_close(&capture);
    assert_holds(line, " a=\"x\\nlevel=error\" b=\"say \\\"hi\\\"\" c=\"\" d=(null) e=ab "
                       "f=\"\\u001b[2J\xef\xbf\xbd\"\n");
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void log_writes_json_with_numbers_as_numbers(void **state)
{
    (void)state;
    struct capture capture;
    char line[65536];
    json_error_t error;
    capture_open(&capture);
    evq_log_open("evalq-test", EVQ_LOG_DEBUG, EVQ_LOG_JSON);
    evq_log(EVQ_LOG_DEBUG, "e", "text=%s n=%d f=%g nan=%f at=%s:%d", "a \"b\" 7", 7, 0.25, NAN, "h",
            1);
    (void)snprintf(line, sizeof line, "%s", capture_line(&capture));
    capture_close(&capture);
    json_t *json = json_loads(line, 0, &error);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "level")), "debug");
    assert_string_equal(json_string_value(json_object_get(json, "event")), "e");
    assert_string_equal(json_string_value(json_object_get(json, "text")), "a \"b\" 7");
    assert_int_equal(json_integer_value(json_object_get(json, "n")), 7);
    assert_true(json_is_real(json_object_get(json, "f")));
    assert_true(json_is_string(json_object_get(json, "nan")));
    assert_string_equal(json_string_value(json_object_get(json, "at")), "h:1");
    json_decref(json);
}

static void log_cuts_long_values_and_lines(void **state)
{
    (void)state;
    struct capture capture;
    char *big = malloc(100001);
    char line[65536];
    size_t first;
    size_t second;
    assert_non_null(big);
    memset(big, '\x01', 100000); // Each byte becomes six.
    big[100000] = '\0';
    capture_open(&capture);
    evq_log_open("evalq-test", EVQ_LOG_INFO, EVQ_LOG_LOGFMT);
    evq_log(EVQ_LOG_INFO, "e", "a=%s", big);
    first = strlen(capture_line(&capture));
    evq_log(EVQ_LOG_INFO, "many", "a=%s b=%s c=%s", big, big, big);
    (void)snprintf(line, sizeof line, "%s", capture_line(&capture));
    second = strlen(line);
    capture_close(&capture);
    free(big);
    assert_true(first > 4096 && first < 32768);
    assert_true(second > 0 && second < 32768);
    assert_holds(line, "event=many truncated=true\n");
}

/* JOURNAL_STREAM counts only while standard error is that very socket. */
static void log_prefixes_the_priority_for_the_journal(void **state)
{
    (void)state;
    struct capture capture;
    struct stat info;
    char name[64];
    char with[256];
    char without[256];
    capture_open(&capture);
    assert_int_equal(fstat(STDERR_FILENO, &info), 0);
    (void)snprintf(name, sizeof name, "%ju:%ju", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    (void)setenv("JOURNAL_STREAM", name, 1);
    evq_log_open("evalq-test", EVQ_LOG_INFO, EVQ_LOG_LOGFMT);
    evq_log(EVQ_LOG_ERROR, "e", "");
    (void)snprintf(with, sizeof with, "%.200s", capture_line(&capture));
    (void)snprintf(name, sizeof name, "%ju:%ju", (uintmax_t)info.st_dev,
                   (uintmax_t)info.st_ino + 1);
    (void)setenv("JOURNAL_STREAM", name, 1);
    evq_log_open("evalq-test", EVQ_LOG_INFO, EVQ_LOG_LOGFMT);
    evq_log(EVQ_LOG_ERROR, "e", "");
    (void)snprintf(without, sizeof without, "%.200s", capture_line(&capture));
    (void)unsetenv("JOURNAL_STREAM");
    evq_log_open("evalq-test", EVQ_LOG_INFO, EVQ_LOG_LOGFMT);
    capture_close(&capture);
    assert_int_equal(strncmp(with, "<3>time=", 8), 0);
    assert_int_equal(strncmp(without, "time=", 5), 0);
}

static void log_level_parse_knows_its_words(void **state)
{
    (void)state;
    enum evq_log_level level = EVQ_LOG_INFO;
    assert_status(evq_log_level_parse("debug", &level), EVQ_OK);
    assert_int_equal(level, EVQ_LOG_DEBUG);
    assert_status(evq_log_level_parse("error", &level), EVQ_OK);
    assert_int_equal(level, EVQ_LOG_ERROR);
    assert_status(evq_log_level_parse("loud", &level), EVQ_E_INVALID);
    assert_status(evq_log_level_parse(NULL, &level), EVQ_E_INVALID);
    assert_int_equal(level, EVQ_LOG_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_writes_one_logfmt_line_per_event),
        cmocka_unit_test(log_escapes_values),
        cmocka_unit_test(log_writes_json_with_numbers_as_numbers),
        cmocka_unit_test(log_cuts_long_values_and_lines),
        cmocka_unit_test(log_prefixes_the_priority_for_the_journal),
        cmocka_unit_test(log_level_parse_knows_its_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
