#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/redis/conn_limits.h"
#include "shared/redis/conn_reader.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"

#define REFUSED_BYTES 128

static struct evq_reply *next(struct evq_conn_reader *reader)
{
    struct evq_error err;
    struct evq_reply *reply = NULL;
    char refused[REFUSED_BYTES];
    assert_status_err(evq_conn_reader_next(reader, &reply, refused, sizeof refused, &err), EVQ_OK,
                      &err);
    assert_string_equal(refused, "");
    return reply;
}

/* Replies as a server may send them, one after the other, with a reply in each of their types. */
static const char stream[] = "+OK\r\n:-42\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n$5\r\na\0\r\nb\r\n"
                             "*3\r\n$1\r\nx\r\n*2\r\n:1\r\n*1\r\n+in\r\n$-1\r\n-ERR no\r\n:7\r\n";

static void check_stream(struct evq_conn_reader *reader)
{
    struct evq_error err;
    struct evq_reply *reply = next(reader);
    assert_int_equal(reply->type, EVQ_REPLY_STATUS);
    assert_string_equal(reply->text, "OK");
    evq_reply_free(reply);
    reply = next(reader);
    assert_int_equal(reply->type, EVQ_REPLY_INTEGER);
    assert_int_equal(reply->integer, -42);
    evq_reply_free(reply);
    for (int i = 0; i < 2; i++) {
        reply = next(reader);
        assert_int_equal(reply->type, EVQ_REPLY_NIL);
        evq_reply_free(reply);
    }
    reply = next(reader);
    assert_int_equal(reply->type, EVQ_REPLY_ARRAY);
    assert_int_equal(reply->item_count, 0);
    evq_reply_free(reply);
    reply = next(reader);
    assert_int_equal(reply->type, EVQ_REPLY_STRING);
    assert_int_equal(reply->bytes, 0);
    assert_string_equal(reply->text, "");
    evq_reply_free(reply);
    reply = next(reader);
    assert_int_equal(reply->bytes, 5);
    assert_memory_equal(reply->text, "a\0\r\nb", 6);
    evq_reply_free(reply);
    reply = next(reader);
    assert_int_equal(reply->item_count, 3);
    assert_string_equal(reply->items[0]->text, "x");
    assert_int_equal(reply->items[1]->item_count, 2);
    assert_string_equal(reply->items[1]->items[1]->items[0]->text, "in");
    assert_int_equal(reply->items[2]->type, EVQ_REPLY_NIL);
    evq_reply_free(reply);
    char refused[REFUSED_BYTES];
    reply = NULL;
    assert_status_err(evq_conn_reader_next(reader, &reply, refused, sizeof refused, &err), EVQ_OK,
                      &err);
    assert_string_equal(refused, "ERR no");
    assert_null(reply);
    reply = next(reader);
    assert_int_equal(reply->integer, 7);
    evq_reply_free(reply);
    assert_null(next(reader));
}

static void conn_reader_reads_alike_however_the_bytes_are_cut(void **state)
{
    (void)state;
    uint64_t seed = fixture_seed();

    for (int round = 0; round < 500; round++) {
        struct evq_conn_reader *reader = evq_conn_reader_new();
        struct evq_error err;
        size_t at = 0;
        assert_non_null(reader);
        while (at < sizeof stream - 1) {
            // The first round byte by byte, the second in one piece, then at random.
            int64_t most = round == 0 ? 1 : round == 1 ? 1000 : evq_clock_jitter_ms(&seed, 10, 90);
            size_t part =
                sizeof stream - 1 - at < (size_t)most ? sizeof stream - 1 - at : (size_t)most;
            assert_status_err(evq_conn_reader_feed(reader, stream + at, part, &err), EVQ_OK, &err);
            at += part;
        }
        check_stream(reader);
        assert_true(evq_conn_reader_idle(reader));
        evq_conn_reader_free(reader);
    }
}

static void conn_reader_gives_nothing_before_the_end_of_a_reply(void **state)
{
    (void)state;
    struct evq_error err;
    const char reply_bytes[] = "*2\r\n$3\r\nabc\r\n:12\r\n";
    struct evq_conn_reader *reader = evq_conn_reader_new();

    assert_non_null(reader);
    for (size_t i = 0; i < sizeof reply_bytes - 1; i++) {
        assert_null(next(reader));
        assert_status_err(evq_conn_reader_feed(reader, reply_bytes + i, 1, &err), EVQ_OK, &err);
        assert_false(evq_conn_reader_idle(reader));
    }
    struct evq_reply *reply = next(reader);
    assert_non_null(reply);
    assert_int_equal(reply->items[1]->integer, 12);
    evq_reply_free(reply);
    evq_conn_reader_free(reader);
}

static void conn_reader_refuses_what_is_no_reply(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        const char *because;
    } cases[] = {
        {"HTTP/1.1 400 Bad Request\r\n", "no Redis"},
        {"\r\n", "no Redis"},
        {"\x16\x03\x01", "no Redis"}, // TLS.
        {"$4294967296\r\n", "4294967296"},
        {"$67108865\r\n", "67108865"},
        {"$-2\r\n", "length"},
        {"$1x\r\n", "length"},
        {"$\r\n", "length"},
        {"$99999999999999999999\r\n", "length"},
        {"$18446744073709551613\r\nab\r\n", "length"}, // With both line ends, 1 more than nothing.
        {"*1048577\r\n", "1048577"},
        {"*4294967295\r\n", "4294967295"},
        {"*999999999999999999999999999999\r\n", "number"},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "nested"},
        {"*2\r\n+a\r\nx", "no Redis"},
        // To the parser this is one line, then an array.
        {"+a\n$12\r\n*999999999\r\n", "without CR"},
        {":1\n", "without CR"},
        {"-ERR no\n", "without CR"},
        {"$3\n", "without CR"},
        {"%1\r\n", "no Redis"}, // A map of RESP3, which is never asked for.
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_conn_reader *reader = evq_conn_reader_new();
        assert_non_null(reader);
        assert_status(evq_conn_reader_feed(reader, cases[i].bytes, strlen(cases[i].bytes), &err),
                      EVQ_E_IO);
        assert_int_equal(err.status, EVQ_E_IO);
        assert_holds(err.message, cases[i].because);
        evq_conn_reader_free(reader);
    }
}

static void conn_reader_takes_seven_arrays_deep(void **state)
{
    (void)state;
    struct evq_error err;
    const char deep[] = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n";
    struct evq_conn_reader *reader = evq_conn_reader_new();
    assert_non_null(reader);
    assert_status_err(evq_conn_reader_feed(reader, deep, sizeof deep - 1, &err), EVQ_OK, &err);
    struct evq_reply *root = next(reader);
    assert_non_null(root);
    const struct evq_reply *reply = root;
    for (int i = 0; i < 7; i++) {
        reply = reply->items[0];
    }
    assert_int_equal(reply->integer, 1);
    evq_reply_free(root);
    evq_conn_reader_free(reader);
}

/* One reply may not grow without end, though no single length in it is large. */
static void conn_reader_bounds_a_whole_reply(void **state)
{
    (void)state;
    enum { STRING_BYTES = 1 << 20 };
    struct evq_error err = {EVQ_OK, ""};
    struct evq_conn_limits guard;
    enum evq_status status = EVQ_OK;
    size_t replies = 0;
    int strings = 0;
    char *string = calloc(1, STRING_BYTES + 2);

    assert_non_null(string);
    memset(&guard, 0, sizeof guard);
    assert_status(evq_conn_limits_feed(&guard, "*1000\r\n", 7, &replies, &err), EVQ_OK);
    while (status == EVQ_OK && strings < 1000) {
        status = evq_conn_limits_feed(&guard, "$1048576\r\n", 10, &replies, &err);
        if (status == EVQ_OK) {
            status = evq_conn_limits_feed(&guard, string, STRING_BYTES + 2, &replies, &err);
            strings++;
        }
    }
    free(string);
    assert_status(status, EVQ_E_LIMIT);
    assert_true(strings == 64);
    assert_int_equal(replies, 0);
}

static void conn_reader_formats_commands(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_buffer out;
    const char *const words[] = {"SET", "k", "a\0\r\nb"};
    const size_t bytes[] = {3, 1, 5};

    evq_buffer_init(&out, 0);
    assert_status_err(evq_conn_reader_format(3, words, bytes, &out, &err), EVQ_OK, &err);
    assert_status_err(evq_conn_reader_format(1, words, NULL, &out, &err), EVQ_OK, &err);
    const char want[] = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\0\r\nb\r\n*1\r\n$3\r\nSET\r\n";
    assert_int_equal(out.bytes, sizeof want - 1);
    assert_memory_equal(out.data, want, sizeof want - 1);
    assert_status(evq_conn_reader_format(0, words, NULL, &out, &err), EVQ_E_LIMIT);
    const size_t long_bytes[] = {3, 1, EVQ_CONN_REPLY_BYTES_MAX + 1};
    assert_status(evq_conn_reader_format(3, words, long_bytes, &out, &err), EVQ_E_LIMIT);
    evq_buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_reader_reads_alike_however_the_bytes_are_cut),
        cmocka_unit_test(conn_reader_gives_nothing_before_the_end_of_a_reply),
        cmocka_unit_test(conn_reader_refuses_what_is_no_reply),
        cmocka_unit_test(conn_reader_takes_seven_arrays_deep),
        cmocka_unit_test(conn_reader_bounds_a_whole_reply),
        cmocka_unit_test(conn_reader_formats_commands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
