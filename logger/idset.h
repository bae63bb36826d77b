/*
 * A set of texts, kept as 64-bit hashes (XXH3): a million ids in 16 MiB. Two ids of one run share a
 * hash with a probability of 3e-8 at a million ids. One thread.
 */
#ifndef EVQ_LOGGER_IDSET_H
#define EVQ_LOGGER_IDSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evq_idset {
    uint64_t *slots;   // 0: empty.
    size_t slot_count; // Power of two.
    size_t count;
    bool failed; // Out of memory: the set is incomplete.
};

struct evq_idset *evq_idset_new(void);      // NULL when out of memory.
void evq_idset_free(struct evq_idset *set); // Accepts NULL.
void evq_idset_add(struct evq_idset *set, const char *text, size_t bytes);
bool evq_idset_has(const struct evq_idset *set, const char *text, size_t bytes);
void evq_idset_merge(struct evq_idset *set, const struct evq_idset *other); // Adds all of other.
void evq_idset_clear(struct evq_idset *set);

#endif
