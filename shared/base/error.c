#include "shared/base/error.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/buffer.h"

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
    // Built aside: an argument may be the message that is being replaced.
    char message[sizeof err->message];
    va_list args;
    va_start(args, format);
    if (vsnprintf(message, sizeof message, format, args) < 0) {
        message[0] = '\0';
    }
    va_end(args);
    err->status = status;
    memcpy(err->message, message, sizeof message);
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
    message[used] = '\0';
    memcpy(err->message, message, sizeof message);
    return err->status;
}

const char *evq_status_name(enum evq_status status)
{
    if ((unsigned)status >= EVQ_STATUS_COUNT || statuses[status].name == NULL) {
        return "unknown";
    }
    return statuses[status].name;
}

enum evq_exit evq_status_exit(enum evq_status status)
{
    return (unsigned)status < EVQ_STATUS_COUNT ? statuses[status].code : EVQ_EXIT_ERROR;
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
        size_t length = evq_buffer_utf8(from, text_bytes - at);
        // U+0080 to U+009F are control characters too: terminals take U+009B for ESC [.
        bool plain = length > 0 && !(length == 1 && (from[0] < 0x20 || from[0] == 0x7f)) &&
                     !(length == 2 && from[0] == 0xc2 && from[1] < 0xa0);
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

size_t evq_error_control(const char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            return i + 1;
        }
    }
    return 0;
}
