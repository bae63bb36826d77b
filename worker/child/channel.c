#include "worker/child/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/base/file.h"

#define PREFIX_BYTES 4

void evq_channel_open(struct evq_channel *channel, int fd)
{
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    *channel = (struct evq_channel){.fd = fd};
    evq_buffer_init(&channel->in, EVQ_CODEC_NOTE_BYTES_MAX * 4);
    evq_buffer_init(&channel->out, EVQ_CODEC_NOTE_BYTES_MAX * 8);
}

void evq_channel_close(struct evq_channel *channel)
{
    evq_file_close(&channel->fd);
    channel->fd = -1;
    channel->ended = true;
    evq_buffer_free(&channel->in);
    evq_buffer_free(&channel->out);
}

enum evq_status evq_channel_flush(struct evq_channel *channel, struct evq_error *err)
{
    while (channel->out.bytes > 0) {
        const ssize_t sent = send(channel->fd, channel->out.data, channel->out.bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            evq_buffer_consume(&channel->out, (size_t)sent);
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            channel->ended = true;
            return evq_error_set(err, EVQ_E_IO, "the other process is gone: %s", strerror(errno));
        }
    }
    return EVQ_OK;
}

enum evq_status evq_channel_send(struct evq_channel *channel, const char *type,
                                 const struct evq_field *fields, size_t field_count,
                                 struct evq_error *err)
{
    struct evq_buffer body;

    if (channel->fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "the other process is gone");
    }
    evq_buffer_init(&body, EVQ_CODEC_NOTE_BYTES_MAX);
    enum evq_status status = evq_codec_note_encode(type, fields, field_count, &body, err);
    if (status == EVQ_OK) {
        const uint32_t bytes = (uint32_t)body.bytes;
        const uint8_t prefix[PREFIX_BYTES] = {(uint8_t)bytes, (uint8_t)(bytes >> 8),
                                              (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 24)};
        evq_buffer_append(&channel->out, prefix, sizeof(prefix));
        evq_buffer_append(&channel->out, body.data, body.bytes);
        status = channel->out.failed ? evq_error_set(err, EVQ_E_NOMEM, "a note '%s'", type)
                                     : evq_channel_flush(channel, err);
    }
    evq_buffer_free(&body);
    return status;
}

void evq_channel_tell(struct evq_channel *channel, const char *type)
{
    struct evq_error err;

    if (evq_channel_send(channel, type, NULL, 0, &err) != EVQ_OK) {
        channel->ended = true;
    }
}

void evq_channel_fill(struct evq_channel *channel)
{
    uint8_t chunk[65536];

    while (channel->fd >= 0 && !channel->ended &&
           channel->in.bytes < EVQ_CODEC_NOTE_BYTES_MAX * 2) {
        const ssize_t got = recv(channel->fd, chunk, sizeof(chunk), 0);
        if (got > 0) {
            evq_buffer_append(&channel->in, chunk, (size_t)got);
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            channel->ended = true;
        } else if (errno == EAGAIN) {
            break;
        }
    }
    channel->ended = channel->ended || channel->in.failed;
}

/* After a lost note, no later note may count: a "done" after a lost result would stand for that
 * result. */
static enum evq_status channel_lose(struct evq_channel *channel, enum evq_status status)
{
    channel->ended = true;
    evq_buffer_consume(&channel->in, channel->in.bytes);
    return status;
}

enum evq_status evq_channel_next(struct evq_channel *channel, struct evq_note **ret_note,
                                 struct evq_error *err)
{
    const struct evq_buffer *in = &channel->in;

    *ret_note = NULL;
    if (in->bytes < PREFIX_BYTES) {
        return EVQ_OK;
    }
    const size_t bytes = (size_t)in->data[0] | (size_t)in->data[1] << 8 |
                         (size_t)in->data[2] << 16 | (size_t)in->data[3] << 24;
    if (bytes > EVQ_CODEC_NOTE_BYTES_MAX) {
        return channel_lose(channel,
                            evq_error_set(err, EVQ_E_CORRUPT, "a note of %zu bytes, allowed %zu",
                                          bytes, EVQ_CODEC_NOTE_BYTES_MAX));
    }
    if (in->bytes - PREFIX_BYTES < bytes) {
        return EVQ_OK;
    }
    const enum evq_status status =
        evq_codec_note_decode(in->data + PREFIX_BYTES, bytes, ret_note, err);
    if (status != EVQ_OK) {
        return channel_lose(channel, status);
    }
    evq_buffer_consume(&channel->in, PREFIX_BYTES + bytes);
    return EVQ_OK;
}

struct evq_field evq_channel_text(const char *key, const char *text)
{
    return (struct evq_field){.key = key, .type = EVQ_FIELD_TEXT, .text = text != NULL ? text : ""};
}

struct evq_field evq_channel_integer(const char *key, int64_t value)
{
    return (struct evq_field){.key = key, .type = EVQ_FIELD_INT, .integer = value};
}

struct evq_field evq_channel_bytes(const char *key, const void *data, size_t bytes)
{
    return (struct evq_field){
        .key = key, .type = EVQ_FIELD_BYTES, .bytes = data, .byte_count = bytes};
}

const char *evq_channel_get_text(const struct evq_note *note, const char *key)
{
    const struct evq_field *field = evq_codec_note_field(note, key);

    return field != NULL && field->type == EVQ_FIELD_TEXT ? field->text : "";
}

int64_t evq_channel_get_integer(const struct evq_note *note, const char *key, int64_t fallback)
{
    const struct evq_field *field = evq_codec_note_field(note, key);

    return field != NULL && field->type == EVQ_FIELD_INT ? field->integer : fallback;
}
