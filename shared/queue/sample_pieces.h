/*
 * The stream of samples: pieces of samples files on their way from a worker to the logger.
 * docs/protocol.md describes it. Threads as struct evq_queue.
 */
#ifndef EVQ_SHARED_QUEUE_SAMPLE_PIECES_H
#define EVQ_SHARED_QUEUE_SAMPLE_PIECES_H

#include "shared/queue/queue.h"

#define EVQ_PIECE_BYTES_MAX  ((size_t)256 << 10)
#define EVQ_PIECES_READ_MAX  16   // Pieces of one read.
#define EVQ_PIECES_MOVED_MAX 1000 // Pieces of one removal.

struct evq_sample_piece {
    char entry[32]; // Stream id; set by a read.
    // NULL: the entry is no piece, because somebody wrote it by hand. The other members are unset.
    const char *job;   // The id of a whole job, with its generation.
    const char *token; // Of the attempt that sends it.
    const char *task;
    const char *digest; // Of the whole file, as in the result.
    int64_t bytes;      // Of the whole file.
    int64_t at;         // Offset of the piece in the file.
    const void *data;
    size_t data_bytes; // 1 to EVQ_PIECE_BYTES_MAX.
};

/* Adds a piece. stream_bytes: how many bytes of files the stream may hold. EVQ_E_FULL: the whole
 * file has no room now (only for its first piece). EVQ_E_LEASE_LOST. */
enum evq_status evq_sample_piece_add(struct evq_queue *queue, const struct evq_sample_piece *piece,
                                     int64_t stream_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_sample_pieces {
    struct evq_reply *reply; // Owns the texts and data of the pieces.
    struct evq_sample_piece items[EVQ_PIECES_READ_MAX];
    size_t count;
};

/* Reads the pieces behind a stream id ("0": from the first one) and waits up to timeout_ms for one.
 * The caller frees *ret. */
enum evq_status evq_sample_pieces_read(struct evq_queue *queue, const char *behind,
                                       int64_t timeout_ms, struct evq_sample_pieces *ret,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
void evq_sample_pieces_free(struct evq_sample_pieces *pieces);

struct evq_piece_entry { // What a removal must know of a piece.
    char entry[32];
    int64_t file_bytes; // Of the whole file for its first piece; otherwise 0.
};

/* Removes pieces from the stream. May be repeated. */
enum evq_status evq_sample_pieces_remove(struct evq_queue *queue,
                                         const struct evq_piece_entry *entries, size_t count,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_piece_sender {
    EVQ_SENDER_HOLDS, // The attempt can send more pieces.
    EVQ_SENDER_ENDED, // It never can again.
    EVQ_SENDER_GONE   // The same, and its job was removed.
};

enum evq_status evq_sample_piece_sender(struct evq_queue *queue, const char *job, const char *token,
                                        enum evq_piece_sender *ret,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

#endif
