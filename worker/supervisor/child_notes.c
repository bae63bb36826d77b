/* The conversation with the children: jobs go in; notes about progress, results and failures come
 * out. */
#include <stdio.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/evaluators/failure.h"
#include "worker/supervisor/supervisor.h"

/* ---- a job goes in ---- */

static int64_t job_limit_ms(const struct evq_supervisor *supervisor, const struct evq_suite *suite)
{
    const struct evq_evaluator *evaluator =
        evq_config_evaluator(supervisor->config, suite->evaluator);
    int64_t seconds = suite->limit_seconds;

    // The evaluator limits its own program and can end it in good order. This is a second limit
    // behind that one.
    if (evaluator != NULL) {
        seconds += 10;
        seconds += evaluator->kind == EVQ_EVALUATOR_PERSISTENT ? evaluator->start_seconds : 0;
    }
    if (suite->prepare[0] != '\0' || (evaluator != NULL && suite->harness[0] != '\0')) {
        seconds += suite->limit_seconds; // On a model server, it may be converted first.
    }
    return seconds * 1000;
}

static enum evq_status job_send(struct evq_slot *slot, const struct evq_lease *lease,
                                const char *keyspace, struct evq_error *err)
{
    const struct evq_claim *claim = lease->claim;
    struct evq_buffer record;
    struct evq_buffer done;

    evq_buffer_init(&record, 0);
    evq_buffer_init(&done, 0);
    for (size_t i = 0; i < claim->task_done_count; i++) {
        evq_buffer_printf(&done, "%s\n", claim->tasks_done[i]);
    }
    enum evq_status status = evq_codec_job_encode(claim->job, &record, err);
    const char *tasks_done = evq_buffer_string(&done);
    if (status == EVQ_OK && tasks_done == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "job %s", claim->id);
    }
    if (status == EVQ_OK) {
        const struct evq_field fields[] = {evq_channel_text("id", claim->id),
                                           evq_channel_text("suite", lease->suite->name),
                                           evq_channel_text("digest", lease->suite->digest),
                                           evq_channel_bytes("record", record.data, record.bytes),
                                           evq_channel_integer("shard", claim->shard),
                                           evq_channel_integer("shard_count", claim->shard_count),
                                           evq_channel_integer("attempt", claim->attempt),
                                           evq_channel_text("keyspace", keyspace),
                                           evq_channel_text("tasks_done", tasks_done)};
        status = evq_channel_send(&slot->channel, "job", fields, sizeof(fields) / sizeof(fields[0]),
                                  err);
    }
    evq_buffer_free(&record);
    evq_buffer_free(&done);
    return status;
}

/* A job on a model server leaves its checkpoint loaded there. */
static void warm_note(struct evq_slot *slot, const struct evq_lease *lease)
{
    if (lease->suite->harness[0] != '\0') {
        const char *suite = strrchr(lease->claim->id, '/');
        const int bytes = suite != NULL ? (int)(suite - lease->claim->id) : 0;
        (void)snprintf(slot->warm, sizeof(slot->warm), "%.*s", bytes, lease->claim->id);
        slot->warm_evaluator = lease->suite->evaluator;
    }
}

void evq_child_notes_send_job(struct evq_supervisor *supervisor, struct evq_slot *slot,
                              struct evq_lease *lease)
{
    struct evq_error err;
    const int64_t now_ms = evq_clock_mono_ms();

    if (job_send(slot, lease, supervisor->redis.epoch, &err) != EVQ_OK) {
        // The job did not reach the child, which is about to die. That is not the job's fault.
        evq_log(EVQ_LOG_WARN, "job_not_started", "job=%s slot=%u reason=%s", lease->claim->id,
                slot->number, err.message);
        (void)evq_lease_queue_end(lease, EVQ_OUTBOX_RELEASE);
        evq_slot_kill(slot); // The slot is given no other job until its child was reaped.
        return;
    }
    lease->state = EVQ_LEASE_RUNNING;
    slot->lease = lease;
    slot->ending = EVQ_CAUSE_NONE;
    slot->kill_ms = 0;
    slot->last_note_ms = now_ms;
    slot->limit_ms = now_ms + job_limit_ms(supervisor, lease->suite);
    warm_note(slot, lease);
    evq_slot_move(slot, EVQ_SLOT_ON_JOB);
    evq_log(EVQ_LOG_INFO, "job_start", "job=%s slot=%u attempt=%d alone=%d queued_ms=%lld",
            lease->claim->id, slot->number, lease->claim->attempt, lease->claim->alone,
            (long long)lease->claim->queued_ms);
}

/* ---- what a child says ---- */

static void task_take(struct evq_slot *slot, const struct evq_note *note)
{
    const struct evq_field *field = evq_codec_note_field(note, "result");
    struct evq_lease *lease = slot->lease;
    struct evq_result *result = NULL;
    struct evq_error err;

    if (lease == NULL || evq_cause_rule(slot->ending)->job == EVQ_CAUSE_JOB_DROP) {
        return; // The job is no longer ours, so none of its results are published.
    }
    if (field == NULL || field->type != EVQ_FIELD_BYTES ||
        evq_codec_result_decode(field->bytes, field->byte_count, &result, &err) != EVQ_OK ||
        !evq_lease_complete_result(lease, result)) {
        evq_log(EVQ_LOG_ERROR, "task_bad", "job=%s slot=%u", lease->claim->id, slot->number);
        evq_result_free(result);
        lease->result_lost = true;
        // Our own child sent something that cannot be read, so we do not trust its memory any more.
        evq_slot_kill(slot);
        return;
    }
    evq_log(EVQ_LOG_INFO, "task_done", "job=%s task=%s n=%lld compute_ms=%lld backend=%s device=%s",
            lease->claim->id, result->task, (long long)result->n,
            (long long)(result->timing.compute_us / 1000), result->backend, result->device);
    if (result->note[0] != '\0') {
        evq_log(EVQ_LOG_INFO, "task_note", "job=%s task=%s note=%s", lease->claim->id, result->task,
                result->note);
    }
    if (lease->claim->shard_count > 0) {
        evq_lease_part_add(lease, result);
        evq_result_free(result);
    } else if (!evq_lease_queue_publish(lease, result)) {
        evq_log(EVQ_LOG_ERROR, "out_of_memory", "job=%s", lease->claim->id);
        lease->result_lost = true;
        evq_slot_kill(slot);
    }
}

static void seconds_learn(struct evq_supervisor *supervisor, const struct evq_lease *lease)
{
    double *seconds = &supervisor->suite_seconds[lease->suite - supervisor->config->suites];
    const double took = (double)(evq_clock_mono_ms() - lease->claimed_ms) / 1000.0;

    *seconds = *seconds > 0 ? *seconds * 0.7 + took * 0.3 : took;
}

/* Takes the job from the slot. The lease stays until Redis knows how the job ended. */
static struct evq_lease *slot_leave(struct evq_slot *slot)
{
    struct evq_lease *lease = slot->lease;

    slot->lease = NULL;
    slot->ending = EVQ_CAUSE_NONE;
    evq_sample_relay_drop(slot);
    slot->kill_ms = slot->limit_ms = 0;
    return lease;
}

static void job_done(struct evq_supervisor *supervisor, struct evq_slot *slot)
{
    const enum evq_cause cause = slot->ending;
    struct evq_lease *lease = slot_leave(slot);

    if (lease == NULL || evq_cause_rule(cause)->job == EVQ_CAUSE_JOB_DROP) {
        if (lease != NULL) {
            evq_lease_list_drop(supervisor, lease, cause);
        }
        return;
    }
    if (lease->result_lost) {
        (void)evq_lease_queue_fail(
            lease, EVQ_FAIL_RETRY,
            "a result of the job could not be parsed or stored; the worker's log has the cause",
            NULL);
        return;
    }
    // A job that finished counts as done, even if a time limit or a drain was about to end it.
    supervisor->crashed_count = 0;
    slot->failures = 0;
    evq_disk_pause_end(supervisor, lease->suite);
    seconds_learn(supervisor, lease);
    evq_log(EVQ_LOG_INFO, "job_done", "job=%s slot=%u ms=%lld", lease->claim->id, slot->number,
            (long long)(evq_clock_mono_ms() - lease->claimed_ms));
    if (lease->part_failed) {
        (void)evq_lease_queue_fail(lease, EVQ_FAIL_FATAL,
                                   "the partial results of the shard are larger than 64 KiB", NULL);
    } else {
        (void)evq_lease_queue_end(lease, lease->claim->shard_count > 0 ? EVQ_OUTBOX_COMPLETE_SHARD
                                                                       : EVQ_OUTBOX_COMPLETE);
    }
}

static void crash_count(struct evq_supervisor *supervisor, const char *id)
{
    for (uint32_t i = 0; i < supervisor->crashed_count; i++) {
        if (strcmp(supervisor->crashed[i], id) == 0) {
            return; // The same job crashed again: that job is the problem, not this worker.
        }
    }
    if (supervisor->crashed_count < EVQ_CAUSE_CRASHED_JOBS_MAX) {
        (void)snprintf(supervisor->crashed[supervisor->crashed_count++], EVQ_JOB_ID_BYTES_MAX, "%s",
                       id);
    }
    if (supervisor->crashed_count == EVQ_CAUSE_CRASHED_JOBS_MAX && !supervisor->sick) {
        supervisor->sick = true;
        supervisor->beat_due_ms = 0; // The next heartbeat reports it at once.
        evq_log(EVQ_LOG_ERROR, "worker_sick", "reason=%s",
                "several different jobs in a row crashed on this worker, so it takes no more jobs: "
                "find the cause in their logs, then restart the worker");
    }
}

void evq_child_notes_job_failed(struct evq_supervisor *supervisor, struct evq_slot *slot,
                                enum evq_fail_kind kind, const char *reason, const char *detail)
{
    // Slurm and terminals signal the whole process group: an evaluator that dies of the signal that
    // ends this worker did not crash.
    const enum evq_cause cause =
        slot->ending == EVQ_CAUSE_NONE && kind == EVQ_FAIL_CRASH && supervisor->stop_signalled
            ? EVQ_CAUSE_RELEASED
            : slot->ending;
    const struct evq_cause_rule *rule = evq_cause_rule(cause);
    struct evq_lease *lease = slot_leave(slot);

    if (lease == NULL) {
        return;
    }
    // A full disk is tried again and again; evq_disk_pause_begin() logs it once.
    evq_log(cause == EVQ_CAUSE_DISK_FULL ? EVQ_LOG_INFO : EVQ_LOG_WARN, "job_failed",
            "job=%s slot=%u ending=%s reason=%s", lease->claim->id, slot->number, rule->name,
            reason);
    if (rule->suite_ran) {
        evq_disk_pause_end(supervisor, lease->suite);
    }
    if (cause == EVQ_CAUSE_DISK_FULL) {
        evq_disk_pause_begin(supervisor, lease->suite, reason);
        supervisor->jobs_taken--; // The job does not count for --max-jobs.
    }
    if (cause == EVQ_CAUSE_NONE && kind == EVQ_FAIL_CRASH) {
        crash_count(supervisor, lease->claim->id);
    }
    if (rule->job == EVQ_CAUSE_JOB_DROP) {
        evq_lease_list_drop(supervisor, lease, cause);
    } else if (rule->job == EVQ_CAUSE_JOB_RELEASE) {
        (void)evq_lease_queue_end(lease, EVQ_OUTBOX_RELEASE);
    } else if (rule->fail_reason != NULL) {
        (void)evq_lease_queue_fail(lease, rule->fail, rule->fail_reason, detail);
    } else {
        (void)evq_lease_queue_fail(lease, kind, reason, detail);
    }
}

void evq_child_notes_slot_failed(struct evq_slot *slot, const char *reason)
{
    slot->failures += slot->failures < 100;
    (void)snprintf(slot->note, sizeof(slot->note), "%s", reason);
}

static void error_take(struct evq_supervisor *supervisor, struct evq_slot *slot,
                       const struct evq_note *note)
{
    const int64_t number = evq_channel_get_integer(note, "status", EVQ_E_BUG);
    const enum evq_status status =
        number > 0 && number < EVQ_STATUS_COUNT ? (enum evq_status)number : EVQ_E_BUG;
    const bool crash = evq_channel_get_integer(note, "crash", 0) != 0;
    const char *message = evq_channel_get_text(note, "message");

    if (slot->state == EVQ_SLOT_STARTING) {
        (void)snprintf(slot->note, sizeof(slot->note), "%s", message);
        evq_log(EVQ_LOG_ERROR, "child_start_failed", "slot=%u reason=%s", slot->number, message);
        return; // The child exits, and is started again later.
    }
    if (status == EVQ_E_FULL && slot->ending == EVQ_CAUSE_NONE) {
        slot->ending = EVQ_CAUSE_DISK_FULL;
    }
    evq_child_notes_job_failed(supervisor, slot, evq_failure_kind(status, crash), message,
                               evq_channel_get_text(note, "detail"));
    evq_slot_move(slot, EVQ_SLOT_ON_JOB_OVER);
    if (status == EVQ_E_DEVICE) { // The child exits by itself, and gets no other job.
        evq_child_notes_slot_failed(slot, message);
        evq_slot_move(slot, EVQ_SLOT_ON_LEAVES);
        slot->kill_ms = evq_clock_mono_ms() + EVQ_SLOT_START_MS;
    }
}

static void note_take(struct evq_supervisor *supervisor, struct evq_slot *slot,
                      const struct evq_note *note)
{
    slot->last_note_ms = evq_clock_mono_ms();
    if (strcmp(note->type, "hello") == 0) {
        (void)snprintf(slot->note, sizeof(slot->note), "%s", evq_channel_get_text(note, "note"));
        (void)snprintf(slot->evaluators, sizeof(slot->evaluators), "%s",
                       evq_channel_get_text(note, "evaluators"));
        evq_slot_move(slot, EVQ_SLOT_ON_HELLO);
        evq_log(slot->gpus > 0 && slot->note[0] != '\0' ? EVQ_LOG_WARN : EVQ_LOG_INFO,
                "child_ready", "slot=%u pid=%ld devices=%s note=%s", slot->number, (long)slot->pid,
                slot->devices, slot->note);
        supervisor->claim_due = true;
        if (supervisor->options->warm) {
            // Somebody waits until the status says that the slot is ready.
            supervisor->beat_due_ms = 0;
        }
    } else if (strcmp(note->type, "progress") == 0 && slot->lease != NULL) {
        slot->lease->done = evq_channel_get_integer(note, "done", -1);
        slot->lease->total = evq_channel_get_integer(note, "total", -1);
        const char *status = evq_channel_get_text(note, "status");
        if (status[0] != '\0') {
            (void)snprintf(slot->lease->status, sizeof(slot->lease->status), "%s", status);
        }
    } else if (strcmp(note->type, "task") == 0) {
        task_take(slot, note);
    } else if (strcmp(note->type, "done") == 0) {
        job_done(supervisor, slot);
        evq_slot_move(slot, EVQ_SLOT_ON_JOB_OVER);
        supervisor->claim_due = true;
    } else if (strcmp(note->type, "error") == 0) {
        error_take(supervisor, slot, note);
        supervisor->claim_due = true;
    }
}

void evq_child_notes_read(struct evq_supervisor *supervisor, struct evq_slot *slot)
{
    struct evq_note *note = NULL;
    struct evq_error err;

    (void)evq_program_log_read(&slot->errors);
    evq_channel_fill(&slot->channel);
    // The child is alive, but we could not receive its notes any more.
    if (slot->channel.in.failed) {
        evq_log(EVQ_LOG_ERROR, "child_garbled", "slot=%u reason=%s", slot->number, "out of memory");
        evq_slot_kill(slot);
        return;
    }
    for (;;) {
        const enum evq_status status = evq_channel_next(&slot->channel, &note, &err);
        if (status != EVQ_OK) {
            evq_log(EVQ_LOG_ERROR, "child_garbled", "slot=%u reason=%s", slot->number, err.message);
            evq_slot_kill(slot);
            break;
        }
        if (note == NULL) {
            break;
        }
        if (strcmp(note->type, "piece") == 0) {
            slot->last_note_ms = evq_clock_mono_ms();
            evq_sample_relay_take(slot, note);
            continue;
        }
        note_take(supervisor, slot, note);
        evq_codec_note_free(note);
    }
}
