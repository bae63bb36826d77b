#include "tests/faults/proxy_resp.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 16 };

/* The line after the type byte: *ret_next is past its end. False: not all there. */
static bool read_line(const char *data, size_t bytes, size_t at, size_t *ret_end, size_t *ret_next)
{
    const char *found = at < bytes ? memchr(data + at, '\n', bytes - at) : NULL;

    if (found == NULL) {
        return false;
    }
    *ret_next = (size_t)(found - data) + 1;
    *ret_end = found > data + at && found[-1] == '\r' ? *ret_next - 2 : *ret_next - 1;
    return true;
}

static bool read_length(const char *data, size_t at, size_t end, long *ret_length)
{
    char text[24];
    char *stop = NULL;

    if (end <= at || end - at >= sizeof text) {
        return false;
    }
    memcpy(text, data + at, end - at);
    text[end - at] = '\0';
    errno = 0;
    *ret_length = strtol(text, &stop, 10);
    return errno == 0 && *stop == '\0' && *ret_length >= -1 && *ret_length <= 1 << 29;
}

static ssize_t value_at(const char *data, size_t bytes, size_t at, int depth)
{
    size_t end = 0;
    size_t next = 0;
    long length = 0;

    if (at >= bytes) {
        return 0;
    }
    if (depth > DEPTH_MAX || strchr("+-:_,#($=!*~>%", data[at]) == NULL || data[at] == '\0') {
        return -1;
    }
    if (!read_line(data, bytes, at + 1, &end, &next)) {
        return 0;
    }
    if (strchr("+-:_,#(", data[at]) != NULL) {
        return (ssize_t)next;
    }
    if (!read_length(data, at + 1, end, &length)) {
        return -1;
    }
    if (strchr("$=!", data[at]) != NULL) {
        if (length >= 0 && (size_t)length + 2 > bytes - next) {
            return 0;
        }
        return (ssize_t)(length < 0 ? next : next + (size_t)length + 2);
    }
    if (data[at] == '%') {
        length *= 2;
    }
    for (long i = 0; i < length; i++) {
        const ssize_t after = value_at(data, bytes, next, depth + 1);
        if (after <= 0) {
            return after;
        }
        next = (size_t)after;
    }
    return (ssize_t)next;
}

ssize_t proxy_resp_value(const char *data, size_t bytes)
{
    return value_at(data, bytes, 0, 0);
}

static struct proxy_word text_of(struct proxy_word item)
{
    struct proxy_word word = {item.at, 0};
    size_t end = 0;
    size_t next = 0;
    long length = 0;

    if (item.bytes == 0 || !read_line(item.at, item.bytes, 1, &end, &next)) {
        return word;
    }
    if (strchr("+-:", item.at[0]) != NULL) {
        return (struct proxy_word){item.at + 1, end - 1};
    }
    if (item.at[0] == '$' && read_length(item.at, 1, end, &length) && length > 0) {
        return (struct proxy_word){item.at + next, (size_t)length};
    }
    return word;
}

size_t proxy_resp_items(const char *data, size_t bytes, struct proxy_word *items, size_t items_max)
{
    size_t end = 0;
    size_t next = 0;
    long length = 0;

    if (bytes == 0 || data[0] != '*') {
        if (bytes > 0 && items_max > 0) {
            items[0] = (struct proxy_word){data, bytes};
        }
        return bytes > 0;
    }
    if (!read_line(data, bytes, 1, &end, &next) || !read_length(data, 1, end, &length)) {
        return 0;
    }
    for (long i = 0; i < length; i++) {
        const ssize_t after = value_at(data, bytes, next, 1);
        if (after <= 0) {
            return (size_t)i;
        }
        if ((size_t)i < items_max) {
            items[i] = (struct proxy_word){data + next, (size_t)after - next};
        }
        next = (size_t)after;
    }
    return length > 0 ? (size_t)length : 0;
}

size_t proxy_resp_words(const char *data, size_t bytes, struct proxy_word *words, size_t words_max)
{
    const size_t count = proxy_resp_items(data, bytes, words, words_max);

    for (size_t i = 0; i < count && i < words_max; i++) {
        words[i] = text_of(words[i]);
    }
    return count;
}
