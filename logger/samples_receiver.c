#include "logger/samples_receiver.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "logger/sample_upload.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#define READ_WAIT_MS     1000
#define SENDERS_MS       5000 // Between two looks at the senders of unfinished files.
#define STOP_LOOK_MS     50
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS   10000
#define UPLOADS_MAX      4096 // Files that arrive at the same time: one for each slot that sends.

struct arrival { // A file that is not whole yet.
    struct evq_sample_upload *upload;
    bool ended; // Its sender can send no more. What it sent is in the stream already.
};

struct evq_samples_receiver {
    const struct evq_config *config;
    pthread_t thread;
    atomic_bool stop;
    struct evq_conn *conn;
    struct evq_queue *queue;
    struct arrival arrivals[UPLOADS_MAX];
    size_t count;
    char behind[32];    // The stream was read up to this entry.
    int64_t senders_ms; // When to look at the senders next.
    uint32_t failures;  // In a row.
    uint64_t random;
};

/* Forgets all unfinished files. Their pieces are read again from the beginning of the stream. */
static void arrivals_forget(struct evq_samples_receiver *receiver)
{
    for (size_t i = 0; i < receiver->count; i++) {
        evq_sample_upload_free(receiver->arrivals[i].upload);
    }
    receiver->count = 0;
    (void)snprintf(receiver->behind, sizeof(receiver->behind), "0");
}

/* Removes the pieces of a file from the stream, and forgets it. */
static enum evq_status arrival_end(struct evq_samples_receiver *receiver, size_t at,
                                   struct evq_error *err)
{
    struct evq_sample_upload *upload = receiver->arrivals[at].upload;
    size_t count = 0;
    const struct evq_piece_entry *entries = evq_sample_upload_entries(upload, &count);

    const enum evq_status status = evq_sample_pieces_remove(receiver->queue, entries, count, err);
    if (status == EVQ_OK) {
        evq_sample_upload_free(upload);
        receiver->arrivals[at] = receiver->arrivals[--receiver->count];
    }
    return status;
}

/* Stores a whole file, unless its job was forgotten meanwhile, and then removes its pieces. */
static enum evq_status arrival_store(struct evq_samples_receiver *receiver, size_t at,
                                     struct evq_error *err)
{
    struct evq_sample_upload *upload = receiver->arrivals[at].upload;
    const char *job = evq_sample_upload_job(upload);
    const char *task = evq_sample_upload_task(upload);
    enum evq_piece_sender sender = EVQ_SENDER_GONE;

    enum evq_status status = evq_sample_piece_sender(receiver->queue, job,
                                                     evq_sample_upload_token(upload), &sender, err);
    if (status == EVQ_OK && sender != EVQ_SENDER_GONE) {
        status = evq_sample_upload_store(upload, err);
        if (status == EVQ_E_CORRUPT) {
            evq_log(EVQ_LOG_ERROR, "samples_refused", "job=%s task=%s reason=%s", job, task,
                    err->message);
            status = EVQ_OK; // No other bytes will come.
        } else if (status == EVQ_OK) {
            evq_log(EVQ_LOG_INFO, "samples_stored", "job=%s task=%s", job, task);
        }
    }
    return status == EVQ_OK ? arrival_end(receiver, at, err) : status;
}

/* Removes an entry that is no piece. */
static enum evq_status entry_refuse(struct evq_samples_receiver *receiver,
                                    const struct evq_sample_piece *piece, const char *reason,
                                    struct evq_error *err)
{
    struct evq_piece_entry entry = {.file_bytes = 0};

    evq_log(EVQ_LOG_ERROR, "samples_refused", "entry=%s reason=%s", piece->entry, reason);
    memcpy(entry.entry, piece->entry, sizeof(entry.entry));
    entry.file_bytes = piece->job != NULL && piece->at == 0 ? piece->bytes : 0;
    return evq_sample_pieces_remove(receiver->queue, &entry, 1, err);
}

static enum evq_status piece_take(struct evq_samples_receiver *receiver,
                                  const struct evq_sample_piece *piece, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t at = 0;

    if (piece->job == NULL) {
        return entry_refuse(receiver, piece, "it is not a piece of a samples file", err);
    }
    while (at < receiver->count && !evq_sample_upload_has(receiver->arrivals[at].upload, piece)) {
        at++;
    }
    if (at == UPLOADS_MAX) {
        return entry_refuse(receiver, piece, "too many files arrive at the same time", err);
    }
    if (at == receiver->count) {
        struct arrival *arrival = &receiver->arrivals[at];
        status = evq_sample_upload_new(receiver->config->samples.directory, piece, &arrival->upload,
                                       err);
        if (status != EVQ_OK) {
            return status;
        }
        arrival->ended = false;
        receiver->count++;
    }
    status = evq_sample_upload_add(receiver->arrivals[at].upload, piece, err);
    return status == EVQ_OK && evq_sample_upload_whole(receiver->arrivals[at].upload)
               ? arrival_store(receiver, at, err)
               : status;
}

/*
 * Drops files that can never be whole, because their sender can send no more. Call it when the
 * stream was read to its end. A sender that had ended at the look before can have added nothing
 * since then, so everything that it sent was read.
 */
static enum evq_status senders_look(struct evq_samples_receiver *receiver, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (evq_clock_mono_ms() < receiver->senders_ms) {
        return EVQ_OK;
    }
    receiver->senders_ms = evq_clock_mono_ms() + SENDERS_MS;
    for (size_t at = receiver->count; at-- > 0 && status == EVQ_OK;) {
        struct arrival *arrival = &receiver->arrivals[at];
        const char *job = evq_sample_upload_job(arrival->upload);
        enum evq_piece_sender sender = EVQ_SENDER_HOLDS;
        if (arrival->ended) {
            evq_log(EVQ_LOG_INFO, "samples_dropped", "job=%s task=%s reason=%s", job,
                    evq_sample_upload_task(arrival->upload),
                    "the attempt ended before it had sent the whole file");
            status = arrival_end(receiver, at, err);
            continue;
        }
        status = evq_sample_piece_sender(receiver->queue, job,
                                         evq_sample_upload_token(arrival->upload), &sender, err);
        arrival->ended = status == EVQ_OK && sender != EVQ_SENDER_HOLDS;
    }
    return status;
}

static enum evq_status queue_have(struct evq_samples_receiver *receiver, struct evq_error *err)
{
    const struct evq_conn_config config = evq_config_conn(receiver->config, "evalq-logger");

    if (receiver->queue != NULL) {
        return EVQ_OK;
    }
    enum evq_status status = EVQ_OK;
    if (receiver->conn == NULL) {
        status = evq_conn_open(&config, &receiver->conn, err);
    }
    return status == EVQ_OK ? evq_queue_open(receiver->conn, receiver->config->redis.queue,
                                             &receiver->queue, err)
                            : status;
}

/* Reads the next pieces and takes them. */
static enum evq_status turn(struct evq_samples_receiver *receiver, struct evq_error *err)
{
    struct evq_sample_pieces pieces = {.count = 0};

    enum evq_status status = queue_have(receiver, err);
    if (status == EVQ_OK) {
        status =
            evq_sample_pieces_read(receiver->queue, receiver->behind, READ_WAIT_MS, &pieces, err);
    }
    for (size_t i = 0; status == EVQ_OK && i < pieces.count; i++) {
        status = piece_take(receiver, &pieces.items[i], err);
        memcpy(receiver->behind, pieces.items[i].entry, sizeof(receiver->behind));
    }
    if (status == EVQ_OK && pieces.count < EVQ_PIECES_READ_MAX) {
        status = senders_look(receiver, err);
    }
    if (status == EVQ_OK && receiver->count == 0) {
        // The stream should be empty. If somebody set its ids back, nothing is missed.
        (void)snprintf(receiver->behind, sizeof(receiver->behind), "0");
    }
    evq_sample_pieces_free(&pieces);
    return status;
}

static void turn_failed(struct evq_samples_receiver *receiver, enum evq_status status,
                        const struct evq_error *err)
{
    const int64_t wait_ms = evq_clock_backoff_ms(&receiver->random, receiver->failures,
                                                 BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
    const int64_t deadline_ms = evq_clock_mono_ms() + wait_ms;

    // Logged once, not with every try, because a disk may be full for days.
    evq_log(receiver->failures > 0 ? EVQ_LOG_DEBUG : EVQ_LOG_WARN, "samples_wait",
            "status=%s wait_ms=%lld reason=%s", evq_status_name(status), (long long)wait_ms,
            err->message);
    receiver->failures++;
    arrivals_forget(receiver);
    while (!atomic_load(&receiver->stop) && evq_clock_left_ms(deadline_ms) > 0) {
        (void)poll(NULL, 0, STOP_LOOK_MS); // Short, so that a stop is noticed soon.
    }
}

static void *receiver_main(void *argument)
{
    struct evq_samples_receiver *receiver = argument;

    while (!atomic_load(&receiver->stop)) {
        struct evq_error err = {0};
        const enum evq_status status = turn(receiver, &err);
        if (status != EVQ_OK) {
            turn_failed(receiver, status, &err);
        } else if (receiver->failures > 0) {
            evq_log(EVQ_LOG_INFO, "samples_back", "queue=%s", receiver->config->redis.queue);
            receiver->failures = 0;
        }
    }
    return NULL;
}

static void receiver_free(struct evq_samples_receiver *receiver)
{
    arrivals_forget(receiver);
    evq_queue_close(receiver->queue);
    evq_conn_close(receiver->conn);
    free(receiver);
}

enum evq_status evq_samples_receiver_start(const struct evq_config *config,
                                           struct evq_samples_receiver **ret_receiver,
                                           struct evq_error *err)
{
    struct evq_samples_receiver *receiver = calloc(1, sizeof(*receiver));

    if (receiver != NULL) {
        receiver->config = config;
        receiver->random = evq_clock_random();
        arrivals_forget(receiver);
    }
    if (receiver == NULL || pthread_create(&receiver->thread, NULL, receiver_main, receiver) != 0) {
        free(receiver);
        return evq_error_set(err, EVQ_E_NOMEM, "the thread that stores samples");
    }
    *ret_receiver = receiver;
    return EVQ_OK;
}

void evq_samples_receiver_stop(struct evq_samples_receiver *receiver)
{
    if (receiver != NULL) {
        atomic_store(&receiver->stop, true);
        (void)pthread_join(receiver->thread, NULL); // Ours, joined once.
        receiver_free(receiver);
    }
}
