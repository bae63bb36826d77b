#include "worker/child/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/hex.h"
#include "shared/redis/conn_resolve.h"
#include "shared/redis/conn_socket.h"

#define MEMORY         "/dev/shm"
#define TICK_MS        100 // Time between two checks whether to stop.
#define PAUSE_FIRST_MS 100
#define PAUSE_MAX_MS   2000
#define ROOM_SPARE     ((int64_t)64 << 20) // Memory that is left free for other programs.

const struct evq_fetch_limits evq_fetch_limits_default = {
    .connect_ms = 5000, .silence_ms = 20000, .busy_ms = 120000, .cuts_max = 5};

struct transfer {
    const struct evq_job *job;
    const struct evq_fetch_limits *limits;
    const struct evq_eval_report *report;
    char host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    uint16_t port;
    struct evq_conn_stream stream;
    int file;
    int64_t at; // Bytes that are in the file and in the hash.
    int64_t told_at;
    XXH3_state_t *hash;
    uint8_t *block;
    uint64_t jitter;
};

/* ---- where it goes ---- */

static void memory_directory(char out[64])
{
    (void)snprintf(out, 64, MEMORY "/evalq-%ju-fetched", (uintmax_t)geteuid());
}

void evq_fetch_prune(void)
{
    char memory[64];

    memory_directory(memory);
    evq_scratch_prune(memory);
}

void evq_fetch_close(struct evq_fetched *fetched)
{
    if (fetched->directory[0] != '\0') {
        evq_scratch_remove(fetched->directory);
        fetched->directory[0] = '\0';
    }
    evq_file_close(&fetched->directory_fd);
}

/* Makes a directory beneath base and in it the file, with all of its space reserved. */
static enum evq_status file_make(const char *base, int64_t bytes, struct evq_fetched *fetched,
                                 int *ret_file, struct evq_error *err)
{
    enum evq_status status = evq_scratch_make_attempt(
        base, fetched->directory, sizeof(fetched->directory), &fetched->directory_fd, err);
    if (status != EVQ_OK) {
        fetched->directory[0] = '\0'; // We made no directory.
        return status;
    }
    int fd = openat(fetched->directory_fd, fetched->name,
                    O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    const int failure = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (failure != 0) {
        evq_file_close(&fd); // The file is removed next.
        evq_fetch_close(fetched);
        return evq_error_set(err, EVQ_E_RETRY, "not enough space for %lld bytes in '%s': %s",
                             (long long)bytes, base, strerror(failure));
    }
    *ret_file = fd;
    return EVQ_OK;
}

static bool memory_has(const char *directory, int64_t bytes)
{
    struct statvfs info;

    return statvfs(directory, &info) == 0 &&
           (double)info.f_bavail * (double)info.f_frsize >= (double)(bytes + ROOM_SPARE);
}

static enum evq_status place_make(const char *scratch, int64_t bytes, struct evq_fetched *fetched,
                                  int *ret_file, struct evq_error *err)
{
    char memory[64];
    char jobs[80];
    struct evq_error fault;

    memory_directory(memory);
    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", memory);
    // If the memory cannot be used, whatever the reason, the scratch directory is used.
    if (access(MEMORY, W_OK | X_OK) == 0 && evq_scratch_open(memory, &fault) == EVQ_OK &&
        memory_has(jobs, bytes) && file_make(memory, bytes, fetched, ret_file, &fault) == EVQ_OK) {
        return EVQ_OK;
    }
    return file_make(scratch, bytes, fetched, ret_file, err);
}

/* ---- one connection ---- */

static enum evq_status progress_tell(struct transfer *transfer, struct evq_error *err)
{
    char status[65];

    if (transfer->report == NULL) {
        return EVQ_OK;
    }
    (void)snprintf(status, sizeof(status), "fetching the weights: %lld of %lld MB",
                   (long long)(transfer->at / 1000000),
                   (long long)(transfer->job->snapshot.bytes / 1000000));
    if (transfer->report->progress(transfer->report->context, -1, -1, status) != EVQ_OK) {
        return evq_error_set(err, EVQ_E_STOPPED, "stopped while the weights were fetched");
    }
    return EVQ_OK;
}

/* Waits in short steps, so that a cancel is noticed. EVQ_E_TIMEOUT: the deadline passed. */
static enum evq_status readable_wait(struct transfer *transfer, int64_t deadline_ms,
                                     struct evq_error *err)
{
    for (;;) {
        const int64_t now_ms = evq_clock_mono_ms();
        const int64_t turn_ms = now_ms + TICK_MS < deadline_ms ? now_ms + TICK_MS : deadline_ms;
        enum evq_status status =
            evq_conn_socket_wait(transfer->stream.fd, -1, POLLIN, turn_ms, NULL, err);
        if (status != EVQ_E_TIMEOUT) {
            return status;
        }
        status = progress_tell(transfer, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (turn_ms >= deadline_ms) {
            return evq_error_set(err, EVQ_E_TIMEOUT, "nothing came for %lld s",
                                 (long long)(transfer->limits->silence_ms / 1000));
        }
    }
}

/* Reads at least one byte before the deadline. EVQ_E_IO: the connection ended. */
static enum evq_status bytes_read(struct transfer *transfer, void *out, size_t bytes_max,
                                  int64_t deadline_ms, size_t *ret_bytes, struct evq_error *err)
{
    struct evq_conn_stream *stream = &transfer->stream;

    for (;;) {
        const ssize_t got = stream->transport->read(stream, out, bytes_max);
        if (got > 0) {
            *ret_bytes = (size_t)got;
            return EVQ_OK;
        }
        if (got == 0) {
            return evq_error_set(err, EVQ_E_IO, "the producer closed the connection");
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            return evq_error_set(err, EVQ_E_IO, "%s", strerror(errno));
        }
        const enum evq_status status = readable_wait(transfer, deadline_ms, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
}

static enum evq_status take(struct transfer *transfer, const void *data, size_t bytes,
                            struct evq_error *err)
{
    struct evq_error fault;

    if (evq_file_write_at(transfer->file, data, bytes, (uint64_t)transfer->at,
                          "the fetched weights", &fault) != EVQ_OK) {
        return evq_error_set(err, EVQ_E_RETRY, "%s", fault.message);
    }
    (void)XXH3_128bits_update(transfer->hash, data, bytes); // This fails only for a NULL state.
    transfer->at += (int64_t)bytes;
    return EVQ_OK;
}

static enum evq_status request_send(struct transfer *transfer, struct evq_error *err)
{
    struct evq_snapshot_request request = {.offset = transfer->at};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];

    memcpy(request.token, transfer->job->snapshot.token, EVQ_SNAPSHOT_TOKEN_CHARS);
    const size_t bytes = evq_snapshot_request_format(&request, line);
    // A new connection accepts a short line at once.
    if (transfer->stream.transport->write(&transfer->stream, line, bytes) != (ssize_t)bytes) {
        return evq_error_set(err, EVQ_E_IO, "the request could not be sent");
    }
    return EVQ_OK;
}

/* Reads the line of the answer, and the bytes of the file that came with it. */
static enum evq_status answer_read(struct transfer *transfer, struct evq_snapshot_reply *ret_reply,
                                   struct evq_error *err)
{
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX];
    const int64_t deadline_ms = evq_clock_mono_ms() + transfer->limits->silence_ms;
    size_t have = 0;
    size_t got = 0;
    size_t used = 0;
    enum evq_status status = EVQ_E_INCOMPLETE;

    while (status == EVQ_E_INCOMPLETE) {
        status = bytes_read(transfer, line + have, sizeof(line) - have, deadline_ms, &got, err);
        if (status == EVQ_OK) {
            have += got;
            status = evq_snapshot_reply_parse(line, have, ret_reply, &used, err);
        }
    }
    const int64_t left = transfer->job->snapshot.bytes - transfer->at;
    if (status != EVQ_OK || ret_reply->word != EVQ_SNAPSHOT_OK ||
        ret_reply->bytes != transfer->job->snapshot.bytes || have == used) {
        return status;
    }
    const size_t rest = (int64_t)(have - used) < left ? have - used : (size_t)left;
    return take(transfer, line + used, rest, err);
}

static enum evq_status body_read(struct transfer *transfer, struct evq_error *err)
{
    const int64_t bytes_all = transfer->job->snapshot.bytes;
    int64_t mark = transfer->at;
    int64_t deadline_ms = evq_clock_mono_ms() + transfer->limits->silence_ms;
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && transfer->at < bytes_all) {
        const int64_t left = bytes_all - transfer->at;
        const size_t most = left < EVQ_FETCH_BLOCK_BYTES ? (size_t)left : EVQ_FETCH_BLOCK_BYTES;
        size_t got = 0;
        status = bytes_read(transfer, transfer->block, most, deadline_ms, &got, err);
        if (status == EVQ_OK) {
            status = take(transfer, transfer->block, got, err);
        }
        // A few bytes now and then do not count as progress.
        if (transfer->at - mark >= EVQ_FETCH_BLOCK_BYTES) {
            mark = transfer->at;
            deadline_ms = evq_clock_mono_ms() + transfer->limits->silence_ms;
        }
        if (status == EVQ_OK && transfer->at - transfer->told_at >= 32 * EVQ_FETCH_BLOCK_BYTES) {
            transfer->told_at = transfer->at;
            status = progress_tell(transfer, err);
        }
    }
    return status;
}

/* Runs one connection, from where the last one ended. EVQ_E_FULL: the producer is busy. EVQ_E_IO,
 * EVQ_E_TIMEOUT: the connection was cut. */
static enum evq_status transfer_once(struct transfer *transfer, struct evq_error *err)
{
    const char *place = transfer->job->snapshot.place;
    struct evq_conn_url target = {.port = transfer->port};
    struct evq_snapshot_reply reply;

    memcpy(target.host, transfer->host, sizeof(transfer->host));
    transfer->stream.failure = 0;
    enum evq_status status =
        evq_conn_socket_open(&transfer->stream, &evq_conn_transport_tcp, &target,
                             evq_clock_mono_ms() + transfer->limits->connect_ms, err);
    if (status == EVQ_E_IO && transfer->stream.failure == ECONNREFUSED) {
        return evq_error_set(err, EVQ_E_GONE,
                             "the training process at %s, which holds the weights, has ended",
                             place);
    }
    if (status == EVQ_OK) {
        status = request_send(transfer, err);
    }
    if (status == EVQ_OK) {
        status = answer_read(transfer, &reply, err);
    }
    if (status == EVQ_E_CORRUPT) {
        return evq_error_set(
            err, EVQ_E_GONE,
            "another program answers at %s, where the training process held the weights", place);
    }
    if (status == EVQ_OK && reply.word == EVQ_SNAPSHOT_GONE) {
        return evq_error_set(err, EVQ_E_GONE,
                             "the training process at %s has removed these weights", place);
    }
    if (status == EVQ_OK && reply.word == EVQ_SNAPSHOT_BUSY) {
        return evq_error_set(err, EVQ_E_FULL,
                             "the training process at %s is busy with other workers", place);
    }
    if (status == EVQ_OK && reply.bytes != transfer->job->snapshot.bytes) {
        return evq_error_set(err, EVQ_E_CHANGED,
                             "the training process sends %lld bytes of weights, but announced %lld",
                             (long long)reply.bytes, (long long)transfer->job->snapshot.bytes);
    }
    return status == EVQ_OK ? body_read(transfer, err) : status;
}

/* ---- all of it ---- */

static enum evq_status checksum_check(struct transfer *transfer, struct evq_error *err)
{
    char found[EVQ_SNAPSHOT_CHECKSUM_CHARS + 1];
    const XXH128_hash_t hash = XXH3_128bits_digest(transfer->hash);

    evq_hex_128(hash.high64, hash.low64, found);
    if (strcmp(found, transfer->job->snapshot.checksum) == 0) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_RETRY, "fetched weights have checksum %s, announced %s", found,
                         transfer->job->snapshot.checksum);
}

static enum evq_status pause_before(struct transfer *transfer, uint32_t tries,
                                    struct evq_error *err)
{
    const int64_t until_ms =
        evq_clock_mono_ms() +
        evq_clock_backoff_ms(&transfer->jitter, tries, PAUSE_FIRST_MS, PAUSE_MAX_MS);
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && evq_clock_left_ms(until_ms) > 0) {
        const int left = evq_clock_left_ms(until_ms);
        (void)poll(NULL, 0, left < TICK_MS ? left : TICK_MS);
        status = progress_tell(transfer, err);
    }
    return status;
}

static enum evq_status transfer_run(struct transfer *transfer, uint32_t *ret_cuts,
                                    struct evq_error *err)
{
    const int64_t busy_ms = evq_clock_mono_ms() + transfer->limits->busy_ms;
    struct evq_error cause;
    enum evq_status status = EVQ_OK;

    for (uint32_t tries = 0; transfer->at < transfer->job->snapshot.bytes; tries++) {
        status = transfer_once(transfer, &cause);
        evq_conn_socket_close(&transfer->stream);
        const bool cut = status == EVQ_E_IO || status == EVQ_E_TIMEOUT;
        const bool busy = status == EVQ_E_FULL && evq_clock_mono_ms() < busy_ms;
        *ret_cuts += cut;
        if (cut && *ret_cuts >= transfer->limits->cuts_max) {
            return evq_error_set(
                err, EVQ_E_RETRY,
                "the transfer of weights from %s broke off %u times, at last after %lld bytes: %s",
                transfer->job->snapshot.place, *ret_cuts, (long long)transfer->at, cause.message);
        }
        if (status != EVQ_OK && !cut && !busy) {
            return evq_error_set(err, status == EVQ_E_FULL ? EVQ_E_RETRY : status, "%s",
                                 cause.message);
        }
        status = status == EVQ_OK ? EVQ_OK : pause_before(transfer, tries, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return checksum_check(transfer, err);
}

static enum evq_status name_take(const struct evq_job *job, struct evq_fetched *fetched,
                                 struct evq_error *err)
{
    const char *slash = strrchr(job->path, '/');
    const char *name = slash != NULL ? slash + 1 : job->path;

    if (name[0] == '\0' || strcmp(name, ".") == 0 || strlen(name) >= sizeof(fetched->name)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%.60s' names no file", job->path);
    }
    memcpy(fetched->name, name, strlen(name) + 1);
    return EVQ_OK;
}

enum evq_status evq_fetch_open(const struct evq_job *job, const char *scratch,
                               const struct evq_fetch_limits *limits,
                               const struct evq_eval_report *report,
                               struct evq_fetched *ret_fetched, struct evq_error *err)
{
    const struct evq_snapshot *snapshot = &job->snapshot;
    struct transfer transfer = {.job = job,
                                .limits = limits,
                                .report = report,
                                .stream = {.fd = -1, .interrupt_fd = -1},
                                .file = -1,
                                .jitter = evq_clock_random()};
    struct evq_fetched fetched = {.directory_fd = -1};

    if (!job->snapshot_given || snapshot->place[0] == '\0' || snapshot->token[0] == '\0' ||
        snapshot->checksum[0] == '\0' || snapshot->bytes <= 0) {
        return evq_error_set(err, EVQ_E_INVALID, "no training process offers the weights '%.100s'",
                             job->path);
    }
    enum evq_status status = name_take(job, &fetched, err);
    if (status == EVQ_OK) {
        status = evq_snapshot_place_parse(snapshot->place, transfer.host, &transfer.port, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    transfer.hash = XXH3_createState();
    transfer.block = malloc(EVQ_FETCH_BLOCK_BYTES);
    if (transfer.hash == NULL || transfer.block == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "to fetch '%.100s'", job->path);
        goto out;
    }
    (void)XXH3_128bits_reset(transfer.hash); // This fails only for a NULL state.
    status = place_make(scratch, snapshot->bytes, &fetched, &transfer.file, err);
    if (status == EVQ_OK) {
        status = transfer_run(&transfer, &fetched.cuts, err);
    }
    if (status == EVQ_OK) {
        *ret_fetched = fetched;
        fetched = (struct evq_fetched){.directory_fd = -1};
    }
out:
    // The file is in memory, or removed again, or checked when it is read.
    evq_file_close(&transfer.file);
    evq_fetch_close(&fetched);
    evq_conn_resolve_drop(&transfer.stream.resolve);
    (void)XXH3_freeState(transfer.hash); // It accepts NULL.
    free(transfer.block);
    return status;
}
