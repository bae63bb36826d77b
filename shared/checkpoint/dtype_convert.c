#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "shared/checkpoint/dtype.h"

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void convert_f16_plain(const uint8_t *source, size_t count, float *out)
{
    const float scale = 0x1p112f; // 2^(127 - 15): moves the exponent, subnormals too.

    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, source + 2 * i, sizeof(half));
        uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
        uint32_t sign = (uint32_t)(half & 0x8000) << 16;
        float scaled = from_bits(magnitude) * scale;
        uint32_t bits;
        memcpy(&bits, &scaled, sizeof(bits));
        bits = (half & 0x7fff) >= 0x7c00 ? magnitude | 0x7f800000 : bits; // Infinity, NaN.
        out[i] = from_bits(bits | sign);
    }
}

#if defined(__x86_64__)
/* The same values with the F16C instruction, which server processors have had since 2012. */
__attribute__((target("avx,f16c"))) static void convert_f16_f16c(const uint8_t *source,
                                                                 size_t count, float *out)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m128i halves;
        memcpy(&halves, source + 2 * i, sizeof(halves));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
    convert_f16_plain(source + 2 * i, count - i, out + i);
}

/* Asks the processor itself: clang 14's __builtin_cpu_supports() does not know "f16c", and zig's
 * runtime answers no to everything. */
static bool has_f16c(void)
{
    const unsigned int wanted = bit_OSXSAVE | bit_AVX | bit_F16C;
    const unsigned int ymm_saved = 0x06; // The kernel saves these registers between threads.
    unsigned int a = 0;
    unsigned int b = 0;
    unsigned int c = 0;
    unsigned int d = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & wanted) != wanted) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & ymm_saved) == ymm_saved;
}
#endif

static void convert_f16(const uint8_t *source, size_t count, float *out)
{
#if defined(__x86_64__)
    if (has_f16c()) {
        convert_f16_f16c(source, count, out);
        return;
    }
#endif
    convert_f16_plain(source, count, out);
}

static void convert_bf16(const uint8_t *source, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t upper;
        memcpy(&upper, source + 2 * i, sizeof(upper));
        out[i] = from_bits((uint32_t)upper << 16);
    }
}

/* E4M3 as in "e4m3fn": bias 7, no infinity, S.1111.111 is NaN. */
static float e4m3_value(uint8_t byte)
{
    uint32_t exponent = (byte >> 3) & 15;
    uint32_t mantissa = byte & 7;
    float magnitude;

    if (exponent == 15 && mantissa == 7) {
        magnitude = from_bits(0x7fc00000);
    } else if (exponent == 0) {
        magnitude = (float)mantissa * 0x1p-9f;
    } else {
        magnitude = from_bits((exponent + 120) << 23 | mantissa << 20);
    }
    return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

static void convert_f8_e4m3(const uint8_t *source, size_t count, float *out)
{
    float table[256];

    for (unsigned byte = 0; byte < 256; byte++) {
        table[byte] = e4m3_value((uint8_t)byte);
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = table[source[i]];
    }
}

/* E5M2 is the upper byte of a half. */
static void convert_f8_e5m2(const uint8_t *source, size_t count, float *out)
{
    float table[256];

    for (unsigned byte = 0; byte < 256; byte++) {
        const uint8_t half[2] = {0, (uint8_t)byte};
        convert_f16(half, 1, &table[byte]);
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = table[source[i]];
    }
}

#define CONVERT_PLAIN(function, type)                                                              \
    static void function(const uint8_t *source, size_t count, float *out)                          \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
            memcpy(&value, source + i * sizeof(value), sizeof(value));                             \
            out[i] = (float)value;                                                                 \
        }                                                                                          \
    }

CONVERT_PLAIN(convert_f64, double)
CONVERT_PLAIN(convert_u8, uint8_t)
CONVERT_PLAIN(convert_i8, int8_t)
CONVERT_PLAIN(convert_u16, uint16_t)
CONVERT_PLAIN(convert_i16, int16_t)
CONVERT_PLAIN(convert_u32, uint32_t)
CONVERT_PLAIN(convert_i32, int32_t)
CONVERT_PLAIN(convert_u64, uint64_t)
CONVERT_PLAIN(convert_i64, int64_t)

static void convert_bool(const uint8_t *source, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = source[i] != 0 ? 1.0f : 0.0f;
    }
}

static void convert_f32(const uint8_t *source, size_t count, float *out)
{
    memcpy(out, source, count * sizeof(*out));
}

bool evq_convert_f32(enum evq_dtype dtype, const void *source, size_t count, float *out)
{
    static void (*const converters[EVQ_DTYPE_COUNT])(const uint8_t *, size_t, float *) = {
        [EVQ_DTYPE_BOOL] = convert_bool,       [EVQ_DTYPE_U8] = convert_u8,
        [EVQ_DTYPE_I8] = convert_i8,           [EVQ_DTYPE_U16] = convert_u16,
        [EVQ_DTYPE_I16] = convert_i16,         [EVQ_DTYPE_U32] = convert_u32,
        [EVQ_DTYPE_I32] = convert_i32,         [EVQ_DTYPE_U64] = convert_u64,
        [EVQ_DTYPE_I64] = convert_i64,         [EVQ_DTYPE_F16] = convert_f16,
        [EVQ_DTYPE_BF16] = convert_bf16,       [EVQ_DTYPE_F32] = convert_f32,
        [EVQ_DTYPE_F64] = convert_f64,         [EVQ_DTYPE_F8_E4M3] = convert_f8_e4m3,
        [EVQ_DTYPE_F8_E5M2] = convert_f8_e5m2,
    };

    if ((unsigned)dtype >= EVQ_DTYPE_COUNT || converters[dtype] == NULL) {
        return false;
    }
    if (count > 0) {
        converters[dtype](source, count, out);
    }
    return true;
}
