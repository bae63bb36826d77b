/* Names of the keys that C code uses itself. Only shared/queue/lua knows the others. Any thread. */
#ifndef EVQ_SHARED_QUEUE_KEYS_H
#define EVQ_SHARED_QUEUE_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_KEYS_QUEUE_BYTES_MAX 64
#define EVQ_KEYS_BYTES_MAX       128

/* "evalq:{QUEUE}:" */
enum evq_status evq_keys_prefix(const char *queue, char out[EVQ_KEYS_BYTES_MAX],
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* PREFIXwake:N */
void evq_keys_wake(const char *prefix, uint32_t class_number, char out[EVQ_KEYS_BYTES_MAX]);
void evq_keys_results(const char *prefix, char out[EVQ_KEYS_BYTES_MAX]); // PREFIXresults
void evq_keys_samples(const char *prefix, char out[EVQ_KEYS_BYTES_MAX]); // PREFIXsamples

#endif
