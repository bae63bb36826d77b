/*
 * Notes between the supervisor and a child: length-prefixed msgpack over a socketpair. One thread.
 * A note is at most EVQ_CODEC_NOTE_BYTES_MAX long; the prefix is 4 bytes, least significant first.
 *
 *   to the child        job {id suite digest record shard shard_count attempt epoch
 *                           tasks_done}
 *                       cancel {}
 *                       exit {}
 *   to the supervisor   hello {version note devices}
 *                       progress {done total status}
 *                       task {result}
 *                       done {}
 *                       error {status crash message detail}
 */
#ifndef EVQ_WORKER_CHANNEL_H
#define EVQ_WORKER_CHANNEL_H

#include "shared/base/buffer.h"
#include "shared/queue/codec.h"

struct evq_channel {
    int fd; // Non-blocking; owned. -1: closed.
    struct evq_buffer in;
    struct evq_buffer out; // What the other side has not taken yet.
    bool ended;            // The other side has closed, or broke the framing, or a note was lost.
};

/* Takes fd over and makes it non-blocking. */
void evq_channel_open(struct evq_channel *channel, int fd);
void evq_channel_close(struct evq_channel *channel);

/* Queues one note and sends what can be sent now. EVQ_E_IO: the other side is gone; EVQ_E_LIMIT,
 * EVQ_E_NOMEM. */
enum evq_status evq_channel_send(struct evq_channel *channel, const char *type,
                                 const struct evq_field *fields, size_t field_count,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* A note without fields to somebody whose death is seen elsewhere: a failure needs no answer. */
void evq_channel_tell(struct evq_channel *channel, const char *type);
/* Goes on sending; poll for writability while channel->out.bytes > 0. EVQ_E_IO: `ended` is set too.
 */
enum evq_status evq_channel_flush(struct evq_channel *channel, struct evq_error *err);

/* Takes in what is there, without waiting; sets `ended`. */
void evq_channel_fill(struct evq_channel *channel);
/* The next whole note of what was taken in; *ret_note NULL: none. The caller frees it. After
 * EVQ_E_CORRUPT or EVQ_E_NOMEM there is none any more. */
enum evq_status evq_channel_next(struct evq_channel *channel, struct evq_note **ret_note,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_field evq_channel_text(const char *key, const char *text);
struct evq_field evq_channel_integer(const char *key, int64_t value);
struct evq_field evq_channel_bytes(const char *key, const void *data, size_t bytes);
/* "" or fallback when the field is absent or of another type. */
const char *evq_channel_get_text(const struct evq_note *note, const char *key);
int64_t evq_channel_get_integer(const struct evq_note *note, const char *key, int64_t fallback);

#endif
