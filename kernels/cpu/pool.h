/*
 * The thread pool of one backend. The caller works too, and each thread takes the next part when it
 * is free. One caller at a time. Pool threads block all signals.
 */
#ifndef EVQ_KERNELS_CPU_POOL_H
#define EVQ_KERNELS_CPU_POOL_H

#include <stdint.h>

#include "shared/base/error.h"

struct evq_pool;

typedef void (*evq_pool_fn)(void *context, int32_t part, int32_t thread);

/* threads: 1 to 1024, including the caller; 0: the number of cores that this process may use.
 * EVQ_E_NOMEM, EVQ_E_INVALID. */
enum evq_status evq_pool_new(int32_t threads, struct evq_pool **ret_pool,
                             struct evq_error *err) EVQ_CHECK_RESULT;
void evq_pool_free(struct evq_pool *pool); // Accepts NULL.
int32_t evq_pool_threads(const struct evq_pool *pool);

/* Calls fn(context, part, thread) once for each part below part_count. thread is below
 * evq_pool_threads(); 0 is the caller. Returns when all calls have returned. */
void evq_pool_run(struct evq_pool *pool, evq_pool_fn fn, void *context, int32_t part_count);

#endif
