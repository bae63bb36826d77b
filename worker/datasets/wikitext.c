#include "worker/datasets/wikitext.h"

#include <stdbool.h>
#include <string.h>

#include "worker/datasets/python_text.h"

/* Appends text with every `from` replaced by `to`, from left to right. */
static void replace(const struct evq_buffer *text, const char *from, const char *to,
                    struct evq_buffer *out)
{
    const size_t from_bytes = strlen(from);
    const size_t to_bytes = strlen(to);
    const uint8_t *at = text->data;
    const uint8_t *end = at + text->bytes;

    evq_buffer_clear(out);
    while (at < end) {
        const uint8_t *found = memmem(at, (size_t)(end - at), from, from_bytes);
        if (found == NULL) {
            evq_buffer_append(out, at, (size_t)(end - at));
            return;
        }
        evq_buffer_append(out, at, (size_t)(found - at));
        evq_buffer_append(out, to, to_bytes);
        at = found + from_bytes;
    }
}

/* The harness replaces its pattern "/' [0-9]/" by the text of the pattern, and so do we. */
static void replace_slashed(const struct evq_buffer *text, struct evq_buffer *out)
{
    const char *data = (const char *)text->data;
    size_t kept = 0;

    evq_buffer_clear(out);
    for (size_t at = 0; at + 5 <= text->bytes; at++) {
        if (memcmp(data + at, "/' ", 3) == 0 && data[at + 3] >= '0' && data[at + 3] <= '9' &&
            data[at + 4] == '/') {
            evq_buffer_append(out, data + kept, at - kept);
            evq_buffer_text(out, "/'[0-9]/");
            kept = at + 5;
            at += 4;
        }
    }
    evq_buffer_append(out, data + kept, text->bytes - kept);
}

/*
 * Appends text with the whitespace inside each pair of brackets removed. It follows the pattern
 * "\(\s*([^\)]*?)\s*\)", which allows no closing bracket between the two. The pattern removes
 * whitespace at the beginning first; if only whitespace is inside, all of it is removed.
 */
static void tighten(const struct evq_buffer *text, char open, char close, struct evq_buffer *out)
{
    const char *data = (const char *)text->data;
    size_t at = 0;

    evq_buffer_clear(out);
    while (at < text->bytes) {
        const char *from = memchr(data + at, open, text->bytes - at);
        const char *to =
            from != NULL ? memchr(from + 1, close, text->bytes - (size_t)(from + 1 - data)) : NULL;
        if (to == NULL) {
            evq_buffer_append(out, data + at, text->bytes - at);
            return;
        }
        evq_buffer_append(out, data + at, (size_t)(from + 1 - (data + at)));
        const size_t end = evq_python_text_trim_end(from + 1, (size_t)(to - from - 1));
        const size_t begin = evq_python_text_leading_space(from + 1, end);
        evq_buffer_append(out, from + 1 + begin, end - begin);
        evq_buffer_append(out, to, 1);
        at = (size_t)(to + 1 - data);
    }
}

/* Whether the line is a title: after "= = =" and "= =" were joined, it begins with "= " and ends
 * with " =". */
static bool is_title(const char *line, size_t bytes)
{
    struct evq_buffer text;
    struct evq_buffer drawn;
    const size_t end = evq_python_text_trim_end(line, bytes);
    const size_t begin = evq_python_text_leading_space(line, end);

    if (end < begin + 3 || line[begin] != '=' || line[end - 1] != '=') {
        return false; // Neither replacement removes text at an end.
    }
    evq_buffer_init(&text, 0);
    evq_buffer_init(&drawn, 0);
    evq_buffer_append(&text, line, bytes);
    replace(&text, "= = =", "===", &drawn);
    replace(&drawn, "= =", "==", &text);
    const char *data = (const char *)text.data;
    const size_t last = evq_python_text_trim_end(data, text.bytes);
    const size_t first = evq_python_text_leading_space(data, last);
    const bool title = !text.failed && !drawn.failed && last >= first + 2 &&
                       memcmp(data + first, "= ", 2) == 0 && memcmp(data + last - 2, " =", 2) == 0;
    evq_buffer_free(&text);
    evq_buffer_free(&drawn);
    return title;
}

size_t evq_wikitext_page(const char *text, size_t bytes, size_t *ret_next)
{
    for (size_t at = 0; at < bytes;) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        const size_t next = newline != NULL ? (size_t)(newline - text) + 1 : bytes + 1;
        if (next > bytes) {
            break;
        }
        const char *end = memchr(text + next, '\n', bytes - next);
        const size_t line = (end != NULL ? (size_t)(end - text) : bytes) - next;
        if (is_title(text + next, line)) {
            *ret_next = next;
            return next - 1;
        }
        at = next;
    }
    *ret_next = bytes;
    return bytes;
}

void evq_wikitext_detokenize(const char *page, size_t bytes, struct evq_buffer *out)
{
    static const char *const first[][2] = {
        {"s '", "s'"}, {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "},
        {" ; ", "; "}, {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "},
    };
    static const char *const last[][2] = {
        {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \xc2\xb0 ", "\xc2\xb0"},
        {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"},
    };
    static const char brackets[][2] = {
        {'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
    struct evq_buffer texts[2];
    size_t now = 0;

    if (bytes == 0) {
        return; // It is empty, and the pointer may be NULL.
    }
    evq_buffer_init(&texts[0], 4 * bytes + 64);
    evq_buffer_init(&texts[1], 4 * bytes + 64);
    evq_buffer_append(&texts[0], page, bytes);
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++, now ^= 1) {
        replace(&texts[now], first[i][0], first[i][1], &texts[now ^ 1]);
        if (i == 0) {
            now ^= 1;
            replace_slashed(&texts[now], &texts[now ^ 1]);
        }
    }
    for (size_t i = 0; i < sizeof(brackets) / sizeof(brackets[0]); i++, now ^= 1) {
        tighten(&texts[now], brackets[i][0], brackets[i][1], &texts[now ^ 1]);
    }
    for (size_t i = 0; i < sizeof(last) / sizeof(last[0]); i++, now ^= 1) {
        replace(&texts[now], last[i][0], last[i][1], &texts[now ^ 1]);
    }
    evq_buffer_append(out, texts[now].data, texts[now].bytes);
    out->failed = out->failed || texts[0].failed || texts[1].failed;
    evq_buffer_free(&texts[0]);
    evq_buffer_free(&texts[1]);
}
