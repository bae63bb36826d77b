/*
 * Things kept between the jobs of a slot, at most a few of them and so many bytes: what was used
 * last comes first, what was used longest ago goes. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_CACHE_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#define EVQ_WARM_MAX       8
#define EVQ_WARM_BYTES_MAX ((size_t)4 << 30) // The one in use may be larger.

struct evq_warm { // Starts with free set and the rest zeros.
    void (*free)(void *thing);
    void *things[EVQ_WARM_MAX];
    size_t bytes[EVQ_WARM_MAX];
};

/* The thing that is the same as wanted, now the first; NULL: there is none. */
void *evq_warm_find(struct evq_warm *warm, bool (*same)(const void *thing, const void *wanted),
                    const void *wanted);

/* Takes the thing over as the first; others may go. */
void evq_warm_keep(struct evq_warm *warm, void *thing, size_t bytes);
void evq_warm_clear(struct evq_warm *warm);

#endif
