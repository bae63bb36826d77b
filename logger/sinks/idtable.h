/*
 * 64-bit hashes in a hash table on disk, in a scratch file: any number of them costs 64 KiB of
 * memory; a look costs one read, or none for most of those that are not there. One thread.
 */
#ifndef EVQ_LOGGER_IDTABLE_H
#define EVQ_LOGGER_IDTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_idtable {
    int fd;              // -1: no file yet, nothing in it.
    uint64_t slot_count; // Power of two.
    uint64_t count;
    uint64_t *maybe; // Bits: what lacks one of its two is not there. NULL: nothing is.
};

#define EVQ_IDTABLE_EMPTY ((struct evq_idtable){.fd = -1})

enum evq_status evq_idtable_has(const struct evq_idtable *table, uint64_t hash, bool *ret_has,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Adds those of the slots that are not 0; fastest in ascending order. directory: where the file
 * lies. After a failure the same call completes it.
 */
enum evq_status evq_idtable_add(struct evq_idtable *table, const char *directory,
                                const uint64_t *slots, size_t slot_count,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_idtable_close(struct evq_idtable *table); // Leaves it empty.

#endif
