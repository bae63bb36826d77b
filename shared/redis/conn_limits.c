#include "shared/redis/conn_limits.h"

#include <stdbool.h>
#include <string.h>

/* One value ended: the arrays that it was the last item of end with it. */
static void end_value(struct evq_conn_limits *limits, size_t *replies)
{
    limits->place = EVQ_LIMITS_TYPE;
    while (limits->depth > 0) {
        limits->items[limits->depth - 1]--;
        if (limits->items[limits->depth - 1] > 0) {
            return;
        }
        limits->depth--;
    }
    (*replies)++;
    limits->reply_bytes = 0;
}

/* The number of a $, * or : line; false when it is none. */
static bool line_number(const struct evq_conn_limits *limits, int64_t *ret_value)
{
    size_t at = 0;
    bool negative = false;
    uint64_t value = 0;

    if (limits->digit_count > 0 && limits->digits[0] == '-') {
        negative = true;
        at = 1;
    }
    if (at == limits->digit_count || limits->digit_count - at > 18) {
        return false; // 19 digits are longer than any length that could be allowed.
    }
    for (; at < limits->digit_count; at++) {
        if (limits->digits[at] < '0' || limits->digits[at] > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(limits->digits[at] - '0');
    }
    *ret_value = negative ? -(int64_t)value : (int64_t)value;
    return true;
}

static enum evq_status open_array(struct evq_conn_limits *limits, int64_t items, size_t *replies,
                                  struct evq_error *err)
{
    if (items < 1) { // Empty, or a nil array.
        end_value(limits, replies);
        return EVQ_OK;
    }
    if (items > EVQ_CONN_REPLY_ITEMS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a reply of %lld items, allowed %d",
                             (long long)items, EVQ_CONN_REPLY_ITEMS_MAX);
    }
    if (limits->depth == EVQ_CONN_REPLY_DEPTH_MAX) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a reply nested deeper than %d arrays",
                             EVQ_CONN_REPLY_DEPTH_MAX);
    }
    limits->items[limits->depth++] = items;
    limits->place = EVQ_LIMITS_TYPE;
    return EVQ_OK;
}

static enum evq_status end_line(struct evq_conn_limits *limits, size_t *replies,
                                struct evq_error *err)
{
    int64_t value = 0;

    if (limits->type != '$' && limits->type != '*') {
        end_value(limits, replies);
        return EVQ_OK;
    }
    if (!line_number(limits, &value) || value < -1) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a reply with a malformed length");
    }
    if (limits->type == '*') {
        return open_array(limits, value, replies, err);
    }
    if (value > (int64_t)EVQ_CONN_REPLY_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a reply string of %lld bytes, allowed %zu",
                             (long long)value, EVQ_CONN_REPLY_BYTES_MAX);
    }
    if (value < 0) { // Nil.
        end_value(limits, replies);
        return EVQ_OK;
    }
    limits->bulk_left = (size_t)value + 2;
    limits->place = EVQ_LIMITS_BULK;
    return EVQ_OK;
}

/* Takes the bytes of one line; *used of them belong to it. */
static enum evq_status feed_line(struct evq_conn_limits *limits, const char *data, size_t bytes,
                                 size_t *used, size_t *replies, struct evq_error *err)
{
    const char *end = memchr(data, '\n', bytes);
    size_t part = end != NULL ? (size_t)(end - data) : bytes;
    bool counted = limits->type == '$' || limits->type == '*' || limits->type == ':';

    *used = end != NULL ? part + 1 : part;
    // The parser ends lines only at CR LF. Any other end would slip past these limits.
    if (end != NULL && (part > 0 ? end[-1] != '\r' : !limits->carriage)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a reply with a line that ends without CR");
    }
    limits->carriage = part > 0 ? data[part - 1] == '\r' : limits->carriage;
    if (counted) {
        size_t room = sizeof limits->digits - limits->digit_count;
        if (part > room) {
            return evq_error_set(err, EVQ_E_CORRUPT, "a reply with a malformed number");
        }
        memcpy(limits->digits + limits->digit_count, data, part);
        limits->digit_count += part;
        if (end != NULL && limits->digit_count > 0 &&
            limits->digits[limits->digit_count - 1] == '\r') {
            limits->digit_count--;
        }
    }
    return end != NULL ? end_line(limits, replies, err) : EVQ_OK;
}

static enum evq_status begin_value(struct evq_conn_limits *limits, char type, struct evq_error *err)
{
    if (type == 0x15) { // A TLS alert: what it makes of a command.
        return evq_error_set(err, EVQ_E_CORRUPT, "what answers speaks TLS: use rediss://");
    }
    if (type == '\0' || strchr("+-:$*", type) == NULL) {
        char text[2] = {type, '\0'};
        char shown[8];
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "what answers is no Redis: a reply begins with '%s'",
                             evq_error_escape(text, 1, shown, sizeof shown));
    }
    limits->type = type;
    limits->digit_count = 0;
    limits->carriage = false;
    limits->place = EVQ_LIMITS_LINE;
    return EVQ_OK;
}

/* The bytes of a string that begins here and lies here to its end, as most do; 0: it is none, or
 * has to be followed piece by piece. */
static size_t whole_string(const char *data, size_t bytes)
{
    const size_t digits_max = 7; // Longer ones are judged by line_number().
    size_t length = 0;
    size_t at = 1;

    if (data[0] != '$') {
        return 0;
    }
    for (; at < bytes && at <= digits_max && data[at] >= '0' && data[at] <= '9'; at++) {
        length = length * 10 + (size_t)(data[at] - '0');
    }
    if (at == 1 || bytes - at < 4 + length || data[at] != '\r' || data[at + 1] != '\n') {
        return 0;
    }
    return at + 4 + length; // Each line end is CR LF.
}

enum evq_status evq_conn_limits_feed(struct evq_conn_limits *limits, const char *data, size_t bytes,
                                     size_t *ret_replies, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (bytes > 0 && status == EVQ_OK) {
        size_t used = 1;
        size_t before = *ret_replies;
        const size_t whole = limits->place == EVQ_LIMITS_TYPE ? whole_string(data, bytes) : 0;
        if (whole > 0) {
            used = whole;
            end_value(limits, ret_replies);
        } else if (limits->place == EVQ_LIMITS_TYPE) {
            status = begin_value(limits, *data, err);
        } else if (limits->place == EVQ_LIMITS_LINE) {
            status = feed_line(limits, data, bytes, &used, ret_replies, err);
        } else {
            used = bytes < limits->bulk_left ? bytes : limits->bulk_left;
            limits->bulk_left -= used;
            if (limits->bulk_left == 0) {
                end_value(limits, ret_replies);
            }
        }
        if (*ret_replies == before) {
            limits->reply_bytes += used;
        }
        if (status == EVQ_OK && limits->reply_bytes > EVQ_CONN_REPLY_BYTES_MAX) {
            status = evq_error_set(err, EVQ_E_LIMIT, "a reply longer than %zu bytes",
                                   EVQ_CONN_REPLY_BYTES_MAX);
        }
        data += used;
        bytes -= used;
    }
    return status;
}
