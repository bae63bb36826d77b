/* Waits for the sender's thread, for flush, close and wait. Declared in sender.h. */
#include <unistd.h>

#include "producer/client/sender.h"
#include "shared/base/clock.h"

#define ASK_AGAIN_MS 50

void evq_sender_notify(struct evq_sender *sender, bool failed)
{
    pthread_mutex_lock(&sender->progress_lock);
    sender->failures += failed;
    pthread_cond_broadcast(&sender->progress);
    pthread_mutex_unlock(&sender->progress_lock);
}

void evq_sender_wake(struct evq_sender *sender)
{
    const uint64_t one = 1;

    (void)!write(sender->wake_fd, &one, sizeof(one)); // Fails only when it is about to wake anyway.
}

static bool is_through(struct evq_sender *sender, uint64_t ring_position)
{
    return atomic_load(&sender->adopted) == 0 && atomic_load(&sender->settled) >= ring_position &&
           atomic_load(&sender->spooled) == 0;
}

bool evq_sender_all_sent(struct evq_sender *sender, uint64_t ring_position, uint64_t *ret_parked)
{
    pthread_mutex_lock(&sender->progress_lock);
    const bool idle = is_through(sender, ring_position);
    *ret_parked = atomic_load(&sender->parked);
    pthread_mutex_unlock(&sender->progress_lock);
    return idle;
}

void evq_sender_wait(struct evq_sender *sender, int64_t until_ms)
{
    const int64_t far_ms = evq_clock_mono_ms() + 3600000; // INT64_MAX would overflow some clocks.
    int64_t end_ms = until_ms < far_ms ? until_ms : far_ms;
    struct timespec until = {.tv_sec = end_ms / 1000, .tv_nsec = end_ms % 1000 * 1000000};

    (void)pthread_cond_timedwait(&sender->progress, &sender->progress_lock, &until);
}

/* Whether all unsent submits wait for their checkpoints, and none for the sender. */
static bool is_idle(struct evq_sender *sender, uint64_t ring_position)
{
    return atomic_load(&sender->taken) >= ring_position && atomic_load(&sender->urgent) == 0 &&
           atomic_load(&sender->spooled) == 0;
}

enum evq_status evq_sender_flush(struct evq_sender *sender, int64_t deadline_ms, int64_t ready_ms,
                                 bool patient)
{
    enum evq_status status = EVQ_OK;
    uint64_t position = evq_ring_tail(sender->ring);

    atomic_fetch_add(&sender->flushing, 1);
    evq_sender_wake(sender);
    pthread_mutex_lock(&sender->progress_lock);
    uint64_t failures = sender->failures;
    while (!sender->ended && !is_through(sender, position)) {
        const int64_t now_ms = evq_clock_mono_ms();
        if (now_ms >= deadline_ms || (!patient && sender->failures > failures) ||
            (now_ms >= ready_ms && is_idle(sender, position))) {
            status = atomic_load(&sender->away) ? EVQ_E_IO : EVQ_E_TIMEOUT;
            break;
        }
        // The thread signals what it sent, but not that a checkpoint is incomplete, so look again.
        const int64_t again_ms = ready_ms == INT64_MAX ? INT64_MAX : now_ms + ASK_AGAIN_MS;
        evq_sender_wait(sender, again_ms < deadline_ms ? again_ms : deadline_ms);
    }
    pthread_mutex_unlock(&sender->progress_lock);
    atomic_fetch_sub(&sender->flushing, 1);
    return status;
}

void evq_sender_check_pins(struct evq_sender *sender, int64_t deadline_ms)
{
    atomic_store(&sender->check_pins, true);
    evq_sender_wake(sender);
    pthread_mutex_lock(&sender->progress_lock);
    while (!sender->ended && atomic_load(&sender->check_pins) &&
           evq_clock_mono_ms() < deadline_ms) {
        evq_sender_wait(sender, deadline_ms);
    }
    pthread_mutex_unlock(&sender->progress_lock);
}
