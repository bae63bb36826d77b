/*
 * Bytes from the socket of Redis. Whatever the pieces in which they come, the same replies are
 * read, up to the same fault; an error reply has a sentence for a terminal. An input that begins
 * with '!' is a reply in the words of reply_text.h.
 */
#include <stdbool.h>
#include <string.h>

#include "shared/redis/conn_error.h"
#include "shared/redis/conn_reader.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/reply_text.h"

/* Its shape and content, to be held against another reading's. */
static void describe(const struct evq_reply *reply, struct evq_buffer *out)
{
    evq_buffer_printf(out, "%d ", (int)reply->type);
    if (reply->type == EVQ_REPLY_INTEGER) {
        evq_buffer_printf(out, "%" PRId64 " ", reply->integer);
    } else if (reply->type == EVQ_REPLY_STRING || reply->type == EVQ_REPLY_STATUS) {
        check(reply->text != NULL && reply->text[reply->bytes] == '\0');
        evq_buffer_append(out, reply->text, reply->bytes);
    } else if (reply->type == EVQ_REPLY_ARRAY) {
        evq_buffer_printf(out, "%zu ", reply->item_count);
        for (size_t i = 0; i < reply->item_count; i++) {
            describe(reply->items[i], out);
        }
    }
}

static void refusal_check(const char *text)
{
    const struct evq_conn_error refusal = evq_conn_error_parse(text);
    struct evq_error err = {EVQ_OK, ""};

    check(refusal.status != EVQ_OK && refusal.text >= text);
    check(refusal.moved == NULL || (refusal.moved > text && refusal.moved <= text + strlen(text)));
    check(evq_conn_error_describe(&refusal, "redis://h:1/0", "", &err) == refusal.status);
    check(err.message[0] != '\0');
    for (const char *c = err.message; *c != '\0'; c++) {
        check((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

/* All replies of the bytes, fed `piece` at a time; false: they end in a fault. */
static bool read_all(const uint8_t *data, size_t bytes, size_t piece, struct evq_buffer *out)
{
    struct evq_conn_reader *reader = evq_conn_reader_new();
    struct evq_error err = {EVQ_OK, ""};
    char text[256];
    bool good = true;

    check(reader != NULL && evq_conn_reader_idle(reader));
    for (size_t at = 0; at < bytes && good; at += piece) {
        const size_t some = bytes - at < piece ? bytes - at : piece;
        good = evq_conn_reader_feed(reader, (const char *)data + at, some, &err) == EVQ_OK;
        for (bool more = good; more && good;) {
            struct evq_reply *reply = NULL;
            good = evq_conn_reader_next(reader, &reply, text, sizeof(text), &err) == EVQ_OK;
            check(good || reply == NULL);
            more = reply != NULL || text[0] != '\0';
            if (reply != NULL) {
                describe(reply, out);
            } else if (text[0] != '\0') {
                evq_buffer_text(out, text);
                refusal_check(text);
            }
            evq_reply_free(reply);
        }
    }
    check(good || err.message[0] != '\0');
    evq_conn_reader_free(reader);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_buffer whole, single, made;

    evq_buffer_init(&whole, 0);
    evq_buffer_init(&single, 0);
    evq_buffer_init(&made, 0);
    if (bytes > 0 && data[0] == '!') {
        struct reply_input input = {data + 1, data + bytes};
        while (input.at < input.end) {
            reply_write(&input, 0, &made);
        }
        data = made.data;
        bytes = made.bytes;
    }
    if (bytes > 0 && bytes < 65536) {
        const bool good = read_all(data, bytes, bytes, &whole);
        const bool same = read_all(data, bytes, 1, &single);
        check(good == same);
        // Of a stream with a fault the pieces may show more replies before it.
        check(!good || (whole.bytes == single.bytes &&
                        (whole.bytes == 0 || memcmp(whole.data, single.data, whole.bytes) == 0)));
    }
    evq_buffer_free(&whole);
    evq_buffer_free(&single);
    evq_buffer_free(&made);
    return 0;
}
