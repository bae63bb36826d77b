/*
 * A set of result ids, kept as 64-bit hashes (XXH3). Some thousand hashes are in memory, in 64 KiB.
 * The others are in a hash table in a nameless file, about 20 bytes each, with 64 KiB of memory
 * that answers most questions about new ids without a read. Two ids of one run share a hash with a
 * probability of 3e-8 at a million ids. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_ID_SET_H
#define EVQ_LOGGER_SINKS_ID_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_id_table { // The hash table in the file. Empty: fd is -1, the rest zero.
    int fd;
    uint64_t slot_count; // A power of two, at least twice count.
    uint64_t count;
    uint64_t *maybe; // Two bits are set for each hash. If one is missing, the hash is not there.
};

struct evq_id_set {
    const char *directory;
    uint64_t *slots;   // Hashes in memory; 0: the slot is empty.
    size_t slot_count; // A power of two, at most 8,192.
    size_t count;      // Hashes in slots.
    struct evq_id_table table;
};

/* directory: where the file is made. It must outlive the set. NULL: no memory. */
struct evq_id_set *evq_id_set_new(const char *directory);
void evq_id_set_free(struct evq_id_set *set); // Accepts NULL.
/* Adds a text. After an error it is not in the set, which is otherwise as it was.
 * Errors: EVQ_E_NOMEM, EVQ_E_IO, EVQ_E_LIMIT. */
enum evq_status evq_id_set_add(struct evq_id_set *set, const char *text, size_t bytes,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether the text was added. EVQ_E_IO. */
enum evq_status evq_id_set_has(const struct evq_id_set *set, const char *text, size_t bytes,
                               bool *ret_has, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
