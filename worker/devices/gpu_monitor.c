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

struct monitored { // One GPU, and the thread that reads only this GPU.
    struct evq_gpu_monitor *monitor;
    pthread_t thread;
    char id[sizeof(((struct evq_device *)0)->id)];
    struct evq_nvml_reading reading;
    int64_t read_ms; // Monotonic; 0: never read.
};

struct evq_gpu_monitor {
    struct monitored items[EVQ_DEVICES_MAX];
    uint32_t count; // GPUs that have a thread.
    int64_t period_ms;
    pthread_mutex_t lock; // Protects the readings, their times and stop.
    pthread_cond_t wake;
    bool stop;
};

/* Waits one period. False: the thread must stop. */
static bool period_wait(struct evq_gpu_monitor *monitor)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_MONOTONIC, &end); // This cannot fail for this clock.
    end.tv_sec += monitor->period_ms / 1000;
    end.tv_nsec += monitor->period_ms % 1000 * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&monitor->lock); // This fails only for a broken mutex.
    while (!monitor->stop && pthread_cond_timedwait(&monitor->wake, &monitor->lock, &end) == 0) {
    }
    const bool go_on = !monitor->stop;
    (void)pthread_mutex_unlock(&monitor->lock);
    return go_on;
}

/* Each thread opens NVML for itself; NVML counts its users. Threads share no handle. */
static void *item_main(void *context)
{
    struct monitored *item = context;
    struct evq_nvml nvml;
    void *device = NULL;
    char note[256];

    if (!evq_nvml_open(&nvml, note, sizeof(note))) {
        return NULL; // The supervisor reported it when it looked for devices.
    }
    if (evq_nvml_find(&nvml, item->id, &device)) {
        do {
            const struct evq_nvml_reading reading = evq_nvml_read(&nvml, device);
            (void)pthread_mutex_lock(&item->monitor->lock); // This fails only for a broken mutex.
            item->reading = reading;
            item->read_ms = evq_clock_mono_ms();
            (void)pthread_mutex_unlock(&item->monitor->lock);
        } while (period_wait(item->monitor));
    }
    evq_nvml_close(&nvml);
    return NULL;
}

static void monitor_free(struct evq_gpu_monitor *monitor)
{
    (void)pthread_cond_destroy(&monitor->wake);
    (void)pthread_mutex_destroy(&monitor->lock);
    free(monitor);
}

/* The condition variable uses the monotonic clock. */
static struct evq_gpu_monitor *monitor_new(int64_t period_ms)
{
    struct evq_gpu_monitor *monitor = calloc(1, sizeof(*monitor));
    pthread_condattr_t attributes;

    if (monitor != NULL) {
        monitor->period_ms = period_ms;
        (void)pthread_mutex_init(&monitor->lock, NULL); // None of these fails on Linux.
        (void)pthread_condattr_init(&attributes);
        (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&monitor->wake, &attributes);
        (void)pthread_condattr_destroy(&attributes);
    }
    return monitor;
}

enum evq_status evq_gpu_monitor_open(const struct evq_devices *devices, int64_t period_ms,
                                     struct evq_gpu_monitor **ret_monitor, struct evq_error *err)
{
    struct evq_gpu_monitor *monitor = monitor_new(period_ms);
    bool started = monitor != NULL;
    sigset_t all;
    sigset_t before;

    (void)sigfillset(&all); // Only the supervisor's main thread handles signals.
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < devices->count && started; i++) {
        struct monitored *item = &monitor->items[i];
        item->monitor = monitor;
        memcpy(item->id, devices->items[i].id, sizeof(item->id));
        started = pthread_create(&item->thread, NULL, item_main, item) == 0;
        monitor->count += started;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) {
        evq_gpu_monitor_close(monitor);
        return evq_error_set(err, EVQ_E_NOMEM, "threads that read %u GPUs", devices->count);
    }
    *ret_monitor = monitor;
    return EVQ_OK;
}

void evq_gpu_monitor_close(struct evq_gpu_monitor *monitor)
{
    struct timespec end;
    uint32_t left = 0;

    if (monitor == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&monitor->lock);
    monitor->stop = true;
    (void)pthread_cond_broadcast(&monitor->wake);
    (void)pthread_mutex_unlock(&monitor->lock);
    (void)clock_gettime(CLOCK_REALTIME, &end); // pthread_timedjoin_np() uses this clock.
    end.tv_sec += CLOSE_WAIT_S;                // This limit is for all threads together.
    for (uint32_t i = 0; i < monitor->count; i++) {
        if (pthread_timedjoin_np(monitor->items[i].thread, NULL, &end) != 0) {
            (void)pthread_detach(monitor->items[i].thread); // The thread still uses its memory.
            left++;
        }
    }
    if (left == 0) {
        monitor_free(monitor);
    }
}

bool evq_gpu_monitor_read(struct evq_gpu_monitor *monitor, const char *id,
                          struct evq_nvml_reading *ret_reading)
{
    bool found = false;

    if (monitor == NULL) {
        return false;
    }
    (void)pthread_mutex_lock(&monitor->lock); // This fails only for a broken mutex.
    for (uint32_t i = 0; i < monitor->count && !found; i++) {
        const struct monitored *item = &monitor->items[i];
        found = strcmp(item->id, id) == 0 && item->read_ms > 0 &&
                evq_clock_mono_ms() - item->read_ms <= PERIODS_MAX * monitor->period_ms;
        if (found) {
            *ret_reading = item->reading;
        }
    }
    (void)pthread_mutex_unlock(&monitor->lock);
    return found;
}
