#include "shared/base/pair.h"

#include <string.h>

const char *evq_pair_get(const struct evq_pair *pairs, size_t count, const char *key,
                         const char *fallback)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(pairs[i].key, key) == 0) {
            return pairs[i].value;
        }
    }
    return fallback;
}
