/*
 * A file of samples through one format: an array whose bytes are those of its shape, within the
 * limit, or a sentence for a terminal and nothing left behind.
 */
#ifndef EVQ_TESTS_FUZZ_ARRAY_H
#define EVQ_TESTS_FUZZ_ARRAY_H

#include "file.h"

#include "worker/datasets/dataset.h"

#define FUZZ_ARRAY_BYTES_MAX ((size_t)1 << 20)

static inline void fuzz_array(const struct evq_dataset_format *format, const uint8_t *data,
                              size_t bytes)
{
    const struct evq_array_source source = {fuzz_file(data, bytes), FUZZ_ARRAY_BYTES_MAX};
    struct evq_array array = {0};
    struct evq_error err = {.message = ""};
    size_t values = 1;

    if (format->read(&source, &array, &err) != EVQ_OK) {
        check(array.data == NULL && err.message[0] != '\0');
        for (const char *c = err.message; *c != '\0'; c++) {
            check((unsigned char)*c >= 0x20 && *c != 0x7f);
        }
        return;
    }
    check(array.rank >= 1 && array.rank <= EVQ_TENSOR_RANK_MAX && array.data != NULL);
    for (int32_t i = 0; i < array.rank; i++) {
        check(array.shape[i] > 0 && (size_t)array.shape[i] <= FUZZ_ARRAY_BYTES_MAX);
        values *= (size_t)array.shape[i];
    }
    check(array.bytes == values * evq_dtype_bytes(array.dtype));
    check(array.bytes > 0 && array.bytes <= FUZZ_ARRAY_BYTES_MAX);
    volatile uint8_t last = 0;
    for (size_t i = 0; i < array.bytes; i++) { // All of it is there to read.
        last = ((const uint8_t *)array.data)[i];
    }
    (void)last;
    free(array.data);
}

#endif
