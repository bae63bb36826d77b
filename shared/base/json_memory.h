/*
 * Whether Jansson ran out of memory. Its parser drops a byte of a string or a number that it cannot
 * make room for, and goes on; a member that could not be set is missing. So a program has it
 * watched, and asks before it believes what was read or made. Jansson's hooks have no context: what
 * they note is the thread's. Programs only: a guest in somebody's process leaves Jansson as it is.
 */
#ifndef EVQ_SHARED_JSON_MEMORY_H
#define EVQ_SHARED_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>

/* Once, before Jansson is used. */
void evq_json_memory_watch(void);

/* Whether an allocation of Jansson's failed in this thread since the last clear(). */
bool evq_json_memory_failed(void);
void evq_json_memory_clear(void);

/* json_dumps(), but NULL also when the document may lack something: failed(). */
char *evq_json_memory_dumps(const json_t *document, size_t flags);

#endif
