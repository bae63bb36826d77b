/* The gzip streams of samples: zlib reads back what was compressed, for every kind of bytes, and
 * they are no larger than those of zlib's fastest level. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "shared/samples/deflate.h"
#include "shared/samples/huffman.h"
#include "tests/fixture/random.h"

#define BYTES_MAX   ((uInt)1 << 20)
#define GZIP_WINDOW (15 + 16)

static uint32_t below(uint64_t *random, uint32_t limit)
{
    return (uint32_t)(fixture_random(random) % limit);
}

/* Compresses all bytes in blocks of block bytes. Returns the size of the stream. */
static size_t compress_all(const uint8_t *data, size_t bytes, size_t block, uint8_t *out)
{
    struct evq_deflate *deflate = evq_deflate_new();
    size_t made = 0;

    assert_non_null(deflate);
    for (size_t at = 0; at < bytes; at += block) {
        const size_t now = bytes - at < block ? bytes - at : block;
        const size_t part = evq_deflate_block(deflate, data + at, now, out + made);
        assert_in_range(part, 0, now + 64); // Bytes without any pattern are stored as they are.
        made += part;
    }
    assert_int_equal(evq_deflate_crc(deflate), crc32(0, data, (uInt)bytes));
    made += evq_deflate_end(deflate, out + made);
    evq_deflate_free(deflate);
    return made;
}

/* Fails unless zlib reads the bytes from the whole stream. */
static void check_stream(const uint8_t *stream, size_t stream_bytes, const uint8_t *data,
                         size_t bytes, const char *what)
{
    uint8_t *back = malloc(bytes + 1);
    z_stream zlib = {.next_in = (uint8_t *)(uintptr_t)stream, // zlib only reads it.
                     .avail_in = (uInt)stream_bytes,
                     .next_out = back,
                     .avail_out = (uInt)bytes + 1};

    assert_non_null(back);
    assert_int_equal(inflateInit2(&zlib, GZIP_WINDOW), Z_OK);
    const int code = inflate(&zlib, Z_FINISH);
    if (code != Z_STREAM_END || zlib.avail_in > 0 || zlib.total_out != bytes ||
        memcmp(back, data, bytes) != 0) {
        fail_msg("%s, %zu bytes: zlib returned %d (%s) after %lu bytes", what, bytes, code,
                 zlib.msg != NULL ? zlib.msg : "no message", zlib.total_out);
    }
    assert_int_equal(inflateEnd(&zlib), Z_OK);
    free(back);
}

static void round_trip(const uint8_t *data, size_t bytes, size_t block, const char *what)
{
    uint8_t *stream = malloc(bytes + EVQ_DEFLATE_OUT_BYTES * (bytes / block + 2));

    assert_non_null(stream);
    check_stream(stream, compress_all(data, bytes, block, stream), data, bytes, what);
    free(stream);
}

/* Random bytes of few or many values, with copies from all distances, so that every length and
 * distance code comes up. */
static void fill(uint64_t *random, uint8_t *data, size_t bytes)
{
    const uint32_t values = 1 + below(random, 256);
    const uint32_t copies = below(random, 4);
    size_t at = 0;

    while (at < bytes) {
        const size_t left = bytes - at;
        size_t length = 1 + below(random, 600);
        length = length < left ? length : left;
        if (at > 0 && below(random, 4) < copies) {
            const size_t most = at < 40000 ? at : 40000;
            const size_t distance = 1 + below(random, (uint32_t)most);
            for (size_t i = 0; i < length; i++) {
                data[at + i] = data[at + i - distance];
            }
        } else {
            for (size_t i = 0; i < length; i++) {
                data[at + i] = (uint8_t)below(random, values);
            }
        }
        at += length;
    }
}

static void deflate_reads_back_random_bytes(void **state)
{
    const uint64_t seed = fixture_seed();
    uint64_t random = seed;
    uint8_t *data = malloc(BYTES_MAX);

    (void)state;
    assert_non_null(data);
    for (int i = 0; i < 400; i++) {
        char what[64];
        const uint32_t most = i % 4 == 0 ? 300000 : i % 4 == 1 ? 70000 : 300;
        const size_t bytes = below(&random, most);
        const size_t block = i % 3 == 0 ? 1 + below(&random, 65535) : 65535;
        (void)snprintf(what, sizeof what, "seed %llu, case %d", (unsigned long long)seed, i);
        fill(&random, data, bytes);
        round_trip(data, bytes, block, what);
    }
    free(data);
}

static void deflate_reads_back_extremes(void **state)
{
    uint8_t *data = calloc(1, BYTES_MAX);

    (void)state;
    assert_non_null(data);
    round_trip(data, 0, 1, "nothing");
    round_trip(data, 1, 1, "one byte");
    round_trip(data, BYTES_MAX, EVQ_DEFLATE_BLOCK_BYTES, "zeros");
    // Byte k comes twice as often as byte k - 1, so codes would have too many bits.
    size_t at = 0;
    for (int k = 0; k < 16; k++) {
        for (int i = 0; i < 1 << k; i++, at++) {
            data[at] = (uint8_t)(k + 16 * (i % 2));
        }
    }
    round_trip(data, at, EVQ_DEFLATE_BLOCK_BYTES, "very uneven bytes");
    free(data);
}

/* Lines as those of a classification. */
static void deflate_makes_samples_as_small_as_zlib(void **state)
{
    uint64_t random = 11;
    char *lines = malloc(BYTES_MAX);
    uint8_t *stream = malloc(BYTES_MAX);
    size_t bytes = 0;
    z_stream zlib = {.next_in = (uint8_t *)lines, .next_out = stream, .avail_out = BYTES_MAX};

    (void)state;
    assert_true(lines != NULL && stream != NULL);
    for (int i = 0; i < 5000; i++) {
        const unsigned label = below(&random, 10);
        bytes += (size_t)snprintf(
            lines + bytes, BYTES_MAX - bytes,
            "{\"id\":\"%d-%08x%08x\",\"scores\":{\"accuracy\":1,\"cross_entropy\":0.%08u},"
            "\"output\":\"%u\",\"target\":\"%u\"}\n",
            i, below(&random, UINT32_MAX), below(&random, UINT32_MAX), below(&random, 99999999),
            label, label);
    }
    zlib.avail_in = (uInt)bytes;
    assert_int_equal(deflateInit2(&zlib, Z_BEST_SPEED, Z_DEFLATED, GZIP_WINDOW, 8, 0), Z_OK);
    assert_int_equal(deflate(&zlib, Z_FINISH), Z_STREAM_END);
    const size_t most = zlib.total_out;
    assert_int_equal(deflateEnd(&zlib), Z_OK);
    const size_t made = compress_all((uint8_t *)lines, bytes, EVQ_DEFLATE_BLOCK_BYTES, stream);
    assert_in_range(made, 1, most);
    free(lines);
    free(stream);
}

/* With such counts the best code has 30 bits for the rarest symbol. */
static void huffman_codes_are_complete_and_short_enough(void **state)
{
    uint32_t counts[32];
    struct evq_huffman_code codes[32];
    uint32_t used = 0;

    (void)state;
    counts[0] = 1;
    counts[1] = 1;
    for (int i = 2; i < 32; i++) {
        counts[i] = counts[i - 1] + counts[i - 2];
    }
    evq_huffman_build(counts, 32, codes);
    for (int i = 0; i < 32; i++) {
        assert_in_range(codes[i].count, 1, EVQ_HUFFMAN_LENGTH_MAX);
        assert_true(i == 0 || codes[i].count <= codes[i - 1].count);
        used += 1U << (EVQ_HUFFMAN_LENGTH_MAX - codes[i].count);
    }
    assert_int_equal(used, 1 << EVQ_HUFFMAN_LENGTH_MAX); // All codes are used.
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deflate_reads_back_random_bytes),
        cmocka_unit_test(deflate_reads_back_extremes),
        cmocka_unit_test(deflate_makes_samples_as_small_as_zlib),
        cmocka_unit_test(huffman_codes_are_complete_and_short_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
