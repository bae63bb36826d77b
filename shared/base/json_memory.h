/*
 * Detects when Jansson ran out of memory. Its parser skips a character that it has no memory for,
 * and a member that could not be set is missing. A program therefore calls watch() at its start,
 * and failed() before it trusts a document. Jansson's hooks have no context, so the result is kept
 * per thread. For programs only: a library inside another process must not change Jansson's hooks.
 */
#ifndef EVQ_SHARED_BASE_JSON_MEMORY_H
#define EVQ_SHARED_BASE_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>

/* Call once, before Jansson is used. */
void evq_json_memory_watch(void);

/* Whether an allocation of Jansson's failed in this thread since the last clear(). */
bool evq_json_memory_failed(void);
void evq_json_memory_clear(void);

/* Like json_dumps(), but returns NULL if the document may be incomplete. */
char *evq_json_memory_dumps(const json_t *document, size_t flags);

#endif
