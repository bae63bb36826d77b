/*
 * Tests wrong calls of the functions in Redis, as from redis-cli, another language or a broken
 * client. The rows are in tests/bad/functions.txt. Each call is rejected with a sentence, and the
 * queue does not change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/fixture/bad.h"
#include "tests/fixture/queue.h"

#define WORDS_MAX 24

static int setup(void **state)
{
    *state = fixture_open(NULL);
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    return 0;
}

static bool refused(void *context, const struct fixture_bad *row)
{
    const struct fixture *fx = context;
    struct evq_reply *reply = NULL;
    struct evq_error err = {EVQ_OK, ""};
    const char *words[WORDS_MAX] = {"FCALL", NULL, "1", evq_queue_prefix(fx->queue)};
    char name[64];
    char text[4096];
    size_t count = 4;
    char *rest = text;

    assert_true(snprintf(text, sizeof text, "%s", row->fields[1]) < (int)sizeof text);
    (void)snprintf(name, sizeof name, "evalq_v1_%s", strsep(&rest, "\x01"));
    words[1] = name;
    while (rest != NULL) {
        assert_true(count < WORDS_MAX);
        words[count++] = strsep(&rest, "\x01");
    }
    const enum evq_status status = evq_conn_call(fx->raw, count, words, NULL, 0, &reply, &err);
    // A wrong submit is answered with "refused" and the reason.
    const bool told = status == EVQ_OK && reply->type == EVQ_REPLY_ARRAY && reply->item_count > 1 &&
                      strcmp(reply->items[0]->text, "refused") == 0;
    (void)snprintf(text, sizeof text, "%s",
                   told               ? reply->items[1]->text
                   : status != EVQ_OK ? err.message
                                      : "it was done");
    evq_reply_free(reply);
    return ((told || (status != EVQ_OK && !evq_conn_retryable(status))) &&
            strstr(text, row->fields[0]) != NULL) ||
           fixture_bad_wrong(row, text);
}

static void functions_refuse_wrong_calls(void **state)
{
    struct fixture *fx = *state;
    const int64_t keys = fixture_call_integer(fx->raw, "DBSIZE", NULL);

    fixture_bad_each("functions.txt", 2, "calls", refused, fx);
    assert_int_equal(fixture_call_integer(fx->raw, "DBSIZE", NULL), keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(functions_refuse_wrong_calls, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
