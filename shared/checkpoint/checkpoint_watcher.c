#include "shared/checkpoint/checkpoint_watcher.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/checkpoint/checkpoint.h"

struct evq_checkpoint_watcher {
    int64_t limit_ms;
    pthread_mutex_t lock; // Protects the fields below and those of every struct look.
    pthread_cond_t done;
    int owners;  // The opener and each running thread. The last one frees the watcher.
    int hanging; // Looks that took too long, so that nobody waits for them.
};

struct look { // Freed by the caller, or by the thread if the caller gave up.
    struct evq_checkpoint_watcher *watcher;
    bool done;
    bool left;
    enum evq_status status;
    struct evq_error error;
    char *root;
    char *path;
    char *fingerprint;
};

enum evq_status evq_checkpoint_watcher_open(int64_t limit_ms,
                                            struct evq_checkpoint_watcher **ret_watcher,
                                            struct evq_error *err)
{
    struct evq_checkpoint_watcher *watcher = calloc(1, sizeof *watcher);
    pthread_condattr_t attributes;

    if (watcher == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "looks at checkpoints");
    }
    *watcher = (struct evq_checkpoint_watcher){.limit_ms = limit_ms, .owners = 1};
    // None of the four fails on Linux with these values.
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&watcher->lock, NULL);
    (void)pthread_cond_init(&watcher->done, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *ret_watcher = watcher;
    return EVQ_OK;
}

/* Gives up one owner's share and the lock. */
static void release(struct evq_checkpoint_watcher *watcher)
{
    const bool last = --watcher->owners == 0;

    (void)pthread_mutex_unlock(&watcher->lock);
    if (last) {
        (void)pthread_cond_destroy(&watcher->done);
        (void)pthread_mutex_destroy(&watcher->lock);
        free(watcher);
    }
}

void evq_checkpoint_watcher_close(struct evq_checkpoint_watcher *watcher)
{
    if (watcher != NULL) {
        (void)pthread_mutex_lock(&watcher->lock);
        release(watcher);
    }
}

static void look_free(struct look *look)
{
    if (look != NULL) {
        free(look->root);
        free(look->path);
        free(look->fingerprint);
        free(look);
    }
}

static void *look_main(void *context)
{
    struct look *look = context;
    struct evq_checkpoint_watcher *watcher = look->watcher;

    look->status =
        evq_checkpoint_verify_fingerprint(look->root, look->path, look->fingerprint, &look->error);
    (void)pthread_mutex_lock(&watcher->lock);
    if (look->left) {
        watcher->hanging--;
        look_free(look);
    } else {
        look->done = true;
        (void)pthread_cond_broadcast(&watcher->done);
    }
    release(watcher);
    return NULL;
}

/* Call with the lock held. Returns false if the limit passed. */
static bool wait_until_done(struct evq_checkpoint_watcher *watcher, const struct look *look)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += watcher->limit_ms / 1000;
    until.tv_nsec += watcher->limit_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    int code = 0;
    while (!look->done && code == 0) {
        code = pthread_cond_timedwait(&watcher->done, &watcher->lock, &until);
    }
    return look->done;
}

/* Call with the lock held. */
static enum evq_status look_start(struct look *look, struct evq_error *err)
{
    pthread_t thread;
    pthread_attr_t attributes;

    (void)pthread_attr_init(&attributes); // Neither this nor the next fails on Linux.
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const int code = pthread_create(&thread, &attributes, look_main, look);
    (void)pthread_attr_destroy(&attributes);
    if (code != 0) {
        return evq_error_set(err, EVQ_E_NOMEM, "a thread that looks: %s", strerror(code));
    }
    look->watcher->owners++;
    return EVQ_OK;
}

enum evq_status evq_checkpoint_watcher_verify(struct evq_checkpoint_watcher *watcher,
                                              const char *root, const char *path,
                                              const char *fingerprint, struct evq_error *err)
{
    struct look *look = calloc(1, sizeof *look);

    if (look != NULL) {
        *look = (struct look){.watcher = watcher,
                              .root = strdup(root),
                              .path = strdup(path),
                              .fingerprint = strdup(fingerprint)};
    }
    if (look == NULL || look->root == NULL || look->path == NULL || look->fingerprint == NULL) {
        look_free(look);
        return evq_error_set(err, EVQ_E_NOMEM, "a look at '%s'", path);
    }
    (void)pthread_mutex_lock(&watcher->lock);
    enum evq_status status = watcher->hanging > 0
                                 ? evq_error_set(err, EVQ_E_TIMEOUT,
                                                 "an earlier look has not ended: is a file server "
                                                 "away?")
                                 : look_start(look, err);
    if (status == EVQ_OK && !wait_until_done(watcher, look)) {
        look->left = true;
        watcher->hanging++;
        (void)pthread_mutex_unlock(&watcher->lock);
        return evq_error_set(err, EVQ_E_TIMEOUT, "'%s' in '%s' does not answer", path, root);
    }
    (void)pthread_mutex_unlock(&watcher->lock);
    if (status == EVQ_OK) {
        status = look->status;
        if (status != EVQ_OK && err != NULL) {
            *err = look->error;
        }
    }
    look_free(look);
    return status;
}
