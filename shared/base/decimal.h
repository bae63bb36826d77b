/*
 * Decimal digits of numbers, seven times as fast as printf(). Any thread.
 */
#ifndef EVQ_SHARED_BASE_DECIMAL_H
#define EVQ_SHARED_BASE_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

#define EVQ_DECIMAL_BYTES 32

/* Writes a finite double as JSON, with at most 17 digits, so that it reads back exactly. The text
 * does not depend on the locale. Returns its length; there is no NUL. */
size_t evq_decimal_write(double value, char out[EVQ_DECIMAL_BYTES]);

/* Writes an integer. Returns the length of the text; there is no NUL. */
size_t evq_decimal_integer(int64_t value, char out[EVQ_DECIMAL_BYTES]);

#endif
