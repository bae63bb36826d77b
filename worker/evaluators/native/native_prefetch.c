#include "worker/evaluators/native/native_prefetch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "worker/evaluators/native/native_checkpoint.h"
#include "worker/evaluators/native/native_model.h"
#include "worker/evaluators/placement.h"

/* The next prefetch waits for this fraction of patience until the one before it has stopped. */
#define TURN_SHARE 20

struct evq_native_prefetch {
    struct evq_backend backend; // It is opened at the first prefetch.
    int32_t threads;
    int64_t patience_ms;
    bool dropped;
    // We are inside evq_native_prefetch_take(), whose progress listener may begin the next
    // prefetch.
    bool taking;

    // The latest job: its thread was started, and may have ended.
    bool begun; // There is a thread, which may have ended.
    bool hangs; // The thread did not stop in time.
    pthread_t thread;

    // While the thread runs, only the thread uses these. The second set of weights; NULL: none yet.
    void *state; // The second set's; NULL: there is none yet.
    struct evq_loader *loader;
    struct evq_job *job;
    bool fast_bf16;                  // As in evq_native_model_build().
    struct evq_eval_request request; // The job's request; root_fd is ours; -1: none.
    struct evq_checkpoint *checkpoint;
    struct evq_model *model;
    struct evq_loaded loaded;
    enum evq_status status;

    pthread_mutex_t lock;   // It protects everything below.
    pthread_cond_t changed; // It uses the monotonic clock.
    bool ended, stop;
    bool left;           // The evaluator is gone, so the thread frees everything when it ends.
    int64_t done, total; // Bytes.
};

enum evq_status evq_native_prefetch_new(const struct evq_backend *backend, int32_t threads,
                                        int64_t patience_ms,
                                        struct evq_native_prefetch **ret_prefetch,
                                        struct evq_error *err)
{
    pthread_condattr_t attributes;

    *ret_prefetch = NULL;
    if (backend->ops->reserve == NULL || backend->ops->exchange == NULL) {
        return EVQ_OK;
    }
    struct evq_native_prefetch *prefetch = calloc(1, sizeof(*prefetch));
    if (prefetch == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "loading ahead");
    }
    prefetch->backend = *backend;
    prefetch->threads = threads;
    prefetch->patience_ms = patience_ms;
    prefetch->request.root_fd = -1;
    (void)pthread_mutex_init(&prefetch->lock, NULL); // None of these fails on Linux.
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&prefetch->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *ret_prefetch = prefetch;
    return EVQ_OK;
}

/* Frees the job after its thread has ended, or if it was never started. The device memory is kept
 * for the next one. */
static void job_close(struct evq_native_prefetch *prefetch)
{
    evq_model_free(prefetch->model);
    evq_checkpoint_close(prefetch->checkpoint);
    evq_job_free(prefetch->job);
    evq_file_close(&prefetch->request.root_fd);
    prefetch->model = NULL;
    prefetch->checkpoint = NULL;
    prefetch->job = NULL;
    prefetch->request.root_fd = -1;
}

/* Frees the second set of weights. No thread may use it. */
static void second_set_close(struct evq_native_prefetch *prefetch)
{
    evq_loader_free(prefetch->loader);
    prefetch->loader = NULL;
    if (prefetch->state != NULL) {
        prefetch->backend.ops->close(prefetch->state);
    }
    prefetch->state = NULL;
}

static void prefetch_destroy(struct evq_native_prefetch *prefetch)
{
    job_close(prefetch);
    second_set_close(prefetch);
    (void)pthread_cond_destroy(&prefetch->changed);
    (void)pthread_mutex_destroy(&prefetch->lock);
    free(prefetch);
}

/* ---- the thread ---- */

static enum evq_status tell(void *context, int64_t done, int64_t total)
{
    struct evq_native_prefetch *prefetch = context;

    // This fails only for a broken mutex, as do the calls below.
    (void)pthread_mutex_lock(&prefetch->lock);
    prefetch->done = done;
    prefetch->total = total;
    const bool stop = prefetch->stop;
    (void)pthread_cond_signal(&prefetch->changed);
    (void)pthread_mutex_unlock(&prefetch->lock);
    return stop ? EVQ_E_STOPPED : EVQ_OK;
}

/* Builds the model of the first task of the suite. */
static enum evq_status open_model(struct evq_native_prefetch *prefetch)
{
    const struct evq_task_config *config = &prefetch->request.suite->tasks[0];
    const struct evq_task *task = NULL;
    int32_t length = 0;

    enum evq_status status = evq_task_find(config, &task, NULL);
    if (status == EVQ_OK && task->tokens == NULL) {
        return EVQ_E_UNSUPPORTED; // Models of samples are small, so a prefetch gains nothing.
    }
    // This is done here, and not when the job is taken over, because it may hang.
    if (status == EVQ_OK) {
        prefetch->request.root_fd =
            open(prefetch->request.root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = prefetch->request.root_fd >= 0 ? EVQ_OK : EVQ_E_IO;
    }
    if (status == EVQ_OK) {
        prefetch->request.path = evq_placement_pick(prefetch->request.root_fd, prefetch->job);
        status =
            evq_native_checkpoint_open(&prefetch->request, config, &prefetch->checkpoint, NULL);
    }
    return status == EVQ_OK
               ? evq_native_model_build(task, config, prefetch->checkpoint, prefetch->fast_bf16,
                                        &length, &prefetch->model, NULL)
               : status;
}

static enum evq_status open_state(struct evq_native_prefetch *prefetch)
{
    enum evq_status status = EVQ_OK;

    if (prefetch->state == NULL) {
        status = evq_backend_open(&prefetch->backend, prefetch->threads, &prefetch->state, NULL);
    }
    if (status == EVQ_OK && prefetch->loader == NULL) {
        status = evq_loader_new(prefetch->backend.ops, prefetch->state, prefetch->threads,
                                &prefetch->loader, NULL);
    }
    return status;
}

static enum evq_status load(struct evq_native_prefetch *prefetch)
{
    const struct evq_progress progress = {tell, prefetch};

    enum evq_status status = open_model(prefetch);
    if (status == EVQ_OK) {
        status = open_state(prefetch);
    }
    if (status == EVQ_OK) {
        status = prefetch->backend.ops->reserve(prefetch->state, &prefetch->model->plan, NULL);
    }
    if (status == EVQ_OK) {
        evq_loader_watch(prefetch->loader, &progress);
        status = evq_loader_fill(prefetch->loader, prefetch->checkpoint, prefetch->model,
                                 &prefetch->loaded, NULL);
        evq_loader_watch(prefetch->loader, NULL);
    }
    return status;
}

static void *prefetch_main(void *context)
{
    struct evq_native_prefetch *prefetch = context;

    const enum evq_status status = load(prefetch);
    (void)pthread_mutex_lock(&prefetch->lock);
    prefetch->status = status;
    prefetch->ended = true;
    const bool left = prefetch->left;
    (void)pthread_cond_signal(&prefetch->changed);
    (void)pthread_mutex_unlock(&prefetch->lock);
    if (left) {
        prefetch_destroy(prefetch);
    }
    return NULL;
}

/* ---- the evaluator's thread ---- */

/* Waits with the lock held. False: the time is over. */
static bool wait_until(struct evq_native_prefetch *prefetch, int64_t end_ms)
{
    const struct timespec end = {.tv_sec = end_ms / 1000, .tv_nsec = end_ms % 1000 * 1000000};

    return pthread_cond_timedwait(&prefetch->changed, &prefetch->lock, &end) == 0;
}

/* Tells the thread to stop and discards what it loaded. It does not wait for a thread that reads
 * and may hang; until that thread ends, no other is started. */
static void forget(struct evq_native_prefetch *prefetch)
{
    bool ended = true;

    if (prefetch->begun) {
        (void)pthread_mutex_lock(&prefetch->lock);
        prefetch->stop = true;
        ended = prefetch->ended;
        (void)pthread_mutex_unlock(&prefetch->lock);
    }
    if (!ended) {
        return;
    }
    if (prefetch->begun) {
        (void)pthread_join(prefetch->thread, NULL); // This cannot fail for our own thread.
    }
    prefetch->begun = prefetch->hangs = false;
    job_close(prefetch);
}

/* Like forget(), but waits a while for the piece that is being read. It waits only once for a load
 * that hangs. */
static void forget_within(struct evq_native_prefetch *prefetch, int64_t wait_ms)
{
    const int64_t end_ms = evq_clock_mono_ms() + wait_ms;

    forget(prefetch);
    if (prefetch->begun && !prefetch->hangs) {
        (void)pthread_mutex_lock(&prefetch->lock);
        while (!prefetch->ended && wait_until(prefetch, end_ms)) {
        }
        prefetch->hangs = !prefetch->ended;
        (void)pthread_mutex_unlock(&prefetch->lock);
        forget(prefetch);
    }
}

/* Starts the thread with all signals blocked, because signals are for the program's own threads. */
static bool thread_start(struct evq_native_prefetch *prefetch)
{
    sigset_t all;
    sigset_t before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&prefetch->thread, NULL, prefetch_main, prefetch) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void evq_native_prefetch_begin(struct evq_native_prefetch *prefetch, struct evq_job *job,
                               const struct evq_eval_request *request, bool fast_bf16)
{
    if (!prefetch->taking) {
        forget_within(prefetch, prefetch->patience_ms / TURN_SHARE);
    }
    if (prefetch->begun || prefetch->dropped || request->suite->task_count == 0) {
        evq_job_free(job);
        return;
    }
    prefetch->job = job;
    prefetch->fast_bf16 = fast_bf16;
    prefetch->request = *request;
    prefetch->request.root_fd = -1;
    prefetch->loaded = (struct evq_loaded){.bytes = 0};
    prefetch->ended = prefetch->stop = false;
    prefetch->done = prefetch->total = 0;
    prefetch->begun = thread_start(prefetch);
    if (!prefetch->begun) {
        job_close(prefetch);
    }
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

static bool is_job(const struct evq_native_prefetch *prefetch,
                   const struct evq_eval_request *request)
{
    char ours[EVQ_JOB_ID_BYTES_MAX];
    char theirs[EVQ_JOB_ID_BYTES_MAX];

    if (!prefetch->begun || request->job == NULL || request->suite != prefetch->request.suite ||
        !same_text(request->prepared, "")) {
        return false;
    }
    evq_job_id(prefetch->job, ours);
    evq_job_id(request->job, theirs);
    return strcmp(ours, theirs) == 0 &&
           same_text(prefetch->job->fingerprint, request->job->fingerprint);
}

void evq_native_prefetch_meet(struct evq_native_prefetch *prefetch,
                              const struct evq_eval_request *request)
{
    if (!is_job(prefetch, request)) {
        forget(prefetch);
    }
}

/* Waits for the load. It reports progress only if the load moves, so that a hanging load is
 * noticed. False: the load has not ended, because it hangs or because *status tells to stop. */
static bool await(struct evq_native_prefetch *prefetch, const struct evq_progress *progress,
                  enum evq_status *status)
{
    int64_t end_ms = evq_clock_mono_ms() + prefetch->patience_ms;
    int64_t told = 0;

    (void)pthread_mutex_lock(&prefetch->lock);
    while (!prefetch->ended && *status == EVQ_OK) {
        const int64_t done = prefetch->done;
        const int64_t total = prefetch->total;
        if (done == told) {
            if (!wait_until(prefetch, end_ms)) {
                break;
            }
            continue;
        }
        told = done;
        (void)pthread_mutex_unlock(&prefetch->lock);
        *status = progress->tell(progress->context, done, total);
        end_ms = evq_clock_mono_ms() + prefetch->patience_ms;
        (void)pthread_mutex_lock(&prefetch->lock);
    }
    const bool ended = prefetch->ended;
    (void)pthread_mutex_unlock(&prefetch->lock);
    return ended;
}

enum evq_status evq_native_prefetch_take(struct evq_native_prefetch *prefetch,
                                         const struct evq_eval_request *request,
                                         const struct evq_task_config *config,
                                         const struct evq_progress *progress, void *state,
                                         struct evq_checkpoint **checkpoint,
                                         struct evq_model **ret_model,
                                         struct evq_loaded *ret_loaded, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    *ret_model = NULL;
    if (!is_job(prefetch, request)) {
        return EVQ_OK;
    }
    prefetch->taking = true;
    const bool ended = await(prefetch, progress, &status);
    prefetch->taking = false;
    if (!ended && status == EVQ_OK) {
        evq_log(EVQ_LOG_WARN, "prefetch_hangs", "checkpoint=%s ms=%lld", (*checkpoint)->path,
                (long long)prefetch->patience_ms);
    }
    const bool fits = ended && status == EVQ_OK && prefetch->status == EVQ_OK &&
                      evq_native_checkpoint_same(config, &prefetch->request.suite->tasks[0]) &&
                      evq_checkpoint_same_files(*checkpoint, prefetch->checkpoint);
    if (fits) {
        status = prefetch->backend.ops->exchange(state, prefetch->state, err);
    }
    if (fits && status == EVQ_OK) {
        evq_checkpoint_close(*checkpoint);
        *checkpoint = prefetch->checkpoint;
        *ret_model = prefetch->model;
        *ret_loaded = prefetch->loaded;
        prefetch->checkpoint = NULL;
        prefetch->model = NULL;
    }
    forget(prefetch);
    return status;
}

bool evq_native_prefetch_drop(struct evq_native_prefetch *prefetch)
{
    if (prefetch == NULL || prefetch->dropped) {
        return false;
    }
    forget_within(prefetch, prefetch->patience_ms);
    if (prefetch->begun) {
        return false; // A load that hangs keeps its memory.
    }
    // The next job would need the memory again, so there is no further prefetch.
    prefetch->dropped = prefetch->state != NULL;
    second_set_close(prefetch);
    return prefetch->dropped;
}

bool evq_native_prefetch_free(struct evq_native_prefetch *prefetch)
{
    if (prefetch == NULL) {
        return true;
    }
    forget_within(prefetch, prefetch->patience_ms);
    if (prefetch->begun) {
        const pthread_t thread = prefetch->thread;
        (void)pthread_mutex_lock(&prefetch->lock);
        prefetch->left = !prefetch->ended;
        const bool left = prefetch->left;
        (void)pthread_mutex_unlock(&prefetch->lock);
        if (left) {
            (void)pthread_detach(thread); // This cannot fail for our own thread.
            return false;
        }
        forget(prefetch); // The thread has ended just now.
    }
    prefetch_destroy(prefetch);
    return true;
}
