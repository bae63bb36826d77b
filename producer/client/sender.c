#include "producer/client/sender.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "producer/client/fork.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/remote/remote.h"

#define LOOK_MS        10
#define SPOOL_AGAIN_MS 1000
#define LEFT_KEPT_MS                                                                               \
    ((int64_t)30 * 86400 * 1000) // How long unsent submits of a run stay that is not opened again.
#define TOUCH_EVERY_MS ((int64_t)86400 * 1000)

/* Releases the rings, files and sockets of the thread. */
static void sender_release(struct evq_sender *sender)
{
    for (size_t at = 0; at < sender->log_count; at++) {
        struct evq_submit_log *log = &sender->logs[at];
        bool empty = log->spool != NULL && evq_spool_records(log->spool) == 0;
        evq_pending_close(log, empty);
    }
    sender->log_count = 0;
    evq_pin_releaser_free(&sender->releaser);
    evq_remote_close(sender->remote);
    sender->remote = NULL;
    evq_snapshot_server_close(sender->snapshots);
    sender->snapshots = NULL;
    evq_queue_close(sender->redis);
    sender->redis = NULL;
}

static void sender_free(struct evq_sender *sender)
{
    sender_release(sender); // The thread did this, unless it never started.
    evq_conn_close(sender->conn);
    evq_config_free(sender->config);
    evq_config_free(sender->later);
    evq_warner_close(&sender->warner);
    evq_file_close(&sender->wake_fd);
    pthread_cond_destroy(&sender->progress);
    pthread_mutex_destroy(&sender->progress_lock);
    evq_sent_jobs_free(&sender->sent_jobs);
    free(sender);
}

static void sender_unref(struct evq_sender *sender)
{
    if (atomic_fetch_sub(&sender->owners, 1) == 1) {
        sender_free(sender);
    }
}

/* Updates the progress that other threads wait for. */
static bool update_settled(struct evq_sender *sender)
{
    uint64_t settled = evq_pending_settled(&sender->logs[0]);
    uint64_t adopted = 0;
    uint64_t parked = 0;
    uint64_t urgent = 0;

    for (const struct evq_pending *item = sender->logs[0].first; item != NULL; item = item->next) {
        parked += item->parked;
        urgent += !item->done && !item->parked && (item->ready || item->try_count == 0);
    }
    for (size_t at = 1; at < sender->log_count; at++) {
        const struct evq_submit_log *log = &sender->logs[at];
        adopted += evq_spool_records(log->spool) > 0 ||
                   evq_pending_settled(log) != evq_ring_tail(log->ring);
    }
    bool moved =
        atomic_load(&sender->settled) != settled || atomic_load(&sender->adopted) != adopted;
    pthread_mutex_lock(&sender->progress_lock); // So that evq_sender_all_sent() sees all or none.
    atomic_store(&sender->parked, parked);
    atomic_store(&sender->urgent, urgent);
    atomic_store(&sender->taken, sender->logs[0].cursor);
    atomic_store(&sender->settled, settled);
    atomic_store(&sender->adopted, adopted);
    pthread_mutex_unlock(&sender->progress_lock);
    return moved;
}

static void logs_release(struct evq_sender *sender)
{
    bool released = false;

    for (size_t at = 0; at < sender->log_count; at++) {
        struct evq_submit_log *log = &sender->logs[at];
        released = evq_pending_release(sender, log) || released;
        bool empty = log->first == NULL && log->spool != NULL &&
                     evq_spool_records(log->spool) == 0 &&
                     evq_ring_head(log->ring) == evq_ring_tail(log->ring);
        if (at > 0 && empty) {
            evq_pending_close(log, true);
            *log = sender->logs[--sender->log_count];
            at--;
            released = true;
        }
    }
    released = update_settled(sender) || released;
    if (released) {
        evq_sender_notify(sender, false);
    }
}

/* Opens the spools that are not open yet. Returns when to try again after a failure, monotonic ms;
 * INT64_MAX: all are open. */
static int64_t spools_open(struct evq_sender *sender)
{
    struct evq_error error = {.status = EVQ_OK};
    int64_t again_ms = INT64_MAX;

    for (size_t at = 0; at < sender->log_count; at++) {
        struct evq_submit_log *log = &sender->logs[at];
        if (log->spool != NULL) {
            continue;
        }
        if (evq_spool_open(evq_ring_path(log->ring), sender->spool_bytes_max, &log->spool,
                           &error) != EVQ_OK) {
            evq_warn(&sender->warner, EVQ_WARN_SPOOL, "%s", error.message);
            again_ms = evq_clock_mono_ms() + SPOOL_AGAIN_MS;
        } else {
            atomic_fetch_add(&sender->spooled, evq_spool_records(log->spool));
        }
    }
    return again_ms;
}

/* Opens the spools, and the rings of dead processes of this run. */
static void logs_open(struct evq_sender *sender)
{
    struct evq_error error = {.status = EVQ_OK};
    struct evq_ring *rings[EVQ_SENDER_LOGS_MAX];
    size_t count = 0;

    if (evq_ring_adopt(sender->ring_directory, sender->queue, sender->run, rings,
                       EVQ_SENDER_LOGS_MAX - 1, &count, &error) != EVQ_OK) {
        evq_warn(&sender->warner, EVQ_WARN_SPOOL, "%s", error.message);
    }
    sender->logs[0].ring = sender->ring;
    sender->log_count = 1;
    for (size_t at = 0; at < count; at++) {
        sender->logs[sender->log_count++].ring = rings[at];
        // If it fails, a forked child may keep the ring locked.
        (void)!evq_fork_watch(evq_ring_fd(rings[at]), NULL);
    }
    for (size_t at = 0; at < sender->log_count; at++) {
        sender->logs[at].cursor = evq_ring_head(sender->logs[at].ring);
    }
    (void)spools_open(sender); // The loop tries again to open those that fail.
    (void)update_settled(sender);
}

static bool logs_pending(const struct evq_sender *sender)
{
    for (size_t at = 0; at < sender->log_count; at++) {
        const struct evq_submit_log *log = &sender->logs[at];
        if (log->has_new || evq_ring_ready(log->ring, log->cursor)) {
            return true;
        }
    }
    return false;
}

/*
 * Sleeps, but looks at the ring every LOOK_MS. Submits do not wake this thread: that would cost the
 * trainer up to about 20 us and, on a busy machine, its core for a while. Looking costs this thread
 * about 0.05 % of a core.
 */
static void sleep_until(struct evq_sender *sender, int64_t next_ms)
{
    struct pollfd wake = {.fd = sender->wake_fd, .events = POLLIN};
    uint64_t count = 0;
    int64_t look_ms = evq_clock_mono_ms() + LOOK_MS;

    while (!logs_pending(sender) && !atomic_load(&sender->stop)) {
        int timeout = evq_clock_left_ms(next_ms < look_ms ? next_ms : look_ms);
        if (poll(&wake, 1, timeout) != 0) {
            break; // Woken.
        }
        look_ms = evq_clock_mono_ms();
        if (look_ms >= next_ms || atomic_load(&sender->full_seen) != sender->full_warned) {
            break;
        }
        look_ms += LOOK_MS;
    }
    (void)!read(sender->wake_fd, &count, sizeof(count)); // Non-blocking.
}

/* Sets the time of the rings' files to now, once a day. Returns when it is due again. */
static int64_t rings_touch(struct evq_sender *sender)
{
    const int64_t now = evq_clock_mono_ms();

    if (now >= sender->touch_ms) {
        for (size_t at = 0; at < sender->log_count; at++) { // Also rings with only parked submits.
            evq_ring_touch(sender->logs[at].ring);
        }
        sender->touch_ms = now + TOUCH_EVERY_MS;
    }
    return sender->touch_ms;
}

static void *sender_main(void *argument)
{
    struct evq_sender *sender = argument;

    const struct sched_param no_priority = {.sched_priority = 0};

    (void)pthread_setname_np(pthread_self(), "evalq");
    // This thread must not take a core from a computing thread. If this fails, it runs as any other
    // thread.
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &no_priority);
    (void)prctl(PR_SET_TIMERSLACK, 1000000UL); // Lets the kernel join this thread's wake-ups.
    logs_open(sender);
    evq_sender_notify(sender, false);
    const size_t given_up = evq_ring_sweep(sender->ring_directory, LEFT_KEPT_MS);
    if (given_up > 0) {
        evq_warn(&sender->warner, EVQ_WARN_OLD,
                 "what %zu earlier runs had submitted and could not send for 30 days was removed "
                 "from %s; `evalq scan` finds their checkpoints",
                 given_up, sender->ring_directory);
    }
    while (!atomic_load(&sender->stop)) {
        int64_t next = rings_touch(sender);
        const int64_t again = spools_open(sender);
        next = again < next ? again : next;
        for (size_t at = 0; at < sender->log_count; at++) {
            evq_pending_take(sender, &sender->logs[at]);
            int64_t due = evq_prepare_due(sender, &sender->logs[at]);
            next = due < next ? due : next;
        }
        logs_release(sender);
        if (atomic_load(&sender->full_seen)) {
            sender->full_warned = true;
            evq_warn(&sender->warner, EVQ_WARN_FULL,
                     "the ring in %s is full, so a submit was dropped; `evalq scan` finds its "
                     "checkpoint later",
                     sender->ring_directory);
        }
        if (!atomic_load(&sender->stop)) {
            int64_t due = evq_deliver(sender);
            next = due < next ? due : next;
        }
        logs_release(sender);
        sleep_until(sender, next);
    }
    // This comes before close() returns, so that the next open can use the ring.
    sender_release(sender);
    pthread_mutex_lock(&sender->progress_lock);
    sender->ended = true;
    pthread_cond_broadcast(&sender->progress);
    pthread_mutex_unlock(&sender->progress_lock);
    sender_unref(sender);
    return NULL;
}

static enum evq_status thread_start(struct evq_sender *sender, struct evq_error *err)
{
    pthread_attr_t attributes;
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); // The trainer's threads handle signals.
    int failed = pthread_create(&sender->thread, &attributes, sender_main, sender);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed == 0 ? EVQ_OK
                       : evq_error_set(err, EVQ_E_NOMEM, "start the background thread: %s",
                                       strerror(failed));
}

static enum evq_status sender_connect(struct evq_sender *sender, struct evq_error *err)
{
    const struct evq_config *config = sender->config;
    struct evq_conn_config conn = evq_config_conn(config, "evalq-client");

    conn.keep_environment = true; // The environment belongs to the trainer.
    conn.connect_timeout_ms = 2000;
    conn.call_timeout_ms = 5000;
    enum evq_status status = evq_conn_open(&conn, &sender->conn, err);

    return status == EVQ_OK ? evq_queue_open(sender->conn, sender->queue, &sender->redis, err)
                            : status;
}

/* The path of the configuration, which need not exist yet. "": it cannot be read again. */
static void config_path_find(const struct evq_config *config, char out[PATH_MAX])
{
    char here[PATH_MAX];

    if (config->file[0] != '\0') {
        if (realpath(config->file, out) == NULL) {
            out[0] = '\0';
        }
    } else if (getcwd(here, sizeof(here)) == NULL ||
               snprintf(out, PATH_MAX, "%s/evalq.yaml", here) >= PATH_MAX) {
        out[0] = '\0';
    }
}

enum evq_status evq_sender_start(const struct evq_sender_options *options, struct evq_ring *ring,
                                 struct evq_config *config, const struct evq_warner *warner,
                                 struct evq_sender **ret_sender, struct evq_error *err)
{
    struct evq_sender *sender = calloc(1, sizeof(*sender));
    pthread_condattr_t clock;
    enum evq_status status = EVQ_OK;

    if (sender == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "client of run '%s'", options->run);
    }
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&sender->progress, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&sender->progress_lock, NULL);
    evq_sent_jobs_init(&sender->sent_jobs);
    sender->warner.fd = -1;
    (void)snprintf(sender->queue, sizeof(sender->queue), "%s", options->queue);
    (void)snprintf(sender->run, sizeof(sender->run), "%s", options->run);
    (void)snprintf(sender->ring_directory, sizeof(sender->ring_directory), "%s",
                   options->ring_directory);
    (void)snprintf(sender->snapshot_host, sizeof(sender->snapshot_host), "%s",
                   options->snapshot_host);
    if (gethostname(sender->host, sizeof(sender->host) - 1) != 0) {
        (void)snprintf(sender->host, sizeof(sender->host), "localhost");
    }
    sender->spool_bytes_max = options->spool_bytes_max;
    sender->pin_bytes_max = options->pin_bytes_max;
    sender->pin = options->pin;
    sender->jitter = evq_clock_random();
    atomic_init(&sender->adopted, 1);
    atomic_init(&sender->owners, 2);
    sender->config = config;
    config_path_find(config, sender->config_path);
    sender->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = sender->wake_fd < 0 ? evq_error_set(err, EVQ_E_IO, "eventfd: %s", strerror(errno))
                                 : sender_connect(sender, err);
    if (status == EVQ_OK) {
        sender->ring = ring;
        sender->inherited = evq_ring_tail(ring);
        sender->warner.fd = warner->fd;
        status = thread_start(sender, err);
    }
    if (status != EVQ_OK) {
        sender->config = NULL; // The caller still owns it, and ring and warner.
        sender->warner.fd = -1;
        sender_free(sender);
        return status;
    }
    *ret_sender = sender;
    return EVQ_OK;
}

void evq_sender_stop(struct evq_sender *sender, int64_t deadline_ms)
{
    atomic_store(&sender->stop, true);
    evq_conn_interrupt(sender->conn);
    evq_sender_wake(sender);
    pthread_mutex_lock(&sender->progress_lock);
    while (!sender->ended && evq_clock_mono_ms() < deadline_ms) {
        evq_sender_wait(sender, deadline_ms);
    }
    pthread_mutex_unlock(&sender->progress_lock);
    sender_unref(sender);
}
