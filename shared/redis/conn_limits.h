/*
 * Watches the bytes of replies before the parser sees them, and bounds what they declare: a length
 * of a few digits could otherwise ask for gigabytes. Knows where each reply ends. Not for sharing
 * between threads.
 */
#ifndef EVQ_SHARED_REDIS_CONN_LIMITS_H
#define EVQ_SHARED_REDIS_CONN_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_CONN_REPLY_BYTES_MAX ((size_t)64 << 20) // One reply with all it holds.
#define EVQ_CONN_REPLY_ITEMS_MAX (1 << 20)          // One array.
#define EVQ_CONN_REPLY_DEPTH_MAX 7                  // Arrays within arrays.

struct evq_conn_limits { // All zero at first.
    enum { EVQ_LIMITS_TYPE, EVQ_LIMITS_LINE, EVQ_LIMITS_BULK } place;
    char type;       // Of the line under way.
    char digits[24]; // Its text so far, where it is a number.
    size_t digit_count;
    bool carriage;                           // The line's last byte so far was a CR.
    size_t bulk_left;                        // Bytes of a string still to come, with its CR LF.
    int64_t items[EVQ_CONN_REPLY_DEPTH_MAX]; // Items still to come, of each open array.
    uint32_t depth;
    size_t reply_bytes; // Of the reply under way.
};

/*
 * Follows bytes more; *ret_replies grows by the replies that end in them. EVQ_E_CORRUPT: not RESP2,
 * or nested too deeply; EVQ_E_LIMIT: too large. The stream is of no more use then.
 */
enum evq_status evq_conn_limits_feed(struct evq_conn_limits *limits, const char *data, size_t bytes,
                                     size_t *ret_replies, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
