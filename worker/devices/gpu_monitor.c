#include "worker/devices/gpu_monitor.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/clock.h"

#define PERIODS_MAX  5 // A reading is shown for so many periods if no newer one arrives.
#define CLOSE_WAIT_S 1

struct evq_gpu_monitor;

struct gauged { // One GPU, and the thread that reads only this GPU.
    struct evq_gpu_monitor *gauge;
    pthread_t thread;
    char id[sizeof(((struct evq_device *)0)->id)];
    struct evq_nvml_reading reading;
    int64_t read_ms; // Monotonic; 0: never read.
};

struct evq_gpu_monitor {
    struct gauged items[EVQ_DEVICES_MAX];
    uint32_t count; // GPUs that have a thread.
    int64_t period_ms;
    pthread_mutex_t lock; // Protects the readings, their times and stop.
    pthread_cond_t wake;
    bool stop;
};

/* Waits one period. False: the thread must stop. */
static bool period_wait(struct evq_gpu_monitor *gauge)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_MONOTONIC, &end); // This cannot fail for this clock.
    end.tv_sec += gauge->period_ms / 1000;
    end.tv_nsec += gauge->period_ms % 1000 * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&gauge->lock); // This fails only for a broken mutex.
    while (!gauge->stop && pthread_cond_timedwait(&gauge->wake, &gauge->lock, &end) == 0) {
    }
    const bool go_on = !gauge->stop;
    (void)pthread_mutex_unlock(&gauge->lock);
    return go_on;
}

/* Each thread opens NVML for itself; NVML counts its users. Threads share no handle. */
static void *item_main(void *context)
{
    struct gauged *item = context;
    struct evq_nvml nvml;
    void *device = NULL;
    char note[256];

    if (!evq_nvml_open(&nvml, note, sizeof(note))) {
        return NULL; // The supervisor reported it when it looked for devices.
    }
    if (evq_nvml_find(&nvml, item->id, &device)) {
        do {
            const struct evq_nvml_reading reading = evq_nvml_read(&nvml, device);
            (void)pthread_mutex_lock(&item->gauge->lock); // This fails only for a broken mutex.
            item->reading = reading;
            item->read_ms = evq_clock_mono_ms();
            (void)pthread_mutex_unlock(&item->gauge->lock);
        } while (period_wait(item->gauge));
    }
    evq_nvml_close(&nvml);
    return NULL;
}

static void gauge_free(struct evq_gpu_monitor *gauge)
{
    (void)pthread_cond_destroy(&gauge->wake);
    (void)pthread_mutex_destroy(&gauge->lock);
    free(gauge);
}

/* The condition variable uses the monotonic clock. */
static struct evq_gpu_monitor *gauge_new(int64_t period_ms)
{
    struct evq_gpu_monitor *gauge = calloc(1, sizeof(*gauge));
    pthread_condattr_t attributes;

    if (gauge != NULL) {
        gauge->period_ms = period_ms;
        (void)pthread_mutex_init(&gauge->lock, NULL); // None of these fails on Linux.
        (void)pthread_condattr_init(&attributes);
        (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&gauge->wake, &attributes);
        (void)pthread_condattr_destroy(&attributes);
    }
    return gauge;
}

enum evq_status evq_gpu_monitor_open(const struct evq_devices *devices, int64_t period_ms,
                                     struct evq_gpu_monitor **ret_gauge, struct evq_error *err)
{
    struct evq_gpu_monitor *gauge = gauge_new(period_ms);
    bool started = gauge != NULL;
    sigset_t all;
    sigset_t before;

    (void)sigfillset(&all); // Only the supervisor's main thread handles signals.
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < devices->count && started; i++) {
        struct gauged *item = &gauge->items[i];
        item->gauge = gauge;
        memcpy(item->id, devices->items[i].id, sizeof(item->id));
        started = pthread_create(&item->thread, NULL, item_main, item) == 0;
        gauge->count += started;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) {
        evq_gpu_monitor_close(gauge);
        return evq_error_set(err, EVQ_E_NOMEM, "threads that read %u GPUs", devices->count);
    }
    *ret_gauge = gauge;
    return EVQ_OK;
}

void evq_gpu_monitor_close(struct evq_gpu_monitor *gauge)
{
    struct timespec end;
    uint32_t left = 0;

    if (gauge == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&gauge->lock);
    gauge->stop = true;
    (void)pthread_cond_broadcast(&gauge->wake);
    (void)pthread_mutex_unlock(&gauge->lock);
    (void)clock_gettime(CLOCK_REALTIME, &end); // pthread_timedjoin_np() uses this clock.
    end.tv_sec += CLOSE_WAIT_S;                // This limit is for all threads together.
    for (uint32_t i = 0; i < gauge->count; i++) {
        if (pthread_timedjoin_np(gauge->items[i].thread, NULL, &end) != 0) {
            (void)pthread_detach(gauge->items[i].thread); // The thread still uses its memory.
            left++;
        }
    }
    if (left == 0) {
        gauge_free(gauge);
    }
}

bool evq_gpu_monitor_read(struct evq_gpu_monitor *gauge, const char *id,
                          struct evq_nvml_reading *ret_reading)
{
    bool found = false;

    if (gauge == NULL) {
        return false;
    }
    (void)pthread_mutex_lock(&gauge->lock); // This fails only for a broken mutex.
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
