#include "shared/base/error.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/utf8.h"

static const struct {
    const char *name;
    enum evq_exit code;
} statuses[EVQ_STATUS_COUNT] = {
    [EVQ_OK] = {"ok", EVQ_EXIT_OK},
    [EVQ_E_INVALID] = {"invalid", EVQ_EXIT_ERROR},
    [EVQ_E_CORRUPT] = {"corrupt", EVQ_EXIT_BAD_INPUT},
    [EVQ_E_UNSUPPORTED] = {"unsupported", EVQ_EXIT_BAD_INPUT},
    [EVQ_E_LIMIT] = {"limit", EVQ_EXIT_ERROR},
    [EVQ_E_NOT_FOUND] = {"not_found", EVQ_EXIT_NOT_FOUND},
    [EVQ_E_CONFLICT] = {"conflict", EVQ_EXIT_ERROR},
    [EVQ_E_NOMEM] = {"nomem", EVQ_EXIT_ERROR},
    [EVQ_E_IO] = {"io", EVQ_EXIT_UNREACHABLE},
    [EVQ_E_RETRY] = {"retry", EVQ_EXIT_UNREACHABLE},
    [EVQ_E_AUTH] = {"auth", EVQ_EXIT_PERMISSION},
    [EVQ_E_VERSION] = {"version", EVQ_EXIT_VERSION},
    [EVQ_E_LEASE_LOST] = {"lease_lost", EVQ_EXIT_ERROR},
    [EVQ_E_TIMEOUT] = {"timeout", EVQ_EXIT_TIMEOUT},
    [EVQ_E_STOPPED] = {"stopped", EVQ_EXIT_INTERRUPTED},
    [EVQ_E_FULL] = {"full", EVQ_EXIT_ERROR},
    [EVQ_E_GONE] = {"gone", EVQ_EXIT_BAD_INPUT},
    [EVQ_E_CHANGED] = {"changed", EVQ_EXIT_BAD_INPUT},
    [EVQ_E_INCOMPLETE] = {"incomplete", EVQ_EXIT_BAD_INPUT},
    [EVQ_E_DEVICE] = {"device", EVQ_EXIT_ERROR},
    [EVQ_E_BUG] = {"bug", EVQ_EXIT_ERROR},
};

enum evq_status evq_error_set(struct evq_error *err, enum evq_status status, const char *format,
                              ...)
{
    if (err == NULL) {
        return status;
    }
    // Formats into a copy, because an argument may be the old message.
    char message[sizeof err->message];
    va_list args;
    va_start(args, format);
    if (vsnprintf(message, sizeof message, format, args) < 0) {
        message[0] = '\0';
    }
    va_end(args);
    err->status = status;
    (void)evq_error_escape(message, strlen(message), err->message, sizeof err->message);
    if (status == EVQ_E_NOMEM && strstr(message, "memory") == NULL) {
        (void)evq_error_prefix(err, "out of memory");
    }
    return status;
}

enum evq_status evq_error_prefix(struct evq_error *err, const char *format, ...)
{
    if (err == NULL) {
        return EVQ_E_BUG;
    }
    char message[sizeof err->message];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (length < 0) {
        return err->status;
    }
    size_t used = (size_t)length < sizeof message ? (size_t)length : sizeof message - 1;
    const char *parts[] = {": ", err->message};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t bytes = strnlen(parts[i], sizeof message - 1 - used);
        memcpy(message + used, parts[i], bytes);
        used += bytes;
    }
    (void)evq_error_escape(message, used, err->message, sizeof err->message);
    return err->status;
}

const char *evq_status_name(enum evq_status status)
{
    if ((unsigned)status >= EVQ_STATUS_COUNT || statuses[status].name == NULL) {
        return "unknown";
    }
    return statuses[status].name;
}

enum evq_exit evq_status_exit_code(enum evq_status status)
{
    return (unsigned)status < EVQ_STATUS_COUNT ? statuses[status].code : EVQ_EXIT_ERROR;
}

/* U+061C, U+200E, U+200F, U+202A to U+202E and U+2066 to U+2069 change the direction of the text
 * after them, so that a reader would see a message in another order than it was written. */
static bool turns_direction(const unsigned char *from, size_t length)
{
    if (length == 2) {
        return from[0] == 0xd8 && from[1] == 0x9c;
    }
    return length == 3 && from[0] == 0xe2 &&
           ((from[1] == 0x80 && (from[2] == 0x8e || from[2] == 0x8f)) ||
            (from[1] == 0x80 && from[2] >= 0xaa && from[2] <= 0xae) ||
            (from[1] == 0x81 && from[2] >= 0xa6 && from[2] <= 0xa9));
}

char *evq_error_escape(const char *text, size_t text_bytes, char *out, size_t out_bytes)
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;
    size_t at = 0;

    if (out_bytes == 0) {
        return out;
    }
    while (at < text_bytes) {
        const unsigned char *from = (const unsigned char *)text + at;
        size_t length = evq_utf8_sequence(from, text_bytes - at);
        // U+0080 to U+009F are control characters too: terminals take U+009B for ESC [.
        bool plain = length > 0 && !(length == 1 && (from[0] < 0x20 || from[0] == 0x7f)) &&
                     !(length == 2 && from[0] == 0xc2 && from[1] < 0xa0) &&
                     !turns_direction(from, length);
        if (plain) {
            if (used + length >= out_bytes) {
                break;
            }
            memcpy(out + used, from, length);
            used += length;
            at += length;
            continue;
        }
        if (used + 4 >= out_bytes) {
            break;
        }
        out[used++] = '\\';
        out[used++] = 'x';
        out[used++] = digits[from[0] >> 4];
        out[used++] = digits[from[0] & 15];
        at += 1;
    }
    out[used] = '\0';
    return out;
}

/* Length of the path at `at` with its quotes, or 0 if there is no path. */
static size_t path_bytes(const char *at)
{
    if (*at == '/') {
        size_t bytes = strcspn(at, " ");
        return at[bytes - 1] == ':' || at[bytes - 1] == ',' ? bytes - 1 : bytes;
    }
    if (*at != '\'') {
        return 0;
    }
    size_t bytes = 1 + strcspn(at + 1, "'");
    return at[bytes] == '\'' && memchr(at, '/', bytes) != NULL ? bytes + 1 : 0;
}

char *evq_error_cause_first(const char *text, char *out, size_t out_bytes)
{
    char rest[1024];  // The sentence without its paths.
    char paths[1024]; // The paths, with commas between them.
    size_t rest_used = 0;
    size_t paths_used = 0;

    for (size_t at = 0; text[at] != '\0' && rest_used + 1 < sizeof rest;) {
        const bool starts = at == 0 || text[at - 1] == ' ' || text[at - 1] == '(';
        const size_t bytes = starts ? path_bytes(text + at) : 0;
        if (bytes == 0 || paths_used + bytes + 3 > sizeof paths) {
            rest[rest_used++] = text[at++];
            continue;
        }
        if (paths_used > 0) {
            paths[paths_used++] = ',';
            paths[paths_used++] = ' ';
        }
        memcpy(paths + paths_used, text + at, bytes);
        paths_used += bytes;
        at += bytes;
        if (rest_used == 0) {
            at += strspn(text + at, ":, ");
        } else if (rest[rest_used - 1] == ' ') {
            rest_used--; // The mark or space behind the path stays.
        }
    }
    rest[rest_used] = '\0';
    paths[paths_used] = '\0';
    if (rest_used == 0 || paths_used == 0) {
        (void)snprintf(out, out_bytes, "%s", text);
    } else {
        (void)snprintf(out, out_bytes, "%s (%s)", rest, paths);
    }
    return out;
}

size_t evq_error_control(const char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            return i + 1;
        }
    }
    return 0;
}
