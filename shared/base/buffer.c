#include "shared/base/buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/arena.h"
#include "shared/base/decimal.h"
#include "shared/base/utf8.h"

#define BUFFER_BYTES_MAX ((size_t)64 << 20)

void evq_buffer_init(struct evq_buffer *buffer, size_t bytes_max)
{
    *buffer = (struct evq_buffer){.bytes_max = bytes_max != 0 ? bytes_max : BUFFER_BYTES_MAX};
}

void evq_buffer_free(struct evq_buffer *buffer)
{
    free(buffer->data);
    evq_buffer_init(buffer, buffer->bytes_max);
}

void evq_buffer_clear(struct evq_buffer *buffer)
{
    buffer->bytes = 0;
    buffer->failed = false;
    buffer->full = false;
    if (buffer->data != NULL) {
        buffer->data[0] = '\0';
    }
}

/* Makes room for `more` bytes and the NUL after them. */
static bool buffer_reserve(struct evq_buffer *buffer, size_t more)
{
    size_t bytes_max = buffer->bytes_max != 0 ? buffer->bytes_max : BUFFER_BYTES_MAX;
    size_t needed;

    if (buffer->failed) {
        return false;
    }
    if (!evq_size_add(buffer->bytes, more, &needed) || needed > bytes_max ||
        !evq_size_add(needed, 1, &needed)) {
        buffer->failed = true;
        buffer->full = true;
        return false;
    }
    if (needed <= buffer->capacity) {
        return true;
    }
    size_t capacity = buffer->capacity > SIZE_MAX / 2 ? needed : buffer->capacity * 2;
    if (capacity < 256) {
        capacity = 256;
    }
    if (capacity < needed) {
        capacity = needed;
    }
    uint8_t *data = realloc(buffer->data, capacity);
    if (data == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

/* Returns whether `more` bytes fit, and grows the buffer if needed. */
static bool buffer_room(struct evq_buffer *buffer, size_t more)
{
    // The common case. Writing one line of JSON calls this dozens of times.
    const bool fits = more < buffer->capacity - buffer->bytes && !buffer->failed &&
                      buffer->bytes + more <= buffer->bytes_max;
    return fits || buffer_reserve(buffer, more);
}

void evq_buffer_append(struct evq_buffer *buffer, const void *data, size_t bytes)
{
    if (!buffer_room(buffer, bytes)) {
        return;
    }
    if (bytes > 0) {
        memcpy(buffer->data + buffer->bytes, data, bytes);
    }
    buffer->bytes += bytes;
    buffer->data[buffer->bytes] = '\0';
}

void evq_buffer_text(struct evq_buffer *buffer, const char *text)
{
    evq_buffer_append(buffer, text, strlen(text));
}

void evq_buffer_printf(struct evq_buffer *buffer, const char *format, ...)
{
    va_list args;

    if (!buffer_reserve(buffer, 0)) {
        return;
    }
    const size_t room = buffer->capacity - buffer->bytes;
    va_start(args, format);
    const int length = vsnprintf((char *)buffer->data + buffer->bytes, room, format, args);
    va_end(args);
    if (length < 0 || !buffer_reserve(buffer, (size_t)length)) {
        buffer->failed = true;
        buffer->data[buffer->bytes] = '\0';
        return;
    }
    if ((size_t)length >= room) { // The first try was cut short.
        va_start(args, format);
        (void)vsnprintf((char *)buffer->data + buffer->bytes, (size_t)length + 1, format, args);
        va_end(args);
    }
    buffer->bytes += (size_t)length;
}

void evq_buffer_integer(struct evq_buffer *buffer, int64_t value)
{
    char text[EVQ_DECIMAL_BYTES];

    evq_buffer_append(buffer, text, evq_decimal_integer(value, text));
}

void evq_buffer_consume(struct evq_buffer *buffer, size_t bytes)
{
    if (bytes >= buffer->bytes) {
        buffer->bytes = 0;
    } else if (bytes > 0) {
        memmove(buffer->data, buffer->data + bytes, buffer->bytes - bytes);
        buffer->bytes -= bytes;
    }
    if (buffer->data != NULL) {
        buffer->data[buffer->bytes] = '\0';
    }
}

static void json_escape_byte(struct evq_buffer *buffer, uint8_t byte)
{
    switch (byte) {
    case '"':
        evq_buffer_text(buffer, "\\\"");
        break;
    case '\\':
        evq_buffer_text(buffer, "\\\\");
        break;
    case '\n':
        evq_buffer_text(buffer, "\\n");
        break;
    case '\r':
        evq_buffer_text(buffer, "\\r");
        break;
    case '\t':
        evq_buffer_text(buffer, "\\t");
        break;
    default:
        evq_buffer_printf(buffer, "\\u%04x", byte);
        break;
    }
}

/* Whether a byte of a JSON string needs no escape. */
static bool json_plain(uint8_t byte)
{
    return byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
}

/* Whether none of eight bytes needs an escape. Only a byte that needs one causes a borrow or carry
 * into the next byte, so that wrong bit does not change the answer. */
static bool json_plain_8(const uint8_t *from)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t bytes;

    memcpy(&bytes, from, sizeof bytes);
    const uint64_t quotes = bytes ^ ones * '"';
    const uint64_t slashes = bytes ^ ones * '\\';
    const uint64_t escaped = ((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes) |
                             (bytes - ones * 0x20) | (bytes + ones) | bytes;
    return (escaped & ones * 0x80) == 0;
}

/* Appends a string whose byte `at` is the first that needs an escape. */
static void json_escaped(struct evq_buffer *buffer, const uint8_t *from, size_t bytes, size_t at)
{
    size_t start = 0; // Where the current run of unescaped bytes begins.

    evq_buffer_append(buffer, "\"", 1);
    while (at < bytes) {
        if (json_plain(from[at])) {
            at++;
            continue;
        }
        size_t length = evq_utf8_sequence(from + at, bytes - at);
        if (length > 1) {
            at += length;
            continue;
        }
        evq_buffer_append(buffer, from + start, at - start);
        if (length == 1) {
            json_escape_byte(buffer, from[at]);
        } else {
            evq_buffer_text(buffer, "\xef\xbf\xbd");
        }
        at += 1;
        start = at;
    }
    evq_buffer_append(buffer, from + start, at - start);
    evq_buffer_append(buffer, "\"", 1);
}

void evq_buffer_json(struct evq_buffer *buffer, const char *text, size_t bytes)
{
    const uint8_t *from = (const uint8_t *)(bytes > 0 ? text : "");
    size_t plain = 0;

    while (bytes - plain >= 8 && json_plain_8(from + plain)) {
        plain += 8;
    }
    while (plain < bytes && json_plain(from[plain])) {
        plain++;
    }
    if (plain < bytes) {
        json_escaped(buffer, from, bytes, plain);
    } else if (buffer_room(buffer, bytes + 2)) {
        uint8_t *to = buffer->data + buffer->bytes;
        to[0] = '"';
        memcpy(to + 1, from, bytes);
        to[bytes + 1] = '"';
        to[bytes + 2] = '\0';
        buffer->bytes += bytes + 2;
    }
}

void evq_buffer_json_text(struct evq_buffer *buffer, const char *text)
{
    evq_buffer_json(buffer, text, strlen(text));
}

void evq_buffer_json_double(struct evq_buffer *buffer, double value)
{
    if (isnan(value)) {
        evq_buffer_text(buffer, "\"NaN\"");
        return;
    }
    if (isinf(value)) {
        evq_buffer_text(buffer, value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15 && !(value == 0.0 && signbit(value))) {
        evq_buffer_integer(buffer, (int64_t)value); // The same digits, ten times as fast.
        return;
    }
    char text[EVQ_DECIMAL_BYTES];
    evq_buffer_append(buffer, text, evq_decimal_write(value, text));
}

const char *evq_buffer_string(struct evq_buffer *buffer)
{
    if (buffer->failed) {
        return NULL;
    }
    return buffer->data != NULL ? (const char *)buffer->data : "";
}
