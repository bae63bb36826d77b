#include "worker/supervisor/supervisor.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "worker/child/scratch.h"

#define START_RETRY_MS 60000
#define TICK_MAX_MS    10000

/* ---- start ---- */

static void name_make(struct evq_supervisor *supervisor)
{
    char host[21];

    if (gethostname(supervisor->host, sizeof(supervisor->host) - 1) != 0 ||
        supervisor->host[0] == '\0') {
        (void)snprintf(supervisor->host, sizeof(supervisor->host), "host");
    }
    evq_job_map_name(supervisor->host, sizeof(host) - 1, host);
    (void)snprintf(supervisor->name, sizeof(supervisor->name), "%s-%016llx", host,
                   (unsigned long long)evq_clock_random());
    supervisor->request_nonce = evq_clock_random();
}

static int32_t threads_of(const struct evq_supervisor *supervisor)
{
    cpu_set_t cpus;
    int32_t threads = supervisor->options->threads >= 0 ? supervisor->options->threads
                                                        : supervisor->config->worker.threads;

    if (threads == 0 && sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
        threads = CPU_COUNT(&cpus) / (int32_t)supervisor->slot_count;
    }
    return threads > 0 ? threads : 1;
}

/* The argument list of a child: this binary with the same configuration. It lives as long as the
 * process. NULL: out of memory. */
static const char **child_argv(const struct evq_supervisor *supervisor)
{
    enum { WORDS_MAX = 12 };
    struct evq_arena *arena = supervisor->config->arena;
    char real[PATH_MAX];
    size_t count = 0;

    const char **argv = evq_arena_array(arena, WORDS_MAX, sizeof(*argv));
    char *threads = evq_arena_printf(arena, "%d", threads_of(supervisor));
    if (argv == NULL || threads == NULL) {
        return NULL;
    }
    argv[count++] = "evalq-worker";
    argv[count++] = "child";
    if (supervisor->config->file[0] != '\0') {
        const char *file =
            realpath(supervisor->config->file, real) != NULL ? real : supervisor->config->file;
        argv[count++] = "--config";
        argv[count++] = evq_arena_strdup(arena, file);
    }
    argv[count++] = "--threads";
    argv[count++] = threads;
    if (supervisor->options->warm) {
        argv[count++] = "--warm";
    }
    argv[count] = NULL;
    return argv;
}

/* Warns if some GPUs of the machine will stay unused, because somebody pays for them. */
static void gpus_count(struct evq_supervisor *supervisor, const struct evq_devices *devices,
                       bool shared)
{
    const struct evq_gpu_leases *gpus = &supervisor->gpus;
    uint32_t taken = gpus->share_count * gpus->per_share; // This is 0 if GPUs are not shared.

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        taken += (uint32_t)supervisor->slots[i].gpus;
    }
    supervisor->gpus_seen = devices->count;
    supervisor->gpus_taken = taken < devices->count ? taken : devices->count;
    if (taken < devices->count) {
        evq_log(EVQ_LOG_WARN, "gpus_unused", "slots=%u gpus=%u of=%u reason=%s",
                supervisor->slot_count, taken, devices->count,
                shared ? "worker.slots and worker.gpus_per_slot use fewer GPUs than there are; "
                         "other workers of this machine can use the rest"
                       : "a slot uses only one MIG instance");
    }
}

static enum evq_status slots_make(struct evq_supervisor *supervisor, struct evq_error *err)
{
    const struct evq_options *options = supervisor->options;
    const struct evq_config *config = supervisor->config;
    struct evq_devices devices;

    bool shared = false;
    const enum evq_status status =
        evq_gpu_leases_choose(config, options->devices, &devices, &shared, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (devices.note[0] != '\0') {
        evq_log(EVQ_LOG_INFO, "devices", "gpus=%u note=%s", devices.count, devices.note);
    }
    int32_t count = options->slots > 0 ? options->slots : config->worker.slots;
    if (count <= 0) {
        const int32_t each = shared ? config->worker.gpus_per_slot : 1;
        count = (int32_t)devices.count > each ? (int32_t)devices.count / each : 1;
    }
    if (devices.count > 0) {
        const enum evq_status monitored =
            evq_gpu_monitor_open(&devices, supervisor->heartbeat_ms, &supervisor->gpu_monitor, err);
        if (monitored != EVQ_OK) {
            return monitored;
        }
    }
    supervisor->slots = calloc((size_t)count, sizeof(*supervisor->slots));
    supervisor->suite_seconds = calloc(config->suite_count + 1, sizeof(*supervisor->suite_seconds));
    supervisor->disk_pauses = calloc(config->suite_count + 1, sizeof(*supervisor->disk_pauses));
    if (supervisor->slots == NULL || supervisor->suite_seconds == NULL ||
        supervisor->disk_pauses == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%d slots", count);
    }
    supervisor->slot_count = (uint32_t)count;
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        evq_slot_init(slot, i);
        if (shared) {
            evq_slot_move(slot, EVQ_SLOT_ON_GPUS_LOST);
        } else {
            evq_devices_deal(&devices, i, supervisor->slot_count, slot->devices, &slot->gpus,
                             &slot->memory_bytes);
        }
    }
    const enum evq_status opened =
        shared ? evq_gpu_leases_open(&supervisor->gpus, &devices, config->worker.gpus_per_slot,
                                     supervisor->slot_count, err)
               : EVQ_OK;
    if (opened == EVQ_OK) {
        gpus_count(supervisor, &devices, shared);
    }
    return opened;
}

static enum evq_status signals_open(struct evq_supervisor *supervisor, struct evq_error *err)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP); // A closing terminal sends it; the worker drains.
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    supervisor->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return supervisor->signal_fd >= 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_IO, "signalfd: %s", strerror(errno));
}

/* Makes the first contact with Redis. Errors of Redis or of the configuration are reported now,
 * with an exit code. */
static enum evq_status redis_greet(struct evq_supervisor *supervisor, struct evq_error *err)
{
    const int64_t give_up_ms = evq_clock_mono_ms() + START_RETRY_MS;
    bool new_epoch = false;
    uint32_t tries = 0;

    for (;;) {
        enum evq_status status = evq_redis_session_check(&supervisor->redis, true, &new_epoch, err);
        if (status == EVQ_OK) {
            status =
                evq_suite_registry_register(&supervisor->registry, supervisor->redis.queue, err);
        }
        if (status == EVQ_OK) {
            return evq_redis_session_check(&supervisor->redis, true, &new_epoch, err);
        }
        // LOADING and similar states pass. A server that cannot be reached may be a wrong address,
        // which must be reported.
        if (status != EVQ_E_RETRY || evq_clock_mono_ms() >= give_up_ms) {
            return status;
        }
        struct pollfd item = {.fd = supervisor->signal_fd, .events = POLLIN};
        const int64_t wait_ms =
            evq_cause_wait_ms(EVQ_CAUSE_REDIS_LOADING, tries++, &supervisor->redis.seed);
        if (poll(&item, 1, (int)wait_ms) > 0) {
            return evq_error_set(err, EVQ_E_STOPPED, "stopped by a signal before Redis was ready");
        }
    }
}

static enum evq_exit start_exit(enum evq_status status)
{
    switch (status) {
    case EVQ_E_INVALID:
    case EVQ_E_NOT_FOUND:
    case EVQ_E_CONFLICT:
        return EVQ_EXIT_CONFIG;
    case EVQ_E_RETRY:
    case EVQ_E_TIMEOUT: // Redis does not answer. No job was lost, because none was claimed.
        return EVQ_EXIT_UNREACHABLE;
    default:
        return evq_status_exit_code(status);
    }
}

static enum evq_status supervisor_open(struct evq_supervisor *supervisor, struct evq_error *err)
{
    const struct evq_options *options = supervisor->options;

    enum evq_status status = evq_config_load(&options->source, &supervisor->config, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_config *config = supervisor->config;
    name_make(supervisor);
    supervisor->started_unix_ms = evq_clock_unix_ms();
    supervisor->idle_since_ms = evq_clock_mono_ms();
    supervisor->lease_ms = config->worker.lease_ms;
    supervisor->heartbeat_ms = config->worker.heartbeat_ms;
    if (supervisor->lease_ms < 3 * supervisor->heartbeat_ms) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "worker.lease_ms is %lld, which is less than 3 heartbeats of %lld ms",
                             (long long)supervisor->lease_ms, (long long)supervisor->heartbeat_ms);
    }
    status = signals_open(supervisor, err);
    if (status == EVQ_OK) {
        status = evq_scratch_open(config->worker.scratch, err);
    }
    if (status == EVQ_OK) {
        status = slots_make(supervisor, err);
    }
    if (status == EVQ_OK) {
        supervisor->spawn.argv = child_argv(supervisor);
        status = supervisor->spawn.argv != NULL
                     ? EVQ_OK
                     : evq_error_set(err, EVQ_E_NOMEM, "arguments of the children");
    }
    if (status == EVQ_OK) {
        status = evq_suite_registry_open(&supervisor->registry, config, options->suites,
                                         supervisor->host, err);
    }
    if (status == EVQ_OK) {
        status = evq_redis_session_open(&supervisor->redis, config, supervisor->name,
                                        supervisor->lease_ms, err);
    }
    if (status == EVQ_OK) {
        status = redis_greet(supervisor, err);
    }
    if (status == EVQ_OK) {
        supervisor->registered = true;
        supervisor->claim_due = true;
        for (uint32_t i = 0; i < supervisor->slot_count; i++) {
            if (!evq_slot_waits_for_gpus(&supervisor->slots[i])) {
                supervisor->classes_stale =
                    evq_suite_registry_fit(&supervisor->registry, &supervisor->slots[i]) !=
                        EVQ_OK ||
                    supervisor->classes_stale;
            }
        }
    }
    return status;
}

static void supervisor_close(struct evq_supervisor *supervisor)
{
    while (supervisor->leases != NULL) {
        struct evq_lease *lease = supervisor->leases;
        supervisor->leases = lease->next;
        evq_lease_free(lease);
    }
    evq_gpu_monitor_close(supervisor->gpu_monitor);
    evq_redis_session_close(&supervisor->redis);
    evq_suite_registry_close(&supervisor->registry);
    free(supervisor->slots);
    free(supervisor->suite_seconds);
    free(supervisor->disk_pauses);
    evq_config_free(supervisor->config);
    evq_file_close(&supervisor->signal_fd);
}

static void signals_take(struct evq_supervisor *supervisor)
{
    struct signalfd_siginfo info;

    while (read(supervisor->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            // Several deaths may arrive as one signal, so all children are checked.
            supervisor->child_exited = true;
            continue;
        }
        supervisor->stop_signalled = true;
        if (supervisor->draining && !supervisor->forced) {
            evq_drain_force(supervisor);
        } else if (!supervisor->draining) {
            evq_drain_begin(supervisor, "signal", supervisor->config->worker.drain_seconds * 1000);
        }
    }
}

/* ---- the loop ---- */

static int64_t due_ms(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    const struct evq_options *options = supervisor->options;
    int64_t due = evq_redis_round_due_ms(supervisor);

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        const struct evq_slot *slot = &supervisor->slots[i];
        const int64_t slot_due = slot->state == EVQ_SLOT_DOWN && supervisor->draining
                                     ? INT64_MAX
                                     : evq_slot_due_ms(slot);
        due = slot_due < due ? slot_due : due;
    }
    if (supervisor->draining && supervisor->drain_ms > now_ms && supervisor->drain_ms < due) {
        due = supervisor->drain_ms;
    }
    if (options->idle_exit_s >= 0 && supervisor->leases == NULL && !supervisor->draining) {
        const int64_t idle_due = supervisor->idle_since_ms + options->idle_exit_s * 1000;
        // If it has passed, only an event can change anything.
        due = idle_due > now_ms && idle_due < due ? idle_due : due;
    }
    // An overdue drain, and deadlines on the wall clock, are checked at intervals.
    const int64_t most_ms = supervisor->draining      ? 100
                            : options->deadline_s > 0 ? 1000
                                                      : TICK_MAX_MS;
    return due < now_ms + most_ms ? due : now_ms + most_ms;
}

static void loop_poll(struct evq_supervisor *supervisor, struct pollfd *items)
{
    const int64_t now_ms = evq_clock_mono_ms();
    nfds_t count = 0;

    items[count++] = (struct pollfd){.fd = supervisor->signal_fd, .events = POLLIN};
    items[count++] =
        (struct pollfd){.fd = evq_redis_session_wait_fd(&supervisor->redis), .events = POLLIN};
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        const struct evq_slot *slot = &supervisor->slots[i];
        const bool ended = slot->channel.ended; // Nothing but the death of the child can follow.
        items[count++] = (struct pollfd){
            .fd = ended ? -1 : slot->channel.fd,
            .events = (short)(slot->channel.out.bytes > 0 ? POLLIN | POLLOUT : POLLIN)};
        items[count++] = (struct pollfd){.fd = slot->errors.read_fd, .events = POLLIN};
    }
    (void)poll(items, count, evq_clock_left_ms(due_ms(supervisor, now_ms)));
    // This comes first, because an evaluator may have died of the same signal that we received.
    signals_take(supervisor);
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if ((items[2 + 2 * i].revents & POLLOUT) != 0) {
            (void)evq_channel_flush(&slot->channel, NULL); // If the child is dead, SIGCHLD tells.
        }
        if (items[2 + 2 * i].revents != 0 || items[3 + 2 * i].revents != 0) {
            evq_child_notes_read(supervisor, slot);
        }
    }
    if (supervisor->child_exited) {
        supervisor->child_exited = false;
        evq_children_reap(supervisor);
    }
    evq_redis_round_wake(supervisor, items[1].revents != 0);
}

static void supervisor_leave(struct evq_supervisor *supervisor)
{
    struct evq_error err;

    evq_redis_session_wait_drop(&supervisor->redis);
    if (supervisor->leases != NULL) {
        evq_log(EVQ_LOG_ERROR, "leases_unreported", "reason=%s",
                "Redis did not answer, so not all jobs were given back: the queue gives them to "
                "other workers when their leases lapse");
        supervisor->exit_code =
            supervisor->exit_code == EVQ_EXIT_OK ? EVQ_EXIT_UNREACHABLE : supervisor->exit_code;
        return;
    }
    const enum evq_status status =
        evq_queue_worker_leave(supervisor->redis.queue, supervisor->name, &err);
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_WARN, "leave_failed", "reason=%s", err.message);
    }
}

static enum evq_status loop_run(struct evq_supervisor *supervisor, struct evq_error *err)
{
    struct pollfd *items = calloc(2 + 2 * (size_t)supervisor->slot_count, sizeof(*items));

    if (items == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the supervisor's loop");
    }
    evq_log(EVQ_LOG_INFO, "start", "worker=%s redis=%s queue=%s slots=%u classes=%u version=%s",
            supervisor->name, evq_conn_where(supervisor->redis.conn),
            evq_queue_name(supervisor->redis.queue), supervisor->slot_count,
            supervisor->registry.class_count, EVQ_VERSION);
    for (;;) {
        const int64_t now_ms = evq_clock_mono_ms();
        evq_children_tick(supervisor, now_ms);
        evq_redis_round_run(supervisor);
        // This comes after the round, which may have ended the last job.
        evq_drain_tick(supervisor, now_ms);
        if (evq_drain_over(supervisor, evq_clock_mono_ms())) {
            break;
        }
        loop_poll(supervisor, items);
    }
    supervisor_leave(supervisor);
    evq_children_stop(supervisor);
    evq_gpu_leases_leave(supervisor);
    evq_log(EVQ_LOG_INFO, "stop", "worker=%s jobs=%lld", supervisor->name,
            (long long)supervisor->jobs_taken);
    free(items);
    return EVQ_OK;
}

enum evq_exit evq_supervisor_main(const struct evq_options *options)
{
    struct evq_options mine = *options;
    struct evq_supervisor supervisor = {.options = &mine, .signal_fd = -1};
    struct evq_error err;

    const char *slurm_end = getenv("SLURM_JOB_END_TIME");
    if (mine.deadline_s == 0 && slurm_end != NULL) {
        // A value that is not a number gives 0, which means no deadline.
        mine.deadline_s = strtoll(slurm_end, NULL, 10);
    }
    enum evq_status status = supervisor_open(&supervisor, &err);
    if (status == EVQ_OK) {
        status = loop_run(&supervisor, &err);
    }
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "evalq-worker: %s\n", err.message);
        supervisor.exit_code = start_exit(status);
    }
    supervisor_close(&supervisor);
    return supervisor.exit_code;
}
