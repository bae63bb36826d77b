/* Sends the jobs that are ready to Redis, or writes them to the spool. Declared in sender.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/client/overwrite.h"
#include "producer/client/sender.h"
#include "shared/base/clock.h"
#include "shared/checkpoint/pin_path.h"
#include "shared/queue/codec.h"

#define BATCH_MAX      100
#define RETRY_FIRST_MS 100
#define RETRY_MAX_MS   10000
#define RETRY_HURRY_MS 200
#define REFUSED_MAX_MS 30000 // Longest pause while Redis lacks a permission or the functions.
#define WITHDRAW_MS    60000 // Delay of a job that is withdrawn at once, so that no worker gets it.
#define SPOOL_AFTER_MS 1000  // After such an outage, ready jobs move from the ring to the spool.

struct batch {
    struct evq_job *jobs[BATCH_MAX];
    struct evq_job **owners[BATCH_MAX]; // Owner's pointer to the job; NULL: the batch owns the job.
    size_t count;
    enum evq_status statuses[BATCH_MAX];
    struct evq_submitted answers[BATCH_MAX];
};

/* Handles a failed try to reach Redis: sets the time of the next try and warns. */
static void outage_begin(struct evq_sender *sender, enum evq_status status,
                         const struct evq_error *error)
{
    int64_t now = evq_clock_mono_ms();
    bool answers = status == EVQ_E_AUTH || status == EVQ_E_VERSION || status == EVQ_E_RETRY;
    int64_t most = status == EVQ_E_AUTH || status == EVQ_E_VERSION ? REFUSED_MAX_MS : RETRY_MAX_MS;

    atomic_store(&sender->connected, false);
    atomic_store(&sender->away, true);
    if (sender->away_ms == 0) {
        sender->away_ms = now;
    }
    int64_t wait =
        evq_clock_backoff_ms(&sender->jitter, sender->retry_count++, RETRY_FIRST_MS, most);
    if (atomic_load(&sender->flushing) > 0 && wait > RETRY_HURRY_MS) {
        wait = RETRY_HURRY_MS;
    }
    sender->retry_ms = now + wait;
    if (status != EVQ_E_STOPPED) {
        const bool meant = answers || sender->config->redis.url_from != EVQ_CONFIG_URL_DEFAULT;
        evq_warn(&sender->warner, answers ? EVQ_WARN_SERVER : EVQ_WARN_AWAY,
                 "%s%s; submits are kept in %s and sent when it is well again", error->message,
                 meant ? "" : " (the default address, as no `evalq up` runs in this directory)",
                 sender->ring_directory);
    }
    evq_sender_notify(sender, true);
}

static void outage_end(struct evq_sender *sender)
{
    atomic_store(&sender->connected, true);
    atomic_store(&sender->away, false);
    sender->away_ms = 0;
    sender->retry_ms = 0;
    sender->retry_count = 0;
}

/* Makes the path of the pin's directory from the path of the checkpoint in it. */
static bool pin_directory(const struct evq_sender *sender, const struct evq_job *job,
                          char out[PATH_MAX])
{
    const size_t bytes = job->pin == NULL ? 0 : evq_pin_path_bytes(job->pin);
    const struct evq_root *root =
        bytes > 0 ? evq_config_root_find(evq_prepare_roots(sender), job->root) : NULL;

    return root != NULL &&
           snprintf(out, PATH_MAX, "%s/%.*s", root->path, (int)bytes, job->pin) < PATH_MAX;
}

/*
 * Checks the version of the function library and reads the queue's epoch, once for each connection.
 * A library that is too old (for example while a server starts with old data) would refuse jobs
 * that it does not understand.
 */
static enum evq_status queue_know(struct evq_sender *sender, struct evq_error *err)
{
    struct evq_queue_info info;

    if (evq_conn_fd(sender->conn) >= 0 && sender->info.epoch[0] != '\0' &&
        sender->known == evq_conn_generation(sender->conn)) {
        return EVQ_OK;
    }
    enum evq_status status = evq_queue_info(sender->redis, &info, err);
    if (status == EVQ_OK) {
        sender->info = info;
        sender->known = evq_conn_generation(sender->conn);
    }
    return status;
}

/* Warns about a new training with the name of an earlier one, whose results it would share. */
static void warn_followed(struct evq_sender *sender, const struct evq_job *job,
                          const struct evq_submitted *sent)
{
    if (sent->answer == EVQ_SUBMIT_FOLLOWED) {
        evq_warn(&sender->warner, EVQ_WARN_FOLLOWED,
                 "step %" PRId64 " of run '%s' was submitted before with other weights: the "
                 "results of both stay, these as '%s'. A training that does not go on with an "
                 "earlier one needs a run name of its own, or `evalq forget %s` before it begins",
                 job->step, job->run, sent->id, job->run);
    }
}

/* Records the queue's reply to a job: for evalq_client_job(), and in its pin, so that the pin can
 * be released after the job's end. sent: the reply; NULL: the queue refused the job. */
static void record_reply(struct evq_sender *sender, const struct evq_job *job,
                         const struct evq_submitted *sent)
{
    char directory[PATH_MAX];

    evq_sent_jobs_add(&sender->sent_jobs, job, sent);
    if (sent != NULL) {
        warn_followed(sender, job, sent);
    }
    if (!pin_directory(sender, job, directory)) {
        return;
    }
    if (sent != NULL && sender->info.epoch[0] == '\0') { // The queue's first job made its epoch.
        (void)!queue_know(sender, NULL);
    }
    evq_pin_releaser_record(directory, job, sent, sender->info.epoch);
    evq_pin_releaser_add(&sender->releaser, directory, 0);
}

/* Whether the status concerns only this job and would be the same at the next try. */
static bool final_refusal(enum evq_status status)
{
    return status == EVQ_E_INVALID || status == EVQ_E_LIMIT || status == EVQ_E_CONFLICT ||
           status == EVQ_E_UNSUPPORTED || status == EVQ_E_CORRUPT || status == EVQ_E_BUG ||
           status == EVQ_E_NOT_FOUND;
}

/* Handles the refusal of one job. EVQ_OK: the job is finished, sent or refused. Any other status:
 * it must be sent again. */
static enum evq_status job_refused(struct evq_sender *sender, const struct evq_job *job,
                                   enum evq_status status)
{
    struct evq_error error = {.status = status};
    char id[EVQ_JOB_ID_BYTES_MAX];

    evq_job_id(job, id);
    if (evq_job_check(job, &error) == EVQ_OK) { // Otherwise error says what is wrong.
        struct evq_submitted again;
        sender->known = 0;
        enum evq_status own = queue_know(sender, &error);
        if (own == EVQ_OK) { // For a single job the queue gives its reason.
            own = evq_queue_submit(sender->redis, job, 0, &again, &error);
        }
        if (own == EVQ_OK) {
            atomic_fetch_add(&sender->sent, 1);
            record_reply(sender, job, &again);
            return EVQ_OK;
        }
        if (!final_refusal(own) || sender->known != evq_conn_generation(sender->conn)) {
            // This is no refusal: Redis did not answer, or it is not the server whose library was
            // checked.
            return final_refusal(own) ? EVQ_E_RETRY : own;
        }
        record_reply(sender, job, NULL);
    }
    atomic_fetch_add(&sender->refused, 1);
    evq_warn(&sender->warner, EVQ_WARN_REFUSED, "job '%s' is refused: %s", id, error.message);
    return EVQ_OK;
}

/* Records that the job's step was overwritten: puts the job into the queue, so that its end is in
 * the results, and withdraws it. Repeating it after a lost reply changes nothing. */
static enum evq_status job_skip(struct evq_sender *sender, const struct evq_job *job,
                                struct evq_submitted *ret_sent, struct evq_error *err)
{
    enum evq_status status = evq_queue_submit(sender->redis, job, WITHDRAW_MS, ret_sent, err);

    if (status == EVQ_OK && ret_sent->state < EVQ_JOB_DONE) {
        status = evq_queue_withdraw(sender->redis, ret_sent->id,
                                    "overwritten: the path held other files, or none, before they "
                                    "were pinned",
                                    &ret_sent->state, err);
    }
    return status;
}

/* Submits the jobs of the batch. Each then has a status and a reply. */
static enum evq_status batch_submit(struct evq_sender *sender, struct batch *batch,
                                    struct evq_error *err)
{
    size_t done = 0;

    while (done < batch->count) {
        const struct evq_job *const *jobs = (const struct evq_job *const *)batch->jobs + done;
        const size_t most = batch->count - done;
        size_t count = 0;
        while (count < most && !evq_overwrite_is_marked(jobs[count])) {
            count++;
        }
        enum evq_status status = EVQ_OK;
        if (count > 0) {
            status = evq_queue_submit_batch(sender->redis, jobs, count, batch->answers + done,
                                            batch->statuses + done, err);
        } else {
            count = 1;
            status = job_skip(sender, jobs[0], &batch->answers[done], err);
            batch->statuses[done] = status;
        }
        if (status != EVQ_OK && !final_refusal(status)) {
            return status;
        }
        for (size_t at = done; status != EVQ_OK && at < done + count; at++) {
            batch->statuses[at] = status;
        }
        done += count;
    }
    return EVQ_OK;
}

/*
 * Submits the batch. Frees each job that was sent or refused and sets its owner's pointer to NULL.
 * EVQ_OK: all jobs are finished. Any other status: the rest must be sent again.
 */
static enum evq_status batch_send(struct evq_sender *sender, struct batch *batch,
                                  struct evq_error *err)
{
    if (batch->count == 0) {
        return EVQ_OK;
    }
    enum evq_status status = queue_know(sender, err);
    if (status != EVQ_OK) {
        return final_refusal(status) ? EVQ_E_RETRY : status;
    }
    for (size_t at = 0; at < batch->count; at++) {
        evq_job_snapshots_set_address(sender, batch->jobs[at]);
    }
    status = batch_submit(sender, batch, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t at = 0; at < batch->count; at++) {
        struct evq_job *job = batch->jobs[at];
        enum evq_status own = batch->statuses[at];
        if (own == EVQ_OK) {
            atomic_fetch_add(&sender->sent, 1);
            record_reply(sender, job, &batch->answers[at]);
        } else if (final_refusal(own)) {
            own = job_refused(sender, job, own);
        }
        if (own != EVQ_OK) {
            return evq_error_set(err, own, "the queue asks to wait: %s", evq_status_name(own));
        }
        if (batch->owners[at] != NULL) {
            *batch->owners[at] = NULL;
            evq_job_free(job);
            batch->jobs[at] = NULL;
        }
    }
    outage_end(sender);
    return EVQ_OK;
}

static void batch_free_own(struct batch *batch)
{
    for (size_t at = 0; at < batch->count; at++) {
        if (batch->owners[at] == NULL) {
            evq_job_free(batch->jobs[at]);
        }
    }
    batch->count = 0;
}

static void warn_spool_damage(struct evq_sender *sender, const struct evq_submit_log *log)
{
    evq_warn(&sender->warner, EVQ_WARN_CORRUPT, "a spooled job beside '%s' is damaged and left out",
             evq_ring_path(log->ring));
}

/* Fills the batch with the spool's records from *offset on. Moves *offset past records that were
 * taken or are damaged. EVQ_E_NOT_FOUND: the spool has no more. EVQ_E_NOMEM: it has more. */
static enum evq_status batch_fill(struct evq_sender *sender, struct evq_submit_log *log,
                                  struct batch *batch, uint64_t *offset, uint64_t *ret_records,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_buffer record;

    evq_buffer_init(&record, EVQ_JOB_BYTES_MAX);
    batch->count = 0;
    *ret_records = 0;
    while (batch->count < BATCH_MAX) {
        struct evq_job *job = NULL;
        uint64_t next = *offset;
        status = evq_spool_read(log->spool, &next, &record, err);
        if (status == EVQ_OK) {
            status = evq_codec_job_decode(record.data, record.bytes, &job, err);
        } else if (status == EVQ_E_NOT_FOUND) {
            *offset = next;
        }
        if (status == EVQ_E_NOT_FOUND || status == EVQ_E_NOMEM) {
            break;
        }
        *offset = next;
        (*ret_records)++;
        if (status == EVQ_OK) {
            batch->owners[batch->count] = NULL;
            batch->jobs[batch->count++] = job;
        } else {
            atomic_fetch_add(&sender->lost, 1);
            warn_spool_damage(sender, log);
        }
    }
    evq_buffer_free(&record);
    return status;
}

/* Sends the records of the log's spool, in order. */
static enum evq_status spool_send(struct evq_sender *sender, struct evq_submit_log *log,
                                  struct batch *batch, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && evq_spool_records(log->spool) > 0 && !atomic_load(&sender->stop)) {
        uint64_t offset = 0;
        uint64_t records = 0;
        const enum evq_status filled = batch_fill(sender, log, batch, &offset, &records, err);
        status = batch_send(sender, batch, err);
        batch_free_own(batch);
        if (status == EVQ_OK && (records > 0 || filled == EVQ_E_NOT_FOUND)) {
            uint64_t before = evq_spool_records(log->spool);
            evq_spool_release(log->spool, offset,
                              records > 0 ? records : evq_spool_records(log->spool));
            atomic_fetch_sub(&sender->spooled, before - evq_spool_records(log->spool));
            evq_sender_notify(sender, false);
        }
        if (status == EVQ_OK && filled == EVQ_E_NOMEM) {
            status = filled; // The rest is sent when there is memory again.
        }
    }
    return status;
}

static bool item_through(const struct evq_pending *item)
{
    for (size_t at = 0; at < item->job_count; at++) {
        if (item->jobs[at] != NULL) {
            return false;
        }
    }
    return true;
}

static void items_settle(struct evq_submit_log *log)
{
    for (struct evq_pending *item = log->first; item != NULL; item = item->next) {
        if (item->ready && item_through(item)) {
            item->done = true;
        }
    }
}

/* Sends the ready items of a log whose spool is empty, in the ring's order. */
static enum evq_status items_send(struct evq_sender *sender, struct evq_submit_log *log,
                                  struct batch *batch, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_pending *item = log->first;

    batch->count = 0;
    while (status == EVQ_OK && item != NULL) {
        for (size_t at = 0; item->ready && !item->done && at < item->job_count; at++) {
            if (item->jobs[at] == NULL) {
                continue;
            }
            batch->owners[batch->count] = &item->jobs[at];
            batch->jobs[batch->count++] = item->jobs[at];
            if (batch->count == BATCH_MAX) {
                status = batch_send(sender, batch, err);
                batch->count = 0;
                if (status != EVQ_OK) {
                    break;
                }
            }
        }
        item = item->next;
    }
    if (status == EVQ_OK) {
        status = batch_send(sender, batch, err);
    }
    items_settle(log);
    return status;
}

/* Moves the item's jobs to the spool. Returns false if it is full or cannot be written; then the
 * jobs stay in the ring. */
static bool item_spool(struct evq_sender *sender, struct evq_submit_log *log,
                       struct evq_pending *item, struct evq_buffer *record, struct evq_error *err)
{
    for (size_t at = 0; at < item->job_count; at++) {
        struct evq_job *job = item->jobs[at];
        if (job == NULL) {
            continue;
        }
        evq_buffer_clear(record);
        enum evq_status status = evq_codec_job_encode(job, record, err);
        if (final_refusal(status)) {
            if (job_refused(sender, job, status) != EVQ_OK) {
                return false;
            }
        } else if (status != EVQ_OK ||
                   evq_spool_append(log->spool, record->data, record->bytes, err) != EVQ_OK) {
            return false;
        } else {
            atomic_fetch_add(&sender->spooled, 1);
        }
        item->jobs[at] = NULL;
        evq_job_free(job);
    }
    return true;
}

static void items_spool(struct evq_sender *sender, struct evq_submit_log *log)
{
    struct evq_error error = {.status = EVQ_OK};
    struct evq_buffer record;
    bool all = true;

    evq_buffer_init(&record, EVQ_JOB_BYTES_MAX);
    for (struct evq_pending *item = log->first; item != NULL && all; item = item->next) {
        if (item->ready && !item->done) {
            all = item_spool(sender, log, item, &record, &error);
        }
    }
    // The jobs must be durable before the ring releases them.
    if (evq_spool_sync(log->spool, &error) == EVQ_OK) {
        items_settle(log);
    } else {
        all = false;
    }
    if (!all) {
        evq_warn(&sender->warner, EVQ_WARN_SPOOL, "%s; what the ring cannot hold will be dropped",
                 error.message);
    }
    evq_buffer_free(&record);
}

static bool log_ready(const struct evq_submit_log *log)
{
    for (const struct evq_pending *item = log->first; item != NULL; item = item->next) {
        if (item->ready && !item->done) {
            return true;
        }
    }
    return false;
}

static bool log_pressed(const struct evq_submit_log *log)
{
    return evq_ring_tail(log->ring) - evq_ring_head(log->ring) > evq_ring_bytes(log->ring) / 2;
}

static enum evq_status logs_send(struct evq_sender *sender, struct batch *batch,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t at = 0; at < sender->log_count && status == EVQ_OK; at++) {
        struct evq_submit_log *log = &sender->logs[at];
        status = spool_send(sender, log, batch, err);
        if (status == EVQ_OK && evq_spool_records(log->spool) == 0) {
            status = items_send(sender, log, batch, err);
        }
    }
    return status;
}

static bool work_waits(const struct evq_sender *sender)
{
    for (size_t at = 0; at < sender->log_count; at++) {
        if (evq_spool_records(sender->logs[at].spool) > 0 || log_ready(&sender->logs[at])) {
            return true;
        }
    }
    return false;
}

int64_t evq_deliver(struct evq_sender *sender)
{
    struct evq_error error = {.status = EVQ_OK};
    int64_t now = evq_clock_mono_ms();
    bool waits = work_waits(sender);
    bool asked = atomic_load(&sender->check_pins);
    bool look = sender->releaser.pin_count > 0 && (asked || now >= sender->releaser.due_ms);

    if (atomic_load(&sender->flushing) > 0 && sender->retry_ms > now + RETRY_HURRY_MS) {
        sender->retry_ms = now; // A thread waits in a flush, so try at once.
    }
    if ((waits || look) && now >= sender->retry_ms) {
        struct batch batch;
        batch.count = 0;
        enum evq_status status = logs_send(sender, &batch, &error);
        if (status == EVQ_OK && look) {
            uint64_t before = sender->releaser.sent_again;
            bool looked =
                evq_pin_releaser_check(&sender->releaser, sender->redis, &sender->info, &error);
            status = looked || final_refusal(error.status) ? EVQ_OK : error.status;
            if (sender->releaser.sent_again > before) {
                evq_warn(
                    &sender->warner, EVQ_WARN_LOST,
                    "Redis lost its data (see `evalq doctor`): jobs that are not evaluated yet "
                    "are submitted again");
            }
        }
        if (status != EVQ_OK) {
            outage_begin(sender, status, &error);
        }
        waits = work_waits(sender);
    }
    if (asked) {
        atomic_store(&sender->check_pins, false);
        evq_sender_notify(sender, false);
    }
    now = evq_clock_mono_ms();
    for (size_t at = 0; at < sender->log_count && sender->away_ms != 0; at++) {
        struct evq_submit_log *log = &sender->logs[at];
        if (log_ready(log) && (now - sender->away_ms >= SPOOL_AFTER_MS || log_pressed(log))) {
            items_spool(sender, log);
        }
    }
    int64_t next = INT64_MAX;
    if (waits) {
        next = sender->retry_ms;
        if (sender->away_ms != 0 && now - sender->away_ms < SPOOL_AFTER_MS &&
            sender->away_ms + SPOOL_AFTER_MS < next) {
            next = sender->away_ms + SPOOL_AFTER_MS;
        }
    }
    if (sender->releaser.pin_count > 0) {
        int64_t keeper =
            sender->releaser.due_ms > sender->retry_ms ? sender->releaser.due_ms : sender->retry_ms;
        next = keeper < next ? keeper : next;
    }
    return next;
}
