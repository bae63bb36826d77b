#include "shared/samples/deflate.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "shared/samples/huffman.h"

#define HASH_BITS      12
#define MATCH_MIN      5 // Shorter ones would replace digits, which need fewer bits.
#define MATCH_MAX      258
#define DISTANCE_MAX   32768
#define SEARCH_BYTES   8 // A search reads so many.
#define STEP_SHIFT     5 // After 32 bytes without a match, every second place is searched.
#define LITERALS       286
#define DISTANCES      30
#define END_OF_BLOCK   256
#define FIRST_LENGTH   257
#define LONGEST_LENGTH 285
#define HEADER_BITS    (3 + 14 + 19 * 3 + (LITERALS + DISTANCES) * 4)
#define STORED_BITS    (3 + 7 + 32)

struct sequence { // Bytes as they are, and then a copy of earlier ones.
    uint16_t literals;
    uint16_t length;   // Of the copy; 0: there is none.
    uint16_t distance; // Less 1.
};

struct symbol { // A length or a distance: a symbol, and bits behind it.
    uint32_t symbol;
    uint32_t extra;
    int extra_bits;
};

struct bit_writer {
    uint64_t bits; // Not written yet.
    int count;     // Of them.
    uint8_t *out;
};

struct evq_deflate {
    struct bit_writer writer;
    bool begun;
    uint32_t crc;
    uint32_t bytes;
    uint16_t places[1 << HASH_BITS]; // Where bytes with this hash were last, plus 1; 0: nowhere.
    size_t sequence_count;
    struct sequence sequences[EVQ_DEFLATE_BLOCK_BYTES / MATCH_MIN + 1];
    uint32_t literal_counts[LITERALS];
    uint32_t distance_counts[DISTANCES];
    struct evq_huffman_code literals[LITERALS];
    struct evq_huffman_code distances[DISTANCES];
    struct symbol lengths[MATCH_MAX + 1];
};

/* Each power of two above the first has 2^parts symbols, which share its values equally. */
static struct symbol split(uint32_t value, int parts)
{
    if (value >> (parts + 1) == 0) {
        return (struct symbol){.symbol = value};
    }
    const int power = 31 - __builtin_clz(value);
    const int bits = power - parts;
    return (struct symbol){.symbol = ((uint32_t)bits << parts) + (value >> bits),
                           .extra = value & ((1U << bits) - 1),
                           .extra_bits = bits};
}

static struct symbol distance_symbol(uint32_t distance_less_1)
{
    return split(distance_less_1, 1);
}

struct evq_deflate *evq_deflate_new(void)
{
    struct evq_deflate *deflate = calloc(1, sizeof *deflate);

    for (uint32_t length = MATCH_MIN; deflate != NULL && length < MATCH_MAX; length++) {
        deflate->lengths[length] = split(length - 3, 2);
        deflate->lengths[length].symbol += FIRST_LENGTH;
    }
    if (deflate != NULL) {
        deflate->lengths[MATCH_MAX].symbol = LONGEST_LENGTH;
    }
    return deflate;
}

void evq_deflate_free(struct evq_deflate *deflate)
{
    free(deflate);
}

static uint64_t load(const uint8_t *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof value);
    return le64toh(value);
}

/* The bytes that the shortest match has. */
static uint64_t least_bytes(uint64_t value)
{
    return value << (64 - 8 * MATCH_MIN);
}

static uint32_t hash_of(uint64_t value)
{
    return (uint32_t)(least_bytes(value) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - HASH_BITS));
}

/* How many bytes from a and b on are equal, at most MATCH_MAX. b is the later one. */
static size_t match_length(const uint8_t *a, const uint8_t *b, const uint8_t *end)
{
    const size_t most = (size_t)(end - b) < MATCH_MAX ? (size_t)(end - b) : MATCH_MAX;
    size_t length = 0;

    while (length + 8 <= most) {
        const uint64_t differ = load(a + length) ^ load(b + length);
        if (differ != 0) {
            return length + (size_t)__builtin_ctzll(differ) / 8;
        }
        length += 8;
    }
    while (length < most && a[length] == b[length]) {
        length++;
    }
    return length;
}

/* Adds a sequence and counts its symbols. from: its first literal. */
static void add_sequence(struct evq_deflate *deflate, const uint8_t *from, size_t literals,
                         size_t length, size_t distance)
{
    for (size_t i = 0; i < literals; i++) {
        deflate->literal_counts[from[i]]++;
    }
    if (length > 0) {
        deflate->literal_counts[deflate->lengths[length].symbol]++;
        deflate->distance_counts[distance_symbol((uint32_t)distance - 1).symbol]++;
    }
    deflate->sequences[deflate->sequence_count++] = (struct sequence){
        .literals = (uint16_t)literals,
        .length = (uint16_t)length,
        .distance = (uint16_t)(distance - (length > 0)),
    };
}

/* Cuts a block into sequences. Takes the first match that it finds, and extends it to both sides.
 */
static void find_sequences(struct evq_deflate *deflate, const uint8_t *data, size_t bytes)
{
    const uint8_t *end = data + bytes;
    const uint8_t *open = data; // What comes from here on is in no sequence yet.
    const uint8_t *at = data;

    memset(deflate->places, 0, sizeof deflate->places);
    memset(deflate->literal_counts, 0, sizeof deflate->literal_counts);
    memset(deflate->distance_counts, 0, sizeof deflate->distance_counts);
    deflate->sequence_count = 0;
    while (end - at >= SEARCH_BYTES) { // A step may end behind the end.
        const uint64_t here = load(at);
        uint16_t *place = &deflate->places[hash_of(here)];
        const uint8_t *before = data + *place - 1;
        const bool known = *place > 0 && at - before <= DISTANCE_MAX;
        *place = (uint16_t)(at - data + 1);
        if (!known || least_bytes(load(before) ^ here) != 0) {
            at += 1 + ((at - open) >> STEP_SHIFT);
            continue;
        }
        size_t length = match_length(before, at, end);
        while (at > open && before > data && at[-1] == before[-1] && length < MATCH_MAX) {
            at--;
            before--;
            length++;
        }
        add_sequence(deflate, open, (size_t)(at - open), length, (size_t)(at - before));
        at += length;
        open = at;
    }
    add_sequence(deflate, open, (size_t)(end - open), 0, 0);
    deflate->literal_counts[END_OF_BLOCK] = 1;
}

static inline void put(struct bit_writer *writer, uint64_t bits, int count)
{
    writer->bits |= bits << writer->count;
    writer->count += count;
}

/* Writes the bytes that are full. 7 bits may wait then. Until the next call, 56 bits may be put. */
static inline void flush(struct bit_writer *writer)
{
    const uint64_t bits = htole64(writer->bits);

    memcpy(writer->out, &bits, sizeof bits); // There is room behind the output.
    writer->out += writer->count / 8;
    writer->bits >>= writer->count & ~7;
    writer->count &= 7;
}

static inline void put_code(struct bit_writer *writer, struct evq_huffman_code code)
{
    put(writer, code.bits, code.count);
}

/* The number of bits that the sequences need with the codes. */
static size_t bits_of(const uint32_t *counts, size_t symbols, const struct evq_huffman_code *codes)
{
    size_t bits = 0;

    for (size_t i = 0; i < symbols; i++) {
        const size_t extra = i < FIRST_LENGTH + 8 || i == LONGEST_LENGTH ? 0 : (i - 261) / 4;
        bits += counts[i] * (codes[i].count + extra);
    }
    return bits;
}

static size_t distance_extra_bits(const uint32_t *counts)
{
    size_t bits = 0;

    for (size_t i = 4; i < DISTANCES; i++) {
        bits += counts[i] * (i / 2 - 1);
    }
    return bits;
}

/* Writes a block as it is: it is not the last one, and not compressed. */
static void put_stored(struct bit_writer *writer, const uint8_t *data, size_t bytes)
{
    put(writer, 0, 3);
    put(writer, 0, (8 - writer->count % 8) % 8);
    flush(writer);
    put(writer, bytes | (~bytes & 0xffff) << 16, 32);
    flush(writer);
    memcpy(writer->out, data, bytes);
    writer->out += bytes;
}

static void put_lengths(struct bit_writer *writer, const struct evq_huffman_code *codes,
                        size_t symbols)
{
    for (size_t i = 0; i < symbols; i++) {
        for (int bit = 3; bit >= 0; bit--) { // A code begins with its highest bit.
            put(writer, codes[i].count >> bit & 1, 1);
        }
        flush(writer);
    }
}

/* Writes the lengths of all codes with 4 bits each, which costs 150 bytes for a block. */
static void put_codes(const struct evq_deflate *deflate, struct bit_writer *writer)
{
    put(writer, 2 << 1, 3); // Not the last block; own codes.
    put(writer, LITERALS - 257, 5);
    put(writer, DISTANCES - 1, 5);
    put(writer, 19 - 4, 4);
    flush(writer);
    for (int i = 0; i < 19; i++) { // The first three are codes for repeated lengths.
        put(writer, i < 3 ? 0 : 4, 3);
        flush(writer);
    }
    put_lengths(writer, deflate->literals, LITERALS);
    put_lengths(writer, deflate->distances, DISTANCES);
}

static const uint8_t *put_literals(struct bit_writer *writer, const struct evq_huffman_code *codes,
                                   const uint8_t *data, size_t count)
{
    for (; count >= 4; count -= 4, data += 4) { // Four codes have at most 48 bits.
        put_code(writer, codes[data[0]]);
        put_code(writer, codes[data[1]]);
        put_code(writer, codes[data[2]]);
        put_code(writer, codes[data[3]]);
        flush(writer);
    }
    for (; count > 0; count--, data++) {
        put_code(writer, codes[*data]);
    }
    flush(writer);
    return data;
}

static void put_sequences(const struct evq_deflate *deflate, struct bit_writer *to,
                          const uint8_t *data)
{
    struct bit_writer writer = *to; // A copy stays in registers.

    for (size_t i = 0; i < deflate->sequence_count; i++) {
        const struct sequence *sequence = &deflate->sequences[i];
        data = put_literals(&writer, deflate->literals, data, sequence->literals);
        if (sequence->length > 0) {
            const struct symbol *length = &deflate->lengths[sequence->length];
            const struct symbol distance = distance_symbol(sequence->distance);
            put_code(&writer, deflate->literals[length->symbol]);
            put(&writer, length->extra, length->extra_bits);
            put_code(&writer, deflate->distances[distance.symbol]);
            put(&writer, distance.extra, distance.extra_bits);
            flush(&writer); // These were at most 12 + 5 + 12 + 13 bits.
            data += sequence->length;
        }
    }
    put_code(&writer, deflate->literals[END_OF_BLOCK]);
    flush(&writer);
    *to = writer;
}

/* Writes the first bytes of the stream: gzip, deflate, no flags, no time, fastest level, Unix. */
static struct bit_writer *begin(struct evq_deflate *deflate, uint8_t *out)
{
    static const uint8_t head[10] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3};

    deflate->writer.out = out;
    if (!deflate->begun) {
        deflate->begun = true;
        memcpy(out, head, sizeof head);
        deflate->writer.out += sizeof head;
    }
    return &deflate->writer;
}

size_t evq_deflate_block(struct evq_deflate *deflate, const void *data, size_t bytes,
                         uint8_t out[EVQ_DEFLATE_OUT_BYTES])
{
    struct bit_writer *writer = begin(deflate, out);

    assert(bytes <= EVQ_DEFLATE_BLOCK_BYTES);
    deflate->crc = (uint32_t)crc32(deflate->crc, data, (uInt)bytes);
    deflate->bytes += (uint32_t)bytes;
    find_sequences(deflate, data, bytes);
    evq_huffman_build(deflate->literal_counts, LITERALS, deflate->literals);
    evq_huffman_build(deflate->distance_counts, DISTANCES, deflate->distances);
    const size_t bits = HEADER_BITS + distance_extra_bits(deflate->distance_counts) +
                        bits_of(deflate->literal_counts, LITERALS, deflate->literals) +
                        bits_of(deflate->distance_counts, DISTANCES, deflate->distances);
    if (bits < STORED_BITS + 8 * bytes) {
        put_codes(deflate, writer);
        put_sequences(deflate, writer, data);
    } else {
        put_stored(writer, data, bytes);
    }
    return (size_t)(writer->out - out);
}

size_t evq_deflate_end(struct evq_deflate *deflate, uint8_t out[EVQ_DEFLATE_OUT_BYTES])
{
    struct bit_writer *writer = begin(deflate, out);

    put(writer, 1 | 1 << 1, 10); // An empty last block with the standard's own codes.
    put(writer, 0, (8 - writer->count % 8) % 8);
    flush(writer);
    put(writer, deflate->crc, 32);
    flush(writer);
    put(writer, deflate->bytes, 32);
    flush(writer);
    return (size_t)(writer->out - out);
}

uint32_t evq_deflate_crc(const struct evq_deflate *deflate)
{
    return deflate->crc;
}
