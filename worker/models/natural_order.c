#include "worker/models/natural_order.h"

#include <string.h>

int evq_natural_order_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t i = 0;
    size_t j = 0;

    while (i < a_bytes && j < b_bytes) {
        size_t a_end = i;
        size_t b_end = j;
        while (a_end < a_bytes && a[a_end] >= '0' && a[a_end] <= '9') {
            a_end++;
        }
        while (b_end < b_bytes && b[b_end] >= '0' && b[b_end] <= '9') {
            b_end++;
        }
        if (a_end == i || b_end == j) {
            if (a[i] != b[j]) {
                return (unsigned char)a[i] < (unsigned char)b[j] ? -1 : 1;
            }
            i++;
            j++;
            continue;
        }
        while (i + 1 < a_end && a[i] == '0') {
            i++;
        }
        while (j + 1 < b_end && b[j] == '0') {
            j++;
        }
        const size_t digits = a_end - i;
        const int order =
            digits != b_end - j ? (digits < b_end - j ? -1 : 1) : memcmp(a + i, b + j, digits);
        if (order != 0) {
            return order;
        }
        i = a_end;
        j = b_end;
    }
    return (i < a_bytes) - (j < b_bytes);
}

static bool is_digit(const char *name, size_t bytes, size_t at)
{
    return at < bytes && name[at] >= '0' && name[at] <= '9';
}

bool evq_natural_order_counts(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t at = 0;

    while (at < a_bytes && at < b_bytes && a[at] == b[at]) {
        at++;
    }
    // Both names begin with the same part of a number.
    const bool within = at > 0 && is_digit(a, a_bytes, at - 1);
    const bool left = is_digit(a, a_bytes, at);
    const bool right = is_digit(b, b_bytes, at);
    return (left && right) || (within && (left || right));
}
