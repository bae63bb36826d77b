/* A line without its texts is the same item, and a line that the parser refuses is refused without
 * its texts, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/samples/sample.h"
#include "shared/samples/text_cut.h"
#include "tests/fixture/random.h"

#define LINES      60000
#define TEXT_BYTES 40

static void assert_cut(const char *line, const char *expected)
{
    char copy[256];

    (void)snprintf(copy, sizeof copy, "%s", line);
    copy[evq_text_cut(copy, strlen(copy))] = '\0';
    assert_string_equal(copy, expected);
}

static void text_cut_removes_the_texts_alone(void **state)
{
    (void)state;
    assert_cut("{\"id\":\"a\",\"scores\":{\"acc\":1},\"output\":\"x\\\"y\\\\\",\"target\":\"\"}",
               "{\"id\":\"a\",\"scores\":{\"acc\":1}}");
    assert_cut("{\"id\":\"a\",\"target\":\"\\u0007\xe2\x82\xac\",\"tokens\":3}",
               "{\"id\":\"a\",\"tokens\":3}");
    assert_cut(
        "{\"id\":\"a\",\"cluster\":\"c\",\"output\":\"x\",\"logprob\":-1.5,\"target\":\"y\"}",
        "{\"id\":\"a\",\"cluster\":\"c\",\"logprob\":-1.5}");
}

static void text_cut_leaves_what_it_does_not_know(void **state)
{
    static const char *const lines[] = {
        "{\"id\":\"a\",\"output\": \"x\"}",
        "{\"output\":\"x\",\"id\":\"a\"}",
        "{\"id\":\"a\",\"output\":1}",
        "{\"id\":\"a\",\"output\":\"x\",\"output\":\"y\"}",
        "{\"id\":\"a\",\"output\":\"x\",\"outpu\\u0074\":\"y\"}",
        "{\"id\":\"a\",\"output\":\"\\ud800\"}",
        "{\"id\":\"a\",\"output\":\"\\u0000\"}",
        "{\"id\":\"a\",\"output\":\"\\x\"}",
        "{\"id\":\"a\",\"output\":\"\xff\"}",
        "{\"id\":\"a\",\"output\":\"\x01\"}",
        "{\"id\":\"a\",\"output\":\"x",
        "{\"id\":\"a,\"output\":\"x\"\",\"scores\":{}}",
        "{\"id\":\"a\",\"scores\":{\"acc\":1,\"output\":\"x\"}}",
        "{\"id\":\",\\\"output\\\":\\\"\"}",
        "{\"id\":\"output\",\"cluster\":\"target\"}",
        "",
        "\"",
        "{\"id\":\"a\\",
    };

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        assert_cut(lines[i], lines[i]);
    }
}

static size_t below(uint64_t *random, size_t count)
{
    return (size_t)(fixture_random(random) >> 16) % count;
}

/* A text with all that JSON escapes, and bytes that are not UTF-8. */
static const char *random_text(uint64_t *random, char *out)
{
    static const char *const parts[] = {
        "a",    "output", "\"",           "\\",       ",\"output\":\"",  "}",    "{",
        "\x01", "\n",     "\xe2\x82\xac", "\xff",     "\\u0041",         "\x7f", "\xed\xa0\x80",
        ":",    ",",      "\"target\"",   "\xf0\x9f", "\xf0\x9f\x98\x80"};
    size_t bytes = 0;

    for (size_t i = below(random, 4); i > 0 && bytes < TEXT_BYTES - 16; i--) {
        const char *part = parts[below(random, sizeof parts / sizeof parts[0])];
        bytes += (size_t)snprintf(out + bytes, TEXT_BYTES - bytes, "%s", part);
    }
    out[bytes] = '\0';
    return out;
}

/* Changes, removes or repeats some bytes of the line. */
static void damage(uint64_t *random, struct evq_buffer *line)
{
    static const char bytes[] = "\"\\,:{}[]ou\x01\xff 0";
    char copy[512];

    for (size_t i = below(random, 3); i > 0 && line->bytes > 2; i--) {
        const size_t at = below(random, line->bytes);
        switch (below(random, 3)) {
        case 0:
            line->data[at] = (uint8_t)bytes[below(random, sizeof bytes - 1)];
            break;
        case 1:
            memmove(line->data + at, line->data + at + 1, line->bytes - at - 1);
            line->bytes--;
            break;
        default:
            (void)snprintf(copy, sizeof copy, "%.*s", (int)(line->bytes - at),
                           (const char *)line->data + at);
            evq_buffer_text(line, copy);
            break;
        }
    }
}

/* Reads a line. NULL: it is refused. */
static json_t *read_line(const char *line, size_t bytes, struct evq_sample *ret)
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);

    if (object == NULL || evq_sample_read(object, ret, NULL) != EVQ_OK) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void text_cut_changes_no_verdict_and_no_item(void **state)
{
    uint64_t random = fixture_seed();
    size_t shorter = 0;
    size_t refused = 0;

    (void)state;
    for (int i = 0; i < LINES; i++) {
        char texts[4][TEXT_BYTES];
        struct evq_buffer line;
        struct evq_sample whole;
        struct evq_sample cut;
        const struct evq_sample sample = {.id = "q1",
                                          .scores = {{"acc", 1.0}, {"output", 0.5}},
                                          .score_count = 1 + (i % 8 == 0),
                                          .output = random_text(&random, texts[0]),
                                          .target = random_text(&random, texts[1]),
                                          .cluster = random_text(&random, texts[2]),
                                          .logprob = (double)NAN,
                                          .tokens = i % 3 - 1};
        evq_buffer_init(&line, 0);
        evq_sample_write(&sample, &line);
        line.bytes--; // The end of the line.
        damage(&random, &line);
        assert_false(line.failed);
        json_t *first = read_line((const char *)line.data, line.bytes, &whole);
        const size_t bytes = evq_text_cut((char *)line.data, line.bytes);
        json_t *second = read_line((const char *)line.data, bytes, &cut);
        shorter += bytes < line.bytes;
        refused += first == NULL;
        if ((first == NULL) != (second == NULL)) {
            fail_msg("line %d is %s, and %s without its texts: %.*s", i,
                     first == NULL ? "refused" : "read", second == NULL ? "refused" : "read",
                     (int)bytes, (const char *)line.data);
        }
        if (first != NULL) {
            assert_string_equal(whole.id, cut.id);
            assert_int_equal(whole.score_count, cut.score_count);
            assert_int_equal(whole.tokens, cut.tokens);
            assert_true((whole.cluster == NULL) == (cut.cluster == NULL));
            assert_true(whole.cluster == NULL || strcmp(whole.cluster, cut.cluster) == 0);
        }
        json_decref(first);
        json_decref(second);
        evq_buffer_free(&line);
    }
    print_message("%d lines: %zu cut, %zu refused\n", LINES, shorter, refused);
    assert_in_range(shorter, LINES / 3, LINES);
    assert_in_range(refused, LINES / 5, LINES * 4 / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_cut_removes_the_texts_alone),
        cmocka_unit_test(text_cut_leaves_what_it_does_not_know),
        cmocka_unit_test(text_cut_changes_no_verdict_and_no_item),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
