/*
 * What a child, or somebody who has its socket, sends to its supervisor: notes in their frames, in
 * pieces. Every note that comes whole is read as what its bytes are; a broken frame ends the
 * channel. The first byte is the size of the pieces.
 */
// fuzz: worker
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/check.h"
#include "worker/child/channel.h"

/* Takes what is there; how many notes it was, or -1: the channel is of no more use. */
static int notes_take(struct evq_channel *channel)
{
    for (int count = 0;; count++) {
        struct evq_note *note = NULL;
        struct evq_error err = {EVQ_OK, ""};
        if (evq_channel_next(channel, &note, &err) != EVQ_OK) {
            check(note == NULL && err.message[0] != '\0');
            return -1;
        }
        if (note == NULL) {
            return count;
        }
        check(note->type != NULL && evq_channel_get_text(note, "message") != NULL);
        (void)evq_channel_get_integer(note, "done", -1);
        evq_codec_note_free(note);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_channel channel;
    int pair[2];

    if (bytes < 2) {
        return 0;
    }
    const size_t piece = (size_t)data[0] + 1;
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    evq_channel_open(&channel, pair[0]);
    int taken = 0;
    for (size_t at = 1; at < bytes && taken >= 0; at += piece) {
        const size_t some = bytes - at < piece ? bytes - at : piece;
        check(write(pair[1], data + at, some) == (ssize_t)some);
        evq_channel_fill(&channel);
        taken = notes_take(&channel);
        check(channel.in.bytes <= EVQ_CODEC_NOTE_BYTES_MAX + 65536);
    }
    (void)close(pair[1]);
    evq_channel_fill(&channel);
    check(channel.ended);
    evq_channel_close(&channel);
    return 0;
}
