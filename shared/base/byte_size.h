/* Sizes as people write them. Any thread. */
#ifndef EVQ_SHARED_BASE_BYTE_SIZE_H
#define EVQ_SHARED_BASE_BYTE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* Reads "1024", "24GiB", "1.5GB", "512 MiB" as whole bytes; up to three decimals. False: not a
 * size. */
bool evq_byte_size_parse(const char *text, int64_t *ret);

#endif
