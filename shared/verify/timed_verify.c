#include "shared/verify/timed_verify.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/checkpoint/checkpoint.h"

struct evq_timed_verify {
    int64_t limit_ms;
    pthread_mutex_t lock; // Protects the fields below and those of every struct check.
    pthread_cond_t done;
    int owners;  // The opener and each running thread. The last one frees the verify.
    int hanging; // Checks that took too long, so that nobody waits for them.
};

struct check { // Freed by the caller, or by the thread if the caller gave up.
    struct evq_timed_verify *verify;
    bool done;
    bool left;
    enum evq_status status;
    struct evq_error error;
    char *root;
    char *path;
    char *fingerprint;
};

enum evq_status evq_timed_verify_open(int64_t limit_ms, struct evq_timed_verify **ret_verify,
                                      struct evq_error *err)
{
    struct evq_timed_verify *verify = calloc(1, sizeof *verify);
    pthread_condattr_t attributes;

    if (verify == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "checks with a time limit");
    }
    *verify = (struct evq_timed_verify){.limit_ms = limit_ms, .owners = 1};
    // None of the four fails on Linux with these values.
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&verify->lock, NULL);
    (void)pthread_cond_init(&verify->done, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *ret_verify = verify;
    return EVQ_OK;
}

/* Gives up one owner's share and the lock. */
static void release(struct evq_timed_verify *verify)
{
    const bool last = --verify->owners == 0;

    (void)pthread_mutex_unlock(&verify->lock);
    if (last) {
        (void)pthread_cond_destroy(&verify->done);
        (void)pthread_mutex_destroy(&verify->lock);
        free(verify);
    }
}

void evq_timed_verify_close(struct evq_timed_verify *verify)
{
    if (verify != NULL) {
        (void)pthread_mutex_lock(&verify->lock);
        release(verify);
    }
}

static void check_free(struct check *check)
{
    if (check != NULL) {
        free(check->root);
        free(check->path);
        free(check->fingerprint);
        free(check);
    }
}

static void *check_main(void *context)
{
    struct check *check = context;
    struct evq_timed_verify *verify = check->verify;

    check->status = evq_checkpoint_verify_fingerprint(check->root, check->path, check->fingerprint,
                                                      &check->error);
    (void)pthread_mutex_lock(&verify->lock);
    if (check->left) {
        verify->hanging--;
        check_free(check);
    } else {
        check->done = true;
        (void)pthread_cond_broadcast(&verify->done);
    }
    release(verify);
    return NULL;
}

/* Call with the lock held. Returns false if the limit passed. */
static bool wait_until_done(struct evq_timed_verify *verify, const struct check *check)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += verify->limit_ms / 1000;
    until.tv_nsec += verify->limit_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    int code = 0;
    while (!check->done && code == 0) {
        code = pthread_cond_timedwait(&verify->done, &verify->lock, &until);
    }
    return check->done;
}

/* Call with the lock held. */
static enum evq_status check_start(struct check *check, struct evq_error *err)
{
    pthread_t thread;
    pthread_attr_t attributes;

    (void)pthread_attr_init(&attributes); // Neither this nor the next fails on Linux.
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const int code = pthread_create(&thread, &attributes, check_main, check);
    (void)pthread_attr_destroy(&attributes);
    if (code != 0) {
        return evq_error_set(err, EVQ_E_NOMEM, "a thread for a check: %s", strerror(code));
    }
    check->verify->owners++;
    return EVQ_OK;
}

enum evq_status evq_timed_verify_run(struct evq_timed_verify *verify, const char *root,
                                     const char *path, const char *fingerprint,
                                     struct evq_error *err)
{
    struct check *check = calloc(1, sizeof *check);

    if (check != NULL) {
        *check = (struct check){.verify = verify,
                                .root = strdup(root),
                                .path = strdup(path),
                                .fingerprint = strdup(fingerprint)};
    }
    if (check == NULL || check->root == NULL || check->path == NULL || check->fingerprint == NULL) {
        check_free(check);
        return evq_error_set(err, EVQ_E_NOMEM, "a check of '%s'", path);
    }
    (void)pthread_mutex_lock(&verify->lock);
    enum evq_status status = verify->hanging > 0
                                 ? evq_error_set(err, EVQ_E_TIMEOUT,
                                                 "an earlier check has not ended: is a file server "
                                                 "away?")
                                 : check_start(check, err);
    if (status == EVQ_OK && !wait_until_done(verify, check)) {
        check->left = true;
        verify->hanging++;
        (void)pthread_mutex_unlock(&verify->lock);
        return evq_error_set(err, EVQ_E_TIMEOUT, "'%s' in '%s' does not answer", path, root);
    }
    (void)pthread_mutex_unlock(&verify->lock);
    if (status == EVQ_OK) {
        status = check->status;
        if (status != EVQ_OK && err != NULL) {
            *err = check->error;
        }
    }
    check_free(check);
    return status;
}
