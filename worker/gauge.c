#include "worker/gauge.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/clock.h"

#define PERIODS_MAX  5 // That a reading is shown without a newer one.
#define CLOSE_WAIT_S 1

struct gauged {
    char id[sizeof(((struct evq_device *)0)->id)];
    void *device; // NVML's; the thread's alone. NULL: not there.
    struct evq_nvml_reading reading;
    int64_t read_ms; // Monotonic; 0: never.
};

struct evq_gauge {
    struct gauged items[EVQ_DEVICES_MAX];
    uint32_t count;
    int64_t period_ms;
    pthread_t thread;
    pthread_mutex_t lock; // Of readings, their times and stop.
    pthread_cond_t wake;
    bool stop;
};

static void readings_take(struct evq_gauge *gauge, const struct evq_nvml *nvml)
{
    for (uint32_t i = 0; i < gauge->count; i++) {
        struct gauged *item = &gauge->items[i];
        if (item->device != NULL) {
            const struct evq_nvml_reading reading = evq_nvml_read(nvml, item->device);
            (void)pthread_mutex_lock(&gauge->lock); // Fails for a broken mutex only.
            item->reading = reading;
            item->read_ms = evq_clock_mono_ms();
            (void)pthread_mutex_unlock(&gauge->lock);
        }
    }
}

/* False: it is time to stop. */
static bool period_wait(struct evq_gauge *gauge)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_MONOTONIC, &end); // Cannot fail for this clock.
    end.tv_sec += gauge->period_ms / 1000;
    end.tv_nsec += gauge->period_ms % 1000 * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&gauge->lock); // Fails for a broken mutex only.
    while (!gauge->stop && pthread_cond_timedwait(&gauge->wake, &gauge->lock, &end) == 0) {
    }
    const bool go_on = !gauge->stop;
    (void)pthread_mutex_unlock(&gauge->lock);
    return go_on;
}

static void *gauge_main(void *context)
{
    struct evq_gauge *gauge = context;
    struct evq_nvml nvml;
    char note[256];

    if (!evq_nvml_open(&nvml, note, sizeof(note))) {
        return NULL; // The supervisor said so when it looked for devices.
    }
    for (uint32_t i = 0; i < gauge->count; i++) {
        if (!evq_nvml_find(&nvml, gauge->items[i].id, &gauge->items[i].device)) {
            gauge->items[i].device = NULL;
        }
    }
    do {
        readings_take(gauge, &nvml);
    } while (period_wait(gauge));
    evq_nvml_close(&nvml);
    return NULL;
}

static void gauge_free(struct evq_gauge *gauge)
{
    (void)pthread_cond_destroy(&gauge->wake);
    (void)pthread_mutex_destroy(&gauge->lock);
    free(gauge);
}

/* Timed by the monotonic clock; signals are for the supervisor's own thread. */
static bool thread_start(struct evq_gauge *gauge)
{
    pthread_condattr_t attributes;
    sigset_t all;
    sigset_t before;

    (void)pthread_mutex_init(&gauge->lock, NULL); // None of these fails on Linux.
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&gauge->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&gauge->thread, NULL, gauge_main, gauge) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

enum evq_status evq_gauge_open(const struct evq_devices *devices, int64_t period_ms,
                               struct evq_gauge **ret_gauge, struct evq_error *err)
{
    struct evq_gauge *gauge = calloc(1, sizeof(*gauge));

    if (gauge == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "readings of %u GPUs", devices->count);
    }
    gauge->count = devices->count;
    gauge->period_ms = period_ms;
    for (uint32_t i = 0; i < devices->count; i++) {
        memcpy(gauge->items[i].id, devices->items[i].id, sizeof(gauge->items[i].id));
    }
    if (!thread_start(gauge)) {
        gauge_free(gauge);
        return evq_error_set(err, EVQ_E_NOMEM, "a thread that reads %u GPUs", devices->count);
    }
    *ret_gauge = gauge;
    return EVQ_OK;
}

void evq_gauge_close(struct evq_gauge *gauge)
{
    struct timespec end;

    if (gauge == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&gauge->lock); // Fails for a broken mutex only.
    gauge->stop = true;
    (void)pthread_cond_signal(&gauge->wake);
    (void)pthread_mutex_unlock(&gauge->lock);
    (void)clock_gettime(CLOCK_REALTIME, &end); // What timed joins go by.
    end.tv_sec += CLOSE_WAIT_S;
    if (pthread_timedjoin_np(gauge->thread, NULL, &end) == 0) {
        gauge_free(gauge);
    } else {
        (void)pthread_detach(gauge->thread); // It holds its memory.
    }
}

bool evq_gauge_read(struct evq_gauge *gauge, const char *id, struct evq_nvml_reading *ret_reading)
{
    bool found = false;

    if (gauge == NULL) {
        return false;
    }
    (void)pthread_mutex_lock(&gauge->lock); // Fails for a broken mutex only.
    for (uint32_t i = 0; i < gauge->count && !found; i++) {
        const struct gauged *item = &gauge->items[i];
        found = strcmp(item->id, id) == 0 && item->read_ms > 0 &&
                evq_clock_mono_ms() - item->read_ms <= PERIODS_MAX * gauge->period_ms;
        if (found) {
            *ret_reading = item->reading;
        }
    }
    (void)pthread_mutex_unlock(&gauge->lock);
    return found;
}
