#include "logger/tensorboard/tfevent.h"

#include <string.h>

#define CRC_MASK_DELTA 0xa282ead8u
#define HEADER_BYTES   12 // u64 length, u32 CRC.
#define FOOTER_BYTES   4

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };

uint32_t evq_tfevent_crc32c(const void *data, size_t bytes)
{
    static const uint32_t nibbles[16] = {
        // crc of each 4-bit value, so that a byte takes two steps and the table stays readable.
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const uint8_t *at = data;
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        crc = (crc >> 4) ^ nibbles[crc & 15];
        crc = (crc >> 4) ^ nibbles[crc & 15];
    }
    return ~crc;
}

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = evq_tfevent_crc32c(data, bytes);

    return ((crc >> 15) | (crc << 17)) + CRC_MASK_DELTA;
}

static void put_little(struct evq_buffer *out, uint64_t value, size_t bytes)
{
    uint8_t little[8];

    for (size_t i = 0; i < bytes; i++) {
        little[i] = (uint8_t)(value >> (8 * i));
    }
    evq_buffer_append(out, little, bytes);
}

static size_t varint_bytes(uint64_t value)
{
    size_t bytes = 1;

    for (; value > 0x7f; value >>= 7) {
        bytes++;
    }
    return bytes;
}

static void put_varint(struct evq_buffer *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t count = 0;

    do {
        bytes[count] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
        count++;
    } while (value != 0);
    evq_buffer_append(out, bytes, count);
}

/* The size of a field with so many bytes: its key (for numbers below 16), length and bytes. */
static size_t field_bytes(size_t bytes)
{
    return 1 + varint_bytes(bytes) + bytes;
}

static void put_key(struct evq_buffer *out, uint32_t field, uint32_t wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

/* Appends the key and the length of a field whose bytes follow. */
static void put_head(struct evq_buffer *out, uint32_t field, size_t bytes)
{
    put_key(out, field, WIRE_BYTES);
    put_varint(out, bytes);
}

static void put_bytes(struct evq_buffer *out, uint32_t field, const void *data, size_t bytes)
{
    put_head(out, field, bytes);
    evq_buffer_append(out, data, bytes);
}

static void put_float(struct evq_buffer *out, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    put_little(out, bits, sizeof(bits));
}

/* Returns the size of an event with one further field of so many bytes. */
static size_t event_bytes(int64_t step, size_t bytes)
{
    return 1 + 8 + (step != 0 ? 1 + varint_bytes((uint64_t)step) : 0) + field_bytes(bytes);
}

static void put_event_head(struct evq_buffer *out, double wall_seconds, int64_t step)
{
    uint64_t bits;

    memcpy(&bits, &wall_seconds, sizeof(bits));
    put_key(out, EVENT_WALL_TIME, WIRE_FIXED64);
    put_little(out, bits, sizeof(bits));
    if (step != 0) { // Proto3 leaves zero out.
        put_key(out, EVENT_STEP, WIRE_VARINT);
        put_varint(out, (uint64_t)step);
    }
}

static void record_begin(struct evq_buffer *out, size_t bytes)
{
    uint8_t length[8];

    for (size_t i = 0; i < sizeof(length); i++) {
        length[i] = (uint8_t)((uint64_t)bytes >> (8 * i));
    }
    evq_buffer_append(out, length, sizeof(length));
    put_little(out, masked_crc(length, sizeof(length)), 4);
}

/* The record's bytes are the last of out. */
static void record_end(struct evq_buffer *out, size_t bytes)
{
    if (!out->failed) {
        put_little(out, masked_crc(out->data + out->bytes - bytes, bytes), 4);
    }
}

void evq_tfevent_version(struct evq_buffer *out, double wall_seconds)
{
    static const char version[] = "brain.Event:2";
    const size_t bytes = event_bytes(0, sizeof(version) - 1);

    record_begin(out, bytes);
    put_event_head(out, wall_seconds, 0);
    put_bytes(out, EVENT_FILE_VERSION, version, sizeof(version) - 1);
    record_end(out, bytes);
}

void evq_tfevent_scalar(struct evq_buffer *out, double wall_seconds, int64_t step, const char *tag,
                        float value)
{
    const size_t tag_bytes = strlen(tag);
    // From the inside out, since each message begins with its length.
    const size_t body = field_bytes(tag_bytes) + 1 + sizeof(float);
    const size_t summary = field_bytes(body);
    const size_t event = event_bytes(step, summary);

    record_begin(out, event);
    put_event_head(out, wall_seconds, step);
    put_head(out, EVENT_SUMMARY, summary);
    put_head(out, SUMMARY_VALUE, body);
    put_bytes(out, VALUE_TAG, tag, tag_bytes);
    put_key(out, VALUE_SIMPLE, WIRE_FIXED32);
    put_float(out, value);
    record_end(out, event);
}

/* ---- reading back ---- */

struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

struct field {
    uint32_t number;
    uint32_t wire;
    uint64_t value; // VARINT, FIXED.
    struct cursor bytes;
};

static uint64_t get_little(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = bytes; i > 0; i--) {
        value = value << 8 | data[i - 1];
    }
    return value;
}

static bool get_varint(struct cursor *cursor, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (uint32_t shift = 0; shift < 64 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *ret_value = value;
            return true;
        }
    }
    return false;
}

/* false: the bytes end inside the field or its wire type is unknown. */
static bool get_field(struct cursor *cursor, struct field *ret_field)
{
    uint64_t key;
    uint64_t length = 0;

    if (!get_varint(cursor, &key) || key >> 3 == 0 || key > UINT32_MAX) {
        return false;
    }
    ret_field->number = (uint32_t)(key >> 3);
    ret_field->wire = (uint32_t)(key & 7);
    switch (ret_field->wire) {
    case WIRE_VARINT:
        return get_varint(cursor, &ret_field->value);
    case WIRE_FIXED64:
        length = 8;
        break;
    case WIRE_FIXED32:
        length = 4;
        break;
    case WIRE_BYTES:
        if (!get_varint(cursor, &length)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (length > (uint64_t)(cursor->end - cursor->at)) {
        return false;
    }
    ret_field->bytes = (struct cursor){cursor->at, cursor->at + length};
    if (ret_field->wire != WIRE_BYTES) {
        ret_field->value = get_little(cursor->at, (size_t)length);
    }
    cursor->at += length;
    return true;
}

static float float_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value;

    memcpy(&value, &low, sizeof(value));
    return value;
}

static bool read_value(struct cursor cursor, struct evq_tfevent *event)
{
    struct field field;

    while (cursor.at < cursor.end) {
        if (!get_field(&cursor, &field)) {
            return false;
        }
        size_t length = field.wire == WIRE_BYTES ? (size_t)(field.bytes.end - field.bytes.at) : 0;
        if (field.number == VALUE_TAG && field.wire == WIRE_BYTES) {
            if (length >= sizeof(event->tag)) {
                return false;
            }
            memcpy(event->tag, field.bytes.at, length);
            event->tag[length] = '\0';
        } else if (field.number == VALUE_SIMPLE && field.wire == WIRE_FIXED32) {
            event->value = float_of(field.value);
        }
    }
    return true;
}

static bool read_event(struct cursor cursor, struct evq_tfevent *event)
{
    struct field field;
    struct field inner;

    while (cursor.at < cursor.end) {
        if (!get_field(&cursor, &field)) {
            return false;
        }
        if (field.number == EVENT_WALL_TIME && field.wire == WIRE_FIXED64) {
            memcpy(&event->wall_seconds, &field.value, sizeof(event->wall_seconds));
        } else if (field.number == EVENT_STEP && field.wire == WIRE_VARINT) {
            event->step = (int64_t)field.value;
        } else if (field.number == EVENT_SUMMARY && field.wire == WIRE_BYTES) {
            struct cursor summary = field.bytes;
            while (summary.at < summary.end) {
                if (!get_field(&summary, &inner)) {
                    return false;
                }
                if (inner.number == SUMMARY_VALUE && inner.wire == WIRE_BYTES &&
                    !read_value(inner.bytes, event)) {
                    return false;
                }
            }
        }
    }
    return true;
}

enum evq_status evq_tfevent_read(const uint8_t *data, size_t bytes, struct evq_tfevent *ret_event,
                                 size_t *ret_bytes, struct evq_error *err)
{
    if (bytes < HEADER_BYTES) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "event record cut after %zu bytes", bytes);
    }
    uint64_t length = get_little(data, 8);
    if (get_little(data + 8, 4) != masked_crc(data, 8)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "checksum of an event record's length is wrong");
    }
    if (length > EVQ_TFEVENT_RECORD_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_CORRUPT, "event record of %llu bytes, at most %u expected",
                             (unsigned long long)length, EVQ_TFEVENT_RECORD_BYTES_MAX);
    }
    if (bytes - HEADER_BYTES < length + FOOTER_BYTES) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "event record cut after %zu bytes", bytes);
    }
    const uint8_t *body = data + HEADER_BYTES;
    if (get_little(body + length, FOOTER_BYTES) != masked_crc(body, (size_t)length)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "checksum of an event record is wrong");
    }
    memset(ret_event, 0, sizeof(*ret_event));
    if (!read_event((struct cursor){body, body + length}, ret_event)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "an event record is not a protobuf Event");
    }
    *ret_bytes = HEADER_BYTES + (size_t)length + FOOTER_BYTES;
    return EVQ_OK;
}
