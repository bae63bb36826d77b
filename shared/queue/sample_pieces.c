#include "shared/queue/sample_pieces.h"

#include <stdio.h>
#include <string.h>

#include "shared/queue/queue_call.h"

#define TOKEN_BYTES_MAX 64
#define DIGEST_BYTES    32

enum evq_status evq_sample_piece_add(struct evq_queue *queue, const struct evq_sample_piece *piece,
                                     int64_t stream_bytes, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "samples_add", false);
    evq_queue_call_text(queue, piece->job);
    evq_queue_call_text(queue, piece->token);
    evq_queue_call_text(queue, piece->task);
    evq_queue_call_text(queue, piece->digest);
    evq_queue_call_number(queue, piece->bytes);
    evq_queue_call_number(queue, piece->at);
    evq_queue_call_number(queue, stream_bytes);
    evq_queue_call_bytes(queue, piece->data, piece->data_bytes);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (evq_queue_reply_is(reply, "full")) {
        status =
            evq_error_set(err, EVQ_E_FULL,
                          "the stream of samples in Redis has no room for %lld bytes "
                          "(samples.stream_bytes: %lld): is a logger with samples.send running?",
                          (long long)piece->bytes, (long long)stream_bytes);
    } else if (evq_queue_reply_is(reply, "stale")) {
        status = evq_error_set(err, EVQ_E_LEASE_LOST,
                               "job %s belongs to another attempt or ended: this attempt's token "
                               "is stale",
                               piece->job);
    } else if (!evq_queue_reply_is(reply, "ok")) {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}

/* A text of 1 to bytes_max bytes without a NUL; NULL: it is none. */
static const char *text_of(const struct evq_reply *value, size_t bytes_max)
{
    const char *text = evq_queue_reply_text(value);

    return text != NULL && value->bytes >= 1 && value->bytes <= bytes_max &&
                   strlen(text) == value->bytes
               ? text
               : NULL;
}

static bool digest_valid(const char *digest)
{
    return digest != NULL && strspn(digest, "0123456789abcdef") == DIGEST_BYTES &&
           digest[DIGEST_BYTES] == '\0';
}

static bool job_valid(const char *job)
{
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job_name name;

    return job != NULL && evq_job_id_parse(job, scratch, &name, NULL) == EVQ_OK && name.shard < 0;
}

/* Reads [id, [field, value...]]. Allocates nothing. A malformed entry gets job NULL. */
static bool read_piece(const struct evq_reply *reply, struct evq_sample_piece *ret)
{
    const struct evq_reply *fields = evq_queue_reply_item(reply, 1);
    struct evq_sample_piece piece = {.job = NULL};
    const struct evq_reply *data = NULL;
    bool numbers = true;

    *ret = piece;
    if (!evq_queue_reply_copy(evq_queue_reply_item(reply, 0), ret->entry, sizeof ret->entry)) {
        return false;
    }
    memcpy(piece.entry, ret->entry, sizeof piece.entry);
    for (size_t i = 0; fields != NULL && i + 1 < fields->item_count; i += 2) {
        const char *name = evq_queue_reply_text(fields->items[i]);
        const struct evq_reply *value = fields->items[i + 1];
        name = name != NULL ? name : "";
        if (strcmp(name, "job") == 0) {
            piece.job = text_of(value, EVQ_JOB_ID_BYTES_MAX - 1);
        } else if (strcmp(name, "token") == 0) {
            piece.token = text_of(value, TOKEN_BYTES_MAX);
        } else if (strcmp(name, "task") == 0) {
            piece.task = text_of(value, EVQ_JOB_NAME_BYTES_MAX);
        } else if (strcmp(name, "digest") == 0) {
            piece.digest = text_of(value, DIGEST_BYTES);
        } else if (strcmp(name, "bytes") == 0) {
            numbers = evq_queue_reply_within(value, 1, INT64_MAX, &piece.bytes) && numbers;
        } else if (strcmp(name, "at") == 0) {
            numbers = evq_queue_reply_within(value, 0, INT64_MAX, &piece.at) && numbers;
        } else if (strcmp(name, "data") == 0 && evq_queue_reply_text(value) != NULL) {
            data = value;
        }
    }
    if (numbers && job_valid(piece.job) && piece.token != NULL &&
        evq_job_name_valid(piece.task, EVQ_JOB_NAME_BYTES_MAX) && digest_valid(piece.digest) &&
        data != NULL && data->bytes >= 1 && data->bytes <= EVQ_PIECE_BYTES_MAX &&
        piece.at < piece.bytes && (int64_t)data->bytes <= piece.bytes - piece.at) {
        piece.data = data->text;
        piece.data_bytes = data->bytes;
        *ret = piece;
    }
    return true;
}

enum evq_status evq_sample_pieces_read(struct evq_queue *queue, const char *behind,
                                       int64_t timeout_ms, struct evq_sample_pieces *ret,
                                       struct evq_error *err)
{
    struct evq_sample_pieces pieces = {.count = 0};
    char key[EVQ_KEYS_BYTES_MAX];
    char count[16];
    char block[24];

    evq_keys_samples(queue->prefix, key);
    (void)snprintf(count, sizeof count, "%d", EVQ_PIECES_READ_MAX);
    (void)snprintf(block, sizeof block, "%lld", (long long)timeout_ms);
    const char *const words[] = {"XREAD", "COUNT", count, "BLOCK", block, "STREAMS", key, behind};
    queue->function = "XREAD"; // For messages.
    enum evq_status status =
        evq_conn_call(queue->conn, sizeof words / sizeof words[0], words, NULL,
                      evq_conn_deadline_ms(queue->conn, timeout_ms), &pieces.reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    // Nil, or [[stream, [entry, ...]]].
    const struct evq_reply *list = evq_queue_reply_item(evq_queue_reply_item(pieces.reply, 0), 1);
    const bool none = pieces.reply->type == EVQ_REPLY_NIL;
    bool good = none || (list != NULL && list->type == EVQ_REPLY_ARRAY &&
                         list->item_count <= EVQ_PIECES_READ_MAX);
    for (size_t i = 0; good && !none && i < list->item_count; i++) {
        good = read_piece(list->items[i], &pieces.items[pieces.count++]);
    }
    if (!good) {
        evq_sample_pieces_free(&pieces);
        return evq_queue_call_malformed(queue, err);
    }
    *ret = pieces;
    return EVQ_OK;
}

void evq_sample_pieces_free(struct evq_sample_pieces *pieces)
{
    evq_reply_free(pieces->reply);
    pieces->reply = NULL;
    pieces->count = 0;
}

enum evq_status evq_sample_pieces_remove(struct evq_queue *queue,
                                         const struct evq_piece_entry *entries, size_t count,
                                         struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t at = 0; at < count && status == EVQ_OK;) {
        evq_queue_call_begin(queue, "samples_remove", false);
        for (size_t i = 0; i < EVQ_PIECES_MOVED_MAX && at < count; i++, at++) {
            evq_queue_call_text(queue, entries[at].entry);
            evq_queue_call_number(queue, entries[at].file_bytes);
        }
        status = evq_queue_call_send_ok(queue, err);
    }
    return status;
}

enum evq_status evq_sample_piece_sender(struct evq_queue *queue, const char *job, const char *token,
                                        enum evq_piece_sender *ret, struct evq_error *err)
{
    static const char *const words[] = {"holds", "ended", "gone"};
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "samples_sender", true);
    evq_queue_call_text(queue, job);
    evq_queue_call_text(queue, token);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    size_t word = 0;
    while (word < 3 && !evq_queue_reply_is(reply, words[word])) {
        word++;
    }
    if (word < 3) {
        *ret = (enum evq_piece_sender)word;
    } else {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}
