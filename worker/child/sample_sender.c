#include "worker/child/sample_sender.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "worker/evaluators/sample_store.h"

/* Hands over one piece. If Redis has no room, waits for it, but not longer than
 * samples.wait_seconds.
 */
static enum evq_status piece_deliver(const struct evq_sample_sender *sender,
                                     const struct evq_sample_piece *piece, struct evq_error *err)
{
    const int64_t wait_ms = sender->config->samples.wait_seconds * 1000;
    const int64_t deadline_ms = evq_clock_mono_ms() + wait_ms;
    enum evq_status status = sender->piece(sender->context, piece, err);

    while (status == EVQ_E_FULL && evq_clock_left_ms(deadline_ms) > 0) {
        status = sender->wait(sender->context);
        if (status == EVQ_OK) {
            status = sender->piece(sender->context, piece, err);
        }
    }
    return status;
}

static enum evq_status file_deliver(const struct evq_sample_sender *sender, const char *path,
                                    const struct evq_result *result, struct evq_error *err)
{
    const int64_t most = sender->config->samples.stream_bytes;
    struct evq_sample_piece piece = {.job = result->job,
                                     .task = result->task,
                                     .digest = result->samples_digest,
                                     .bytes = result->samples_bytes};
    enum evq_status status = EVQ_OK;
    uint8_t *data = NULL;
    int fd = -1;

    if (piece.bytes > most) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "their file has %lld bytes, and samples.stream_bytes allows %lld",
                             (long long)piece.bytes, (long long)most);
    }
    data = malloc(EVQ_PIECE_BYTES_MAX);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (data == NULL || fd < 0) {
        status = evq_error_set(err, data == NULL ? EVQ_E_NOMEM : EVQ_E_IO, "open '%s': %s", path,
                               strerror(errno));
    }
    while (status == EVQ_OK && piece.at < piece.bytes) {
        const int64_t left = piece.bytes - piece.at;
        piece.data = data;
        piece.data_bytes = left < (int64_t)EVQ_PIECE_BYTES_MAX ? (size_t)left : EVQ_PIECE_BYTES_MAX;
        status = evq_file_read_at(fd, data, piece.data_bytes, (uint64_t)piece.at, path, err);
        if (status == EVQ_OK) {
            status = piece_deliver(sender, &piece, err);
            piece.at += (int64_t)piece.data_bytes;
        }
    }
    evq_file_close(&fd);
    free(data);
    return status;
}

enum evq_status evq_sample_sender_send(const struct evq_sample_sender *sender,
                                       struct evq_result *result,
                                       char note[EVQ_SAMPLE_SENDER_NOTE_BYTES],
                                       struct evq_error *err)
{
    char directory[EVQ_SAMPLES_PATH_BYTES];
    char path[EVQ_SAMPLES_PATH_BYTES];
    struct evq_error fault = {.status = EVQ_OK};

    if (result->samples_digest == NULL || result->samples_digest[0] == '\0') {
        return EVQ_OK;
    }
    evq_sample_store_directory(sender->config, sender->scratch, directory);
    enum evq_status status = evq_samples_path(directory, result->job, result->task, path, &fault);
    if (status == EVQ_OK) {
        status = file_deliver(sender, path, result, &fault);
        (void)unlink(path); // Otherwise it goes with the attempt's directory.
    }
    if (status == EVQ_E_STOPPED) {
        return evq_error_set(err, status, "stopped while samples were sent");
    }
    if (status != EVQ_OK) {
        const char *before = result->note != NULL ? result->note : "";
        (void)snprintf(note, EVQ_SAMPLE_SENDER_NOTE_BYTES, "%s%ssamples were not kept: %s", before,
                       before[0] != '\0' ? "; " : "", fault.message);
        result->note = note;
        result->samples_digest = "";
        result->samples_bytes = 0;
    }
    return EVQ_OK;
}
