#include "worker/evaluators/native_ahead.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/evaluators/native_checkpoint.h"
#include "worker/evaluators/native_model.h"

struct evq_native_ahead {
    struct evq_backend backend; // Opened when something is loaded for the first time.
    int32_t threads;
    void *state; // The second set's; NULL: there is none yet.
    struct evq_loader *loader;
    bool dropped;
    bool taking; // Within evq_native_ahead_take(), which tells progress, who may begin the next.

    // Of the latest job. While the thread lives they are its alone.
    bool begun; // There is a thread, which may have ended.
    pthread_t thread;
    struct evq_job *job;
    struct evq_eval_request request; // Its; root_fd is ours, -1: none.
    struct evq_checkpoint *checkpoint;
    struct evq_model *model;
    struct evq_loaded loaded;
    enum evq_status status;

    pthread_mutex_t lock; // Of all below.
    pthread_cond_t changed;
    bool ended, stop;
    int64_t done, total; // Bytes.
};

enum evq_status evq_native_ahead_new(const struct evq_backend *backend, int32_t threads,
                                     struct evq_native_ahead **ret_ahead, struct evq_error *err)
{
    *ret_ahead = NULL;
    if (backend->ops->reserve == NULL || backend->ops->exchange == NULL) {
        return EVQ_OK;
    }
    struct evq_native_ahead *ahead = calloc(1, sizeof(*ahead));
    if (ahead == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "loading ahead");
    }
    ahead->backend = *backend;
    ahead->threads = threads;
    ahead->request.root_fd = -1;
    (void)pthread_mutex_init(&ahead->lock, NULL); // Neither fails on Linux.
    (void)pthread_cond_init(&ahead->changed, NULL);
    *ret_ahead = ahead;
    return EVQ_OK;
}

/* ---- the thread ---- */

static enum evq_status tell(void *context, int64_t done, int64_t total)
{
    struct evq_native_ahead *ahead = context;

    (void)pthread_mutex_lock(&ahead->lock); // Fails for a broken mutex only; so do all below.
    ahead->done = done;
    ahead->total = total;
    const bool stop = ahead->stop;
    (void)pthread_cond_signal(&ahead->changed);
    (void)pthread_mutex_unlock(&ahead->lock);
    return stop ? EVQ_E_STOPPED : EVQ_OK;
}

/* What the first task of the suite will compute with. */
static enum evq_status open_model(struct evq_native_ahead *ahead)
{
    const struct evq_task_config *config = &ahead->request.suite->tasks[0];
    const struct evq_task *task = NULL;
    int32_t length = 0;

    enum evq_status status = evq_task_find(config, &task, NULL);
    if (status == EVQ_OK && task->tokens == NULL) {
        return EVQ_E_UNSUPPORTED; // Models of samples are small: nothing to gain.
    }
    if (status == EVQ_OK) {
        status = evq_native_checkpoint_open(&ahead->request, config, &ahead->checkpoint, NULL);
    }
    return status == EVQ_OK ? evq_native_model_build(task, config, ahead->checkpoint, &length,
                                                     &ahead->model, NULL)
                            : status;
}

static enum evq_status open_state(struct evq_native_ahead *ahead)
{
    enum evq_status status = EVQ_OK;

    if (ahead->state == NULL) {
        status = evq_backend_open(&ahead->backend, ahead->threads, &ahead->state, NULL);
    }
    if (status == EVQ_OK && ahead->loader == NULL) {
        status =
            evq_loader_new(ahead->backend.ops, ahead->state, ahead->threads, &ahead->loader, NULL);
    }
    return status;
}

static enum evq_status load(struct evq_native_ahead *ahead)
{
    const struct evq_progress progress = {tell, ahead};

    enum evq_status status = open_model(ahead);
    if (status == EVQ_OK) {
        status = open_state(ahead);
    }
    if (status == EVQ_OK) {
        status = ahead->backend.ops->reserve(ahead->state, &ahead->model->plan, NULL);
    }
    if (status == EVQ_OK) {
        evq_loader_watch(ahead->loader, &progress);
        status =
            evq_loader_fill(ahead->loader, ahead->checkpoint, ahead->model, &ahead->loaded, NULL);
        evq_loader_watch(ahead->loader, NULL);
    }
    return status;
}

static void *ahead_main(void *context)
{
    struct evq_native_ahead *ahead = context;

    const enum evq_status status = load(ahead);
    (void)pthread_mutex_lock(&ahead->lock);
    ahead->status = status;
    ahead->ended = true;
    (void)pthread_cond_signal(&ahead->changed);
    (void)pthread_mutex_unlock(&ahead->lock);
    return NULL;
}

/* ---- the evaluator's thread ---- */

/* Whatever was loaded, or is being loaded, is forgotten; the memory stays for the next. */
static void forget(struct evq_native_ahead *ahead)
{
    if (ahead->begun) {
        (void)pthread_mutex_lock(&ahead->lock);
        ahead->stop = true;
        (void)pthread_mutex_unlock(&ahead->lock);
        (void)pthread_join(ahead->thread, NULL); // Fails for no thread of ours.
        ahead->begun = false;
    }
    evq_model_free(ahead->model);
    evq_checkpoint_close(ahead->checkpoint);
    evq_job_free(ahead->job);
    if (ahead->request.root_fd >= 0) {
        (void)close(ahead->request.root_fd); // A directory: nothing to lose.
    }
    ahead->model = NULL;
    ahead->checkpoint = NULL;
    ahead->job = NULL;
    ahead->request.root_fd = -1;
}

/* Signals are for the threads of the program. */
static bool thread_start(struct evq_native_ahead *ahead)
{
    sigset_t all;
    sigset_t before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&ahead->thread, NULL, ahead_main, ahead) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void evq_native_ahead_begin(struct evq_native_ahead *ahead, struct evq_job *job,
                            const struct evq_eval_request *request)
{
    if (ahead->taking) {
        evq_job_free(job);
        (void)close(request->root_fd); // A directory: nothing to lose.
        return;
    }
    forget(ahead);
    ahead->job = job;
    ahead->request = *request;
    ahead->loaded = (struct evq_loaded){.bytes = 0};
    ahead->ended = ahead->stop = false;
    ahead->done = ahead->total = 0;
    ahead->begun = !ahead->dropped && request->suite->task_count > 0 && thread_start(ahead);
    if (!ahead->begun) {
        forget(ahead);
    }
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

static bool is_job(const struct evq_native_ahead *ahead, const struct evq_eval_request *request)
{
    char ours[EVQ_JOB_ID_BYTES_MAX];
    char theirs[EVQ_JOB_ID_BYTES_MAX];

    if (!ahead->begun || request->job == NULL || request->suite != ahead->request.suite ||
        !same_text(request->prepared, "")) {
        return false;
    }
    evq_job_id(ahead->job, ours);
    evq_job_id(request->job, theirs);
    return strcmp(ours, theirs) == 0 &&
           same_text(ahead->job->fingerprint, request->job->fingerprint);
}

void evq_native_ahead_meet(struct evq_native_ahead *ahead, const struct evq_eval_request *request)
{
    if (!is_job(ahead, request)) {
        forget(ahead);
    }
}

/* Tells nothing where nothing moves: a load that hangs must not pass for one that goes on. */
static enum evq_status await(struct evq_native_ahead *ahead, const struct evq_progress *progress)
{
    enum evq_status status = EVQ_OK;
    int64_t told = 0;

    (void)pthread_mutex_lock(&ahead->lock);
    while (!ahead->ended && status == EVQ_OK) {
        const int64_t done = ahead->done;
        const int64_t total = ahead->total;
        if (done == told) {
            (void)pthread_cond_wait(&ahead->changed, &ahead->lock);
            continue;
        }
        told = done;
        (void)pthread_mutex_unlock(&ahead->lock);
        status = progress->tell(progress->context, done, total);
        (void)pthread_mutex_lock(&ahead->lock);
    }
    (void)pthread_mutex_unlock(&ahead->lock);
    return status;
}

enum evq_status evq_native_ahead_take(struct evq_native_ahead *ahead,
                                      const struct evq_eval_request *request, const char *key,
                                      const char *base, const struct evq_progress *progress,
                                      void *state, struct evq_checkpoint **checkpoint,
                                      struct evq_model **ret_model, struct evq_loaded *ret_loaded,
                                      struct evq_error *err)
{
    *ret_model = NULL;
    if (!is_job(ahead, request)) {
        return EVQ_OK;
    }
    ahead->taking = true;
    enum evq_status status = await(ahead, progress);
    ahead->taking = false;
    const struct evq_task_config *config = &ahead->request.suite->tasks[0];
    const bool fits =
        status == EVQ_OK && ahead->status == EVQ_OK &&
        strcmp(key, evq_pair_get(config->model, config->model_count, "key", "")) == 0 &&
        strcmp(base, evq_pair_get(config->model, config->model_count, "base", "")) == 0 &&
        evq_checkpoint_same_files(*checkpoint, ahead->checkpoint);
    if (fits) {
        status = ahead->backend.ops->exchange(state, ahead->state, err);
    }
    if (fits && status == EVQ_OK) {
        evq_checkpoint_close(*checkpoint);
        *checkpoint = ahead->checkpoint;
        *ret_model = ahead->model;
        *ret_loaded = ahead->loaded;
        ahead->checkpoint = NULL;
        ahead->model = NULL;
    }
    forget(ahead);
    return status;
}

bool evq_native_ahead_drop(struct evq_native_ahead *ahead)
{
    if (ahead == NULL || ahead->dropped) {
        return false;
    }
    forget(ahead);
    const bool held = ahead->state != NULL;
    evq_loader_free(ahead->loader);
    ahead->loader = NULL;
    if (held) {
        ahead->backend.ops->close(ahead->state);
    }
    ahead->state = NULL;
    ahead->dropped = held; // It would be so again with the next job.
    return held;
}

void evq_native_ahead_free(struct evq_native_ahead *ahead)
{
    if (ahead != NULL) {
        (void)evq_native_ahead_drop(ahead);
        (void)pthread_cond_destroy(&ahead->changed);
        (void)pthread_mutex_destroy(&ahead->lock);
        free(ahead);
    }
}
