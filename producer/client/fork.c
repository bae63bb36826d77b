#include "producer/client/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define WATCHED_MAX 256

// The one list that pthread_atfork() can reach.
static struct {
    pthread_once_t once;
    pthread_mutex_t lock;
    atomic_uint depth;
    int fds[WATCHED_MAX]; // One more than the descriptor; 0: free.
} watch = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void)
{
    pthread_mutex_lock(&watch.lock); // While it is locked, all descriptors of the list are open.
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&watch.lock);
}

static void after_fork_in_child(void)
{
    // The lock of a ring is its open file: a child that kept it would hold a dead trainer's ring.
    for (int at = 0; at < WATCHED_MAX; at++) {
        if (watch.fds[at] != 0) {
            close(watch.fds[at] - 1);
            watch.fds[at] = 0;
        }
    }
    atomic_fetch_add(&watch.depth, 1);
    pthread_mutex_unlock(&watch.lock);
}

static void watch_install(void)
{
    // Fails only if memory runs out. Then a forked child may keep a ring locked until it ends.
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

enum evq_status evq_fork_watch(int fd, struct evq_error *err)
{
    enum evq_status status = EVQ_E_LIMIT;

    pthread_once(&watch.once, watch_install);
    pthread_mutex_lock(&watch.lock);
    for (int at = 0; at < WATCHED_MAX && status != EVQ_OK; at++) {
        if (watch.fds[at] == 0) {
            watch.fds[at] = fd + 1;
            status = EVQ_OK;
        }
    }
    pthread_mutex_unlock(&watch.lock);
    return status == EVQ_OK
               ? EVQ_OK
               : evq_error_set(err, status, "more than %d rings and connections are open",
                               WATCHED_MAX);
}

void evq_fork_forget(int fd)
{
    pthread_mutex_lock(&watch.lock);
    for (int at = 0; at < WATCHED_MAX; at++) {
        if (watch.fds[at] == fd + 1) {
            watch.fds[at] = 0;
        }
    }
    pthread_mutex_unlock(&watch.lock);
}

uint32_t evq_fork_depth(void)
{
    return atomic_load_explicit(&watch.depth, memory_order_relaxed);
}
