/* A list of keys with texts, as in the parameters of a job. Any thread. */
#ifndef EVQ_SHARED_BASE_PAIR_H
#define EVQ_SHARED_BASE_PAIR_H

#include <stddef.h>

struct evq_pair { // Both NUL-terminated.
    const char *key;
    const char *value;
};

/* Returns the value of the first pair with this key, or fallback. */
const char *evq_pair_get(const struct evq_pair *pairs, size_t count, const char *key,
                         const char *fallback);

#endif
