/*
 * A set of texts, kept as 64-bit hashes (XXH3): a few thousand in memory, 64 KiB, the others in a
 * table on disk (idtable.h), some 20 bytes each, and 64 KiB more. Two ids of one run share a hash
 * with a probability of 3e-8 at a million ids. One thread.
 */
#ifndef EVQ_LOGGER_IDSET_H
#define EVQ_LOGGER_IDSET_H

#include "logger/sinks/idtable.h"

struct evq_idset {
    const char *directory; // Of the table on disk. Borrowed.
    uint64_t *slots;       // 0: empty. At most 64 KiB of them.
    size_t slot_count;     // Power of two.
    size_t count;          // In slots.
    struct evq_idtable table;
};

/* directory must outlive the set. NULL when out of memory. */
struct evq_idset *evq_idset_new(const char *directory);
void evq_idset_free(struct evq_idset *set); // Accepts NULL.
/* EVQ_E_NOMEM, EVQ_E_IO, EVQ_E_LIMIT: it is not in the set, which is otherwise as it was. */
enum evq_status evq_idset_add(struct evq_idset *set, const char *text, size_t bytes,
                              struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_idset_has(const struct evq_idset *set, const char *text, size_t bytes,
                              bool *ret_has, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
