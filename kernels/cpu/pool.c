#include "kernels/cpu/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define POOL_THREADS_MAX 1024

struct pool_thread {
    struct evq_pool *pool;
    pthread_t handle;
    int32_t index;
};

struct evq_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; // Signals a new run, or the end.
    pthread_cond_t idle; // Signals that the last helper left the run.
    uint64_t run; // Counts runs. A helper that sees another value than its own joins the run.
    int32_t helpers_busy;
    bool stop;
    evq_pool_fn fn;
    void *context;
    int32_t part_count;
    _Atomic int32_t part_next;
    int32_t threads; // Includes the caller.
    int32_t started; // Helpers that were started.
    struct pool_thread *helpers;
};

static int32_t cores_allowed(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return 1;
    }
    const int32_t count = (int32_t)CPU_COUNT(&set);
    return count < 1 ? 1 : count;
}

static void take_parts(struct evq_pool *pool, int32_t thread)
{
    for (;;) {
        const int32_t part = atomic_fetch_add(&pool->part_next, 1);
        if (part >= pool->part_count) {
            return;
        }
        pool->fn(pool->context, part, thread);
    }
}

static void *helper_main(void *argument)
{
    struct pool_thread *self = argument;
    struct evq_pool *pool = self->pool;
    uint64_t seen = 0;

    (void)pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->run == seen) {
            (void)pthread_cond_wait(&pool->wake, &pool->lock);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->run;
        (void)pthread_mutex_unlock(&pool->lock);
        take_parts(pool, self->index);
        (void)pthread_mutex_lock(&pool->lock);
        if (--pool->helpers_busy == 0) {
            (void)pthread_cond_signal(&pool->idle);
        }
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static enum evq_status start_helpers(struct evq_pool *pool, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    sigset_t all;
    sigset_t before;

    // Threads inherit the mask, so signals stay with the thread that expects them.
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int32_t i = 0; i < pool->threads - 1; i++) {
        struct pool_thread *helper = &pool->helpers[i];
        helper->pool = pool;
        helper->index = i + 1;
        const int failed = pthread_create(&helper->handle, NULL, helper_main, helper);
        if (failed != 0) {
            status = evq_error_set(err, EVQ_E_NOMEM, "start thread %d of %d: %s", (int)(i + 2),
                                   (int)pool->threads, strerror(failed));
            break;
        }
        pool->started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

enum evq_status evq_pool_new(int32_t threads, struct evq_pool **ret_pool, struct evq_error *err)
{
    if (threads < 0 || threads > POOL_THREADS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%d threads asked for, allowed 0 to %d",
                             (int)threads, POOL_THREADS_MAX);
    }
    struct evq_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "thread pool");
    }
    (void)pthread_mutex_init(&pool->lock, NULL); // These three cannot fail with default attributes.
    (void)pthread_cond_init(&pool->wake, NULL);
    (void)pthread_cond_init(&pool->idle, NULL);
    pool->threads = threads > 0 ? threads : cores_allowed();
    pool->helpers = calloc((size_t)pool->threads, sizeof(*pool->helpers));
    enum evq_status status = pool->helpers == NULL ? evq_error_set(err, EVQ_E_NOMEM, "thread pool")
                                                   : start_helpers(pool, err);
    if (status != EVQ_OK) {
        evq_pool_free(pool);
        return status;
    }
    *ret_pool = pool;
    return EVQ_OK;
}

void evq_pool_free(struct evq_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->wake);
    (void)pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->started; i++) {
        (void)pthread_join(pool->helpers[i].handle, NULL);
    }
    (void)pthread_cond_destroy(&pool->idle);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool->helpers);
    free(pool);
}

int32_t evq_pool_threads(const struct evq_pool *pool)
{
    return pool->threads;
}

void evq_pool_run(struct evq_pool *pool, evq_pool_fn fn, void *context, int32_t part_count)
{
    assert(part_count >= 0);
    if (pool->started == 0 || part_count <= 1) {
        for (int32_t part = 0; part < part_count; part++) {
            fn(context, part, 0);
        }
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->context = context;
    pool->part_count = part_count;
    atomic_store(&pool->part_next, 0);
    pool->helpers_busy = pool->started;
    pool->run++;
    (void)pthread_cond_broadcast(&pool->wake);
    (void)pthread_mutex_unlock(&pool->lock);
    take_parts(pool, 0);
    (void)pthread_mutex_lock(&pool->lock);
    while (pool->helpers_busy > 0) {
        (void)pthread_cond_wait(&pool->idle, &pool->lock);
    }
    (void)pthread_mutex_unlock(&pool->lock);
}
