#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

#define LOOK_MS 100 // If a job ends sooner than this, prefetching the next one gains nothing.

/* ---- the slot whose device takes the weights ---- */

/* Picks the slot with the oldest job on a GPU, because that job is likely to end first. */
static struct evq_slot *slot_pick(struct evq_supervisor *supervisor, const struct evq_job *job)
{
    struct evq_slot *first = NULL;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (slot->state == EVQ_SLOT_RUNNING && slot->lease != NULL && slot->gpus > 0 &&
            evq_claim_rules_fit(supervisor, job, slot) &&
            (first == NULL || slot->lease->claimed_ms < first->lease->claimed_ms)) {
            first = slot;
        }
    }
    return first;
}

/* Tells the child of a slot to load the weights beside those of its present job. */
static void slot_tell(struct evq_supervisor *supervisor, const struct evq_job *job)
{
    const struct evq_suite *suite = evq_suite_registry_suite(&supervisor->registry, job->suite);
    struct evq_slot *slot = slot_pick(supervisor, job);
    struct evq_buffer record;

    if (slot == NULL || suite == NULL || strcmp(suite->evaluator, "native") != 0 ||
        suite->prepare[0] != '\0') {
        return;
    }
    evq_buffer_init(&record, 0);
    if (evq_codec_job_encode(job, &record, NULL) == EVQ_OK) {
        const struct evq_field fields[] = {evq_channel_text("suite", suite->name),
                                           evq_channel_text("digest", suite->digest),
                                           evq_channel_bytes("record", record.data, record.bytes)};
        const enum evq_status status = evq_channel_send(&slot->channel, "prefetch", fields,
                                                        sizeof(fields) / sizeof(fields[0]), NULL);
        // If this fails, the child dies, and its death is handled elsewhere.
        evq_log(EVQ_LOG_DEBUG, "prefetch_load", "job=%s slot=%u told=%d", supervisor->prefetch.id,
                slot->number, status == EVQ_OK);
    }
    evq_buffer_free(&record);
}

/* ---- the process that reads ---- */

/* The job's record as a readable file descriptor; -1 on failure. A memfd cannot block its writer as
 * a pipe could. */
static int record_open(const struct evq_job *job)
{
    struct evq_buffer record;
    int fd = -1;

    evq_buffer_init(&record, 0);
    if (evq_codec_job_encode(job, &record, NULL) == EVQ_OK) {
        fd = memfd_create("evalq-prefetch", MFD_CLOEXEC);
        if (fd >= 0 && (write(fd, record.data, record.bytes) != (ssize_t)record.bytes ||
                        lseek(fd, 0, SEEK_SET) != 0)) {
            (void)close(fd); // Half a record is useless.
            fd = -1;
        }
    }
    evq_buffer_free(&record);
    return fd;
}

/* Runs in the forked copy, so it makes only async-signal-safe calls. */
static void reader_exec(const struct evq_slot_spawn *spawn, char *const *envp, int record_fd,
                        pid_t parent)
{
    char *const *argv = NULL;

    evq_slot_forked(parent);
    const int output = open("/dev/null", O_WRONLY | O_CLOEXEC);
    // The descriptors are first copied to high numbers, because each may already have the number
    // that the other must get.
    const int record_copy = fcntl(record_fd, F_DUPFD_CLOEXEC, 10);
    const int output_copy = fcntl(output, F_DUPFD_CLOEXEC, 10);
    // execve() takes char *const[] but does not write to it.
    memcpy(&argv, &spawn->argv, sizeof(argv));
    if (dup2(record_copy, 0) == 0 && dup2(output_copy, 1) == 1 && dup2(output_copy, 2) == 2) {
        (void)execve("/proc/self/exe", argv, envp);
    }
    _exit(127);
}

static void reader_start(struct evq_supervisor *supervisor, const struct evq_job *job)
{
    char devices_line[] = "CUDA_VISIBLE_DEVICES=";
    struct evq_prefetch *prefetch = &supervisor->prefetch;
    const pid_t parent = getpid();

    char **envp = evq_slot_environment(devices_line);
    int record_fd = record_open(job);
    const pid_t pid = envp != NULL && record_fd >= 0 ? fork() : -1;
    if (pid == 0) {
        reader_exec(&prefetch->spawn, envp, record_fd, parent);
    }
    evq_file_close(&record_fd); // The new process has its own copy.
    free(envp);
    // If the process cannot start, the job is simply not prefetched.
    prefetch->pid = pid > 0 ? pid : 0;
    prefetch->stopped = false;
    prefetch->began_ms = evq_clock_mono_ms();
}

void evq_prefetch_stop(struct evq_supervisor *supervisor)
{
    struct evq_prefetch *prefetch = &supervisor->prefetch;

    if (prefetch->pid > 0 && !prefetch->stopped) {
        prefetch->stopped = true;
        (void)kill(prefetch->pid, SIGKILL);
    }
}

void evq_prefetch_reap(struct evq_supervisor *supervisor)
{
    struct evq_prefetch *prefetch = &supervisor->prefetch;
    int wait_status = 0;

    if (prefetch->pid <= 0 || waitpid(prefetch->pid, &wait_status, WNOHANG) != prefetch->pid) {
        // A process that hangs in a file system call is waited for, and no other is started.
        return;
    }
    const bool done = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == EVQ_EXIT_OK;
    evq_log(done ? EVQ_LOG_INFO : EVQ_LOG_DEBUG, "prefetch", "job=%s ms=%lld outcome=%s",
            prefetch->id, (long long)(evq_clock_mono_ms() - prefetch->began_ms),
            prefetch->stopped ? "stopped"
            : done            ? "done"
                              : "left");
    prefetch->pid = 0;
    if (done && !prefetch->stopped) {
        slot_tell(supervisor, prefetch->job);
    }
    if (prefetch->stopped) {
        // If this job is still the next one later, its remaining files are read then.
        prefetch->id[0] = '\0';
    }
    evq_prefetch_close(supervisor);
}

void evq_prefetch_close(struct evq_supervisor *supervisor)
{
    evq_job_free(supervisor->prefetch.job);
    supervisor->prefetch.job = NULL;
}

/* ---- when ---- */

/* Whether every slot has a job. A slot that is free, or soon will be, claims by itself. */
static bool all_work(const struct evq_supervisor *supervisor)
{
    return evq_claim_rules_busy(supervisor) > 0 && evq_claim_rules_idle(supervisor) == 0 &&
           !evq_claim_rules_changing(supervisor);
}

static bool may_look(const struct evq_supervisor *supervisor)
{
    return supervisor->config->worker.read_ahead_bytes > 0 && supervisor->prefetch.pid == 0 &&
           !supervisor->prefetch.refused && all_work(supervisor) &&
           evq_claim_rules_allow(supervisor);
}

void evq_prefetch_begin(struct evq_supervisor *supervisor)
{
    supervisor->prefetch.look_ms = evq_clock_mono_ms() + LOOK_MS;
}

void evq_prefetch_tick(struct evq_supervisor *supervisor)
{
    if (!all_work(supervisor) || supervisor->draining) {
        evq_prefetch_stop(supervisor);
    }
}

int64_t evq_prefetch_due_ms(const struct evq_supervisor *supervisor)
{
    return may_look(supervisor) ? supervisor->prefetch.look_ms : INT64_MAX;
}

/*
 * All busy workers expect the same next job, but only one will claim it. Each worker prefetches
 * with the probability that it is the one, so the fleet reads a checkpoint once on average and not
 * once per machine.
 */
static bool chance_is_ours(const struct evq_supervisor *supervisor, int64_t running)
{
    const uint64_t ours = evq_claim_rules_busy(supervisor);

    return running <= (int64_t)ours || evq_clock_random() % (uint64_t)running < ours;
}

/* Takes over the job and decides once per job whether to prefetch it. Weights in shared memory need
 * no reading. */
static void peeked_take(struct evq_supervisor *supervisor, const struct evq_next_job *peeked)
{
    struct evq_prefetch *prefetch = &supervisor->prefetch;

    if (peeked->job == NULL || strcmp(peeked->id, prefetch->id) == 0) {
        evq_job_free(peeked->job);
        return;
    }
    (void)snprintf(prefetch->id, sizeof(prefetch->id), "%s", peeked->id);
    evq_prefetch_close(supervisor);
    prefetch->job = peeked->job;
    if (!chance_is_ours(supervisor, peeked->running)) {
        evq_prefetch_close(supervisor);
    } else if (strcmp(peeked->job->root, supervisor->config->shm.name) != 0) {
        reader_start(supervisor, peeked->job);
    } else {
        slot_tell(supervisor, peeked->job);
    }
}

bool evq_prefetch_look(struct evq_supervisor *supervisor)
{
    struct evq_prefetch *prefetch = &supervisor->prefetch;
    uint32_t classes[EVQ_QUEUE_CLASSES_MAX];
    struct evq_next_job peeked;
    struct evq_error err;
    uint64_t mask = 0;

    if (evq_clock_mono_ms() < evq_prefetch_due_ms(supervisor)) {
        return true;
    }
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        const struct evq_slot *slot = &supervisor->slots[i];
        mask |= evq_slot_has_job(slot) ? slot->fits : 0;
    }
    const uint32_t count = evq_suite_registry_classes(
        &supervisor->registry, evq_claim_rules_classes(supervisor, mask), classes);
    const enum evq_status status =
        evq_queue_next_job(supervisor->redis.queue, classes, count, &peeked, &err);
    if (!evq_redis_session_note_read(&supervisor->redis, status, &err)) {
        return false;
    }
    // Jobs may come and go in the meantime.
    prefetch->look_ms = evq_clock_mono_ms() + supervisor->heartbeat_ms;
    if (status != EVQ_OK) {
        prefetch->refused = true;
        evq_log(EVQ_LOG_WARN, "prefetch_refused", "reason=%s", err.message);
        return true;
    }
    peeked_take(supervisor, &peeked);
    return true;
}
