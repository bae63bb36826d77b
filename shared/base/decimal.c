#include "shared/base/decimal.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DIGITS    17
#define LARGEST   UINT64_C(100000000000000000) // 10^17: one digit too many.
#define FAST_MIN  1e-36                        // Its factor 10^53 is at most 10^27 * 10^27.
#define FAST_MAX  1e15
#define POWER_MAX 27

/* Powers of ten that a long double of 64 or more bits holds exactly. */
static const long double powers[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,
                                     1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
                                     1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L,
                                     1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

/* Returns value * 10^power, rounded to the nearest integer. power is at most 2 * POWER_MAX. */
static uint64_t scaled(double value, int power)
{
    const long double first = (long double)value * powers[power < POWER_MAX ? power : POWER_MAX];

    return (uint64_t)llrintl(power > POWER_MAX ? first * powers[power - POWER_MAX] : first);
}

/*
 * Computes the 17 digits of a value between FAST_MIN and FAST_MAX, and the exponent of the first
 * one. Both products together are exact to 2^-63 of the result, which is less than 1/64 of the last
 * digit. So the digits are at most 0.52 units of the last one away, which is less than half of the
 * distance between two doubles, at least 0.55: they read back exactly.
 */
static uint64_t digits_of(double value, int *ret_exponent)
{
    int binary = 0;

    (void)frexp(value, &binary);
    int exponent = (int)floor((binary - 1) * 0.30102999566398120); // Of ten; one too low at times.
    uint64_t digits = scaled(value, DIGITS - 1 - exponent);
    if (digits >= LARGEST) {
        exponent++;
        digits = scaled(value, DIGITS - 1 - exponent);
    }
    *ret_exponent = exponent;
    return digits;
}

/* The same as "%.17g" without a locale: d.ddde-05 below 1e-4, otherwise a plain number. */
static size_t place_digits(uint64_t digits, int exponent, char *out)
{
    char text[DIGITS];
    size_t count = DIGITS;
    size_t used = 0;

    for (size_t i = DIGITS; i-- > 0; digits /= 10) {
        text[i] = (char)('0' + digits % 10);
    }
    while (count > 1 && text[count - 1] == '0') {
        count--;
    }
    const bool scientific = exponent < -4;
    const size_t whole = scientific ? 1 : exponent < 0 ? 0 : (size_t)exponent + 1;
    if (whole == 0) {
        memcpy(out, "0.0000", 6);
        used = 1 + (size_t)-exponent; // "0." and the zeros before the first digit.
    }
    for (size_t i = 0; i < count || i < whole; i++) {
        if (i == whole && whole > 0) {
            out[used++] = '.';
        }
        out[used++] = i < count ? text[i] : '0';
    }
    if (scientific) {
        const char power[] = {'e', '-', (char)('0' - exponent / 10), (char)('0' - exponent % 10)};
        memcpy(out + used, power, sizeof power);
        used += sizeof power;
    }
    return used;
}

static size_t print(double value, char out[EVQ_DECIMAL_BYTES])
{
    char text[64];
    size_t used = 0;

    (void)snprintf(text, sizeof text, "%.17g", value); // At most 24 characters.
    for (const char *c = text; *c != '\0'; c++) {
        if ((*c >= '0' && *c <= '9') || *c == '-' || *c == '+' || *c == 'e') {
            out[used++] = *c;
        } else if (used > 0 && out[used - 1] != '.') {
            out[used++] = '.'; // A host process may use a locale with a decimal comma.
        }
    }
    return used;
}

size_t evq_decimal_write(double value, char out[EVQ_DECIMAL_BYTES])
{
    int exponent = 0;
    size_t sign = 0;

    if (LDBL_MANT_DIG < 64 || !(fabs(value) >= FAST_MIN && fabs(value) < FAST_MAX)) {
        return print(value, out);
    }
    if (value < 0) {
        out[sign++] = '-';
        value = -value;
    }
    const uint64_t digits = digits_of(value, &exponent);
    return sign + place_digits(digits, exponent, out + sign);
}

size_t evq_decimal_integer(int64_t value, char out[EVQ_DECIMAL_BYTES])
{
    char digits[EVQ_DECIMAL_BYTES];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0) {
        digits[--at] = '-';
    }
    memcpy(out, digits + at, sizeof digits - at);
    return sizeof digits - at;
}
