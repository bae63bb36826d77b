/*
 * The scan, declared in codec.h: reads only type bytes, with its own stack, and allocates nothing.
 * Five bytes such as dd ff ff ff ff declare an array for which msgpack-c would allocate gigabytes.
 */
#include "shared/queue/codec.h"

enum scan_kind { SCAN_ATOM, SCAN_ARRAY, SCAN_MAP, SCAN_BAD };

struct scan_head {
    enum scan_kind kind;
    // Size of the length after the type byte; 0: the length is in the type byte.
    uint8_t length_bytes;
    // Payload bytes (atom) or entries (container); added to the length if length_bytes is not 0.
    uint32_t fixed;
};

static struct scan_head head_of(uint8_t type)
{
    static const struct scan_head table[32] = {
        [0x00] = {SCAN_ATOM, 0, 0},  // c0 nil
        [0x01] = {SCAN_BAD, 0, 0},   // c1 never used
        [0x02] = {SCAN_ATOM, 0, 0},  // c2 false
        [0x03] = {SCAN_ATOM, 0, 0},  // c3 true
        [0x04] = {SCAN_ATOM, 1, 0},  // c4 bin 8
        [0x05] = {SCAN_ATOM, 2, 0},  // c5 bin 16
        [0x06] = {SCAN_ATOM, 4, 0},  // c6 bin 32
        [0x07] = {SCAN_ATOM, 1, 1},  // c7 ext 8
        [0x08] = {SCAN_ATOM, 2, 1},  // c8 ext 16
        [0x09] = {SCAN_ATOM, 4, 1},  // c9 ext 32
        [0x0a] = {SCAN_ATOM, 0, 4},  // ca float 32
        [0x0b] = {SCAN_ATOM, 0, 8},  // cb float 64
        [0x0c] = {SCAN_ATOM, 0, 1},  // cc uint 8
        [0x0d] = {SCAN_ATOM, 0, 2},  // cd uint 16
        [0x0e] = {SCAN_ATOM, 0, 4},  // ce uint 32
        [0x0f] = {SCAN_ATOM, 0, 8},  // cf uint 64
        [0x10] = {SCAN_ATOM, 0, 1},  // d0 int 8
        [0x11] = {SCAN_ATOM, 0, 2},  // d1 int 16
        [0x12] = {SCAN_ATOM, 0, 4},  // d2 int 32
        [0x13] = {SCAN_ATOM, 0, 8},  // d3 int 64
        [0x14] = {SCAN_ATOM, 0, 2},  // d4 fixext 1
        [0x15] = {SCAN_ATOM, 0, 3},  // d5 fixext 2
        [0x16] = {SCAN_ATOM, 0, 5},  // d6 fixext 4
        [0x17] = {SCAN_ATOM, 0, 9},  // d7 fixext 8
        [0x18] = {SCAN_ATOM, 0, 17}, // d8 fixext 16
        [0x19] = {SCAN_ATOM, 1, 0},  // d9 str 8
        [0x1a] = {SCAN_ATOM, 2, 0},  // da str 16
        [0x1b] = {SCAN_ATOM, 4, 0},  // db str 32
        [0x1c] = {SCAN_ARRAY, 2, 0}, // dc array 16
        [0x1d] = {SCAN_ARRAY, 4, 0}, // dd array 32
        [0x1e] = {SCAN_MAP, 2, 0},   // de map 16
        [0x1f] = {SCAN_MAP, 4, 0},   // df map 32
    };
    if (type <= 0x7f || type >= 0xe0) {
        return (struct scan_head){SCAN_ATOM, 0, 0}; // A small integer.
    }
    if (type <= 0x8f) {
        return (struct scan_head){SCAN_MAP, 0, type & 0x0f};
    }
    if (type <= 0x9f) {
        return (struct scan_head){SCAN_ARRAY, 0, type & 0x0f};
    }
    if (type <= 0xbf) {
        return (struct scan_head){SCAN_ATOM, 0, type & 0x1f};
    }
    return table[type - 0xc0];
}

/* Reads one object's head at *at and checks it against the remaining bytes. Moves *at past the head
 * and an atom's payload. */
static enum evq_status scan_one(const uint8_t *data, size_t bytes, size_t *at,
                                uint64_t *ret_children, bool *ret_container, struct evq_error *err)
{
    size_t start = *at;
    if (start >= bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "msgpack ends at byte %zu within an object",
                             start);
    }
    struct scan_head head = head_of(data[start]);
    if (head.kind == SCAN_BAD) {
        return evq_error_set(err, EVQ_E_CORRUPT, "msgpack byte 0xc1 at %zu is no type", start);
    }
    size_t left = bytes - start - 1;
    if (head.length_bytes > left) {
        return evq_error_set(err, EVQ_E_CORRUPT, "msgpack ends within the length at byte %zu",
                             start);
    }
    uint64_t length = 0;
    for (size_t i = 0; i < head.length_bytes; i++) {
        length = length << 8 | data[start + 1 + i];
    }
    length += head.fixed;
    left -= head.length_bytes;
    uint64_t needed =
        head.kind == SCAN_MAP ? length * 2 : length; // Every entry takes a byte at least.
    if (needed > left) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "msgpack object at byte %zu declares %ju bytes or entries, %zu bytes are left", start,
            (uintmax_t)needed, left);
    }
    *at = start + 1 + head.length_bytes + (head.kind == SCAN_ATOM ? (size_t)length : 0);
    *ret_container = head.kind != SCAN_ATOM;
    *ret_children = head.kind == SCAN_ATOM ? 0 : needed;
    return EVQ_OK;
}

enum evq_status evq_codec_scan(const uint8_t *data, size_t bytes, size_t bytes_max,
                               struct evq_error *err)
{
    uint64_t left[EVQ_CODEC_DEPTH_MAX]; // Objects still to come at each depth.
    size_t depth = 0;
    uint64_t nodes = 1;
    size_t at = 0;

    if (bytes > bytes_max) {
        return evq_error_set(err, EVQ_E_CORRUPT, "msgpack of %zu bytes, allowed %zu", bytes,
                             bytes_max);
    }
    do {
        uint64_t children = 0;
        bool container = false;
        size_t start = at;
        enum evq_status status = scan_one(data, bytes, &at, &children, &container, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (depth > 0) {
            left[depth - 1]--;
        }
        if (container) {
            nodes += children;
            if (nodes > EVQ_CODEC_NODES_MAX) {
                return evq_error_set(err, EVQ_E_CORRUPT,
                                     "msgpack container at byte %zu makes more than %d objects",
                                     start, EVQ_CODEC_NODES_MAX);
            }
            if (depth == EVQ_CODEC_DEPTH_MAX) {
                return evq_error_set(err, EVQ_E_CORRUPT, "msgpack nests deeper than %d at byte %zu",
                                     EVQ_CODEC_DEPTH_MAX, start);
            }
            left[depth++] = children;
        }
        while (depth > 0 && left[depth - 1] == 0) {
            depth--;
        }
    } while (depth > 0);
    if (at != bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "msgpack has %zu bytes after its object",
                             bytes - at);
    }
    return EVQ_OK;
}
