/*
 * A set of result ids, kept as 64-bit hashes (XXH3) in memory: 11 to 21 bytes each. Two ids of one
 * run share a hash with a probability of 3e-8 at a million ids. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_ID_SET_H
#define EVQ_LOGGER_SINKS_ID_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_id_set {    // All zero: empty.
    uint64_t *slots;   // 0: the slot is empty.
    size_t slot_count; // A power of two.
    size_t count;      // Hashes in slots.
};

void evq_id_set_clear(struct evq_id_set *set); // Leaves it empty.
/* Adds a text. EVQ_E_NOMEM: the set is as it was. */
enum evq_status evq_id_set_add(struct evq_id_set *set, const char *text, size_t bytes,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether the text was added. */
bool evq_id_set_has(const struct evq_id_set *set, const char *text, size_t bytes);

#endif
