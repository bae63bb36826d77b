#include "shared/samples/text_cut.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/utf8.h"

struct span {
    size_t begin;
    size_t end;
};

/* The length of an escape sequence at the beginning of text. 0: it is none, or one that
 * evq_sample_write() does not make, such as half a surrogate pair. */
static size_t escape_bytes(const char *text, size_t bytes)
{
    if (bytes >= 2 && memchr("n\"\\trbf/", text[1], 8) != NULL) {
        return 2;
    }
    const bool control = bytes >= 6 && memcmp(text, "\\u00", 4) == 0 &&
                         isxdigit((unsigned char)text[4]) && isxdigit((unsigned char)text[5]);
    return control && memcmp(text + 4, "00", 2) != 0 ? 6 : 0;
}

/* Where the string that begins at `at` ends, behind its quote. 0: it is not valid. */
static size_t string_end(const char *line, size_t at, size_t bytes, bool *ret_escaped)
{
    *ret_escaped = false;
    at++;
    while (at < bytes && line[at] != '"') {
        const unsigned char byte = (unsigned char)line[at];
        if (byte >= 0x20 && byte < 0x80 && byte != '\\') {
            at++; // Nearly all bytes of a text.
            continue;
        }
        const size_t length = byte == '\\'   ? escape_bytes(line + at, bytes - at)
                              : byte >= 0x80 ? evq_utf8_sequence(line + at, bytes - at)
                                             : 0;
        *ret_escaped = *ret_escaped || byte == '\\';
        if (length == 0) {
            return 0;
        }
        at += length;
    }
    return at < bytes ? at + 1 : 0;
}

/* Which of the two texts a string with its quotes names: 0, 1, or 2 for neither. */
static size_t text_of(const char *string, size_t bytes)
{
    return bytes != 8                             ? 2
           : memcmp(string, "\"output\"", 8) == 0 ? 0
           : memcmp(string, "\"target\"", 8) == 0 ? 1
                                                  : 2;
}

/* Finds the two members. False: the line is to be parsed as it is. */
static bool find(const char *line, size_t bytes, struct span spans[2])
{
    int depth = 0;
    bool escaped = false;

    for (size_t at = 0; at < bytes;) {
        if (line[at] != '"') {
            depth += line[at] == '{' || line[at] == '[';
            depth -= line[at] == '}' || line[at] == ']';
            at++;
            continue;
        }
        const size_t end = string_end(line, at, bytes, &escaped);
        const size_t text = end > 0 ? text_of(line + at, end - at) : 2;
        const bool is_key = end > 0 && end < bytes && line[end] == ':';
        if (end == 0 || (depth == 1 && is_key && escaped)) {
            return false;
        }
        if (depth == 1 && text < 2) {
            const bool plain = is_key && end + 1 < bytes && line[end + 1] == '"' && at > 0 &&
                               line[at - 1] == ',' && spans[text].end == 0;
            spans[text] =
                (struct span){at - 1, plain ? string_end(line, end + 1, bytes, &escaped) : 0};
            if (spans[text].end == 0) {
                return false;
            }
            at = spans[text].end;
        } else {
            at = end;
        }
    }
    return true;
}

size_t evq_text_cut(char *line, size_t bytes)
{
    struct span spans[2] = {{0, 0}, {0, 0}};

    if (!find(line, bytes, spans)) {
        return bytes;
    }
    const size_t last = spans[1].begin > spans[0].begin; // The later one goes first.
    for (size_t i = 0; i < 2; i++) {
        const struct span *span = &spans[i == 0 ? last : 1 - last];
        memmove(line + span->begin, line + span->end, bytes - span->end);
        bytes -= span->end - span->begin;
    }
    return bytes;
}
