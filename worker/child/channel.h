/*
 * Notes between the supervisor and a child: length-prefixed msgpack over a socketpair. One thread.
 * A note is at most EVQ_CODEC_NOTE_BYTES_MAX long; the prefix is 4 bytes, least significant first.
 *
 *   to the child        job {id suite digest record shard shard_count attempt keyspace
 *                           tasks_done}
 *                       cancel {}
 *                       piece {status message}    the answer to a piece
 *                       exit {}
 *   to the supervisor   hello {version note evaluators devices}
 *                       progress {done total status}
 *                       task {result}
 *                       piece {task digest bytes at data}    of a samples file
 *                       done {}
 *                       error {status crash message detail}
 */
#ifndef EVQ_WORKER_CHILD_CHANNEL_H
#define EVQ_WORKER_CHILD_CHANNEL_H

#include "shared/base/buffer.h"
#include "shared/queue/codec.h"

struct evq_channel {
    int fd; // Non-blocking; owned. -1: closed.
    struct evq_buffer in;
    struct evq_buffer out; // Bytes that the other side has not taken yet.
    bool ended; // The other side closed the socket or broke the framing, or a note was lost.
};

/* Takes fd over and makes it non-blocking. */
void evq_channel_open(struct evq_channel *channel, int fd);
void evq_channel_close(struct evq_channel *channel);

/* Queues one note and sends what can be sent without waiting. EVQ_E_IO: the other side is gone.
 * EVQ_E_LIMIT, EVQ_E_NOMEM. */
enum evq_status evq_channel_send(struct evq_channel *channel, const char *type,
                                 const struct evq_field *fields, size_t field_count,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Sends a note without fields. A failure is ignored, because the death of the other side is handled
 * elsewhere. */
void evq_channel_tell(struct evq_channel *channel, const char *type);
/* Sends more of what is queued. Poll for writability while channel->out.bytes > 0. EVQ_E_IO:
 * `ended` is set too. */
enum evq_status evq_channel_flush(struct evq_channel *channel, struct evq_error *err);

/* Reads what has arrived, without waiting, and sets `ended`. */
void evq_channel_fill(struct evq_channel *channel);
/* Takes the next whole note that was read; *ret_note NULL: there is none. The caller frees it.
 * After EVQ_E_CORRUPT or EVQ_E_NOMEM no further note follows. */
enum evq_status evq_channel_next(struct evq_channel *channel, struct evq_note **ret_note,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_field evq_channel_text(const char *key, const char *text);
struct evq_field evq_channel_integer(const char *key, int64_t value);
struct evq_field evq_channel_bytes(const char *key, const void *data, size_t bytes);
/* Return "" or fallback if the field is absent or has another type. */
const char *evq_channel_get_text(const struct evq_note *note, const char *key);
int64_t evq_channel_get_integer(const struct evq_note *note, const char *key, int64_t fallback);

#endif
