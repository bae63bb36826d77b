/*
 * Commands to bytes and bytes to replies: the one user of hiredis, of its formatter and its reply
 * reader alone, so that releases 0.14 and 1.x behave alike. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_REDIS_CONN_READER_H
#define EVQ_SHARED_REDIS_CONN_READER_H

#include "shared/base/buffer.h"
#include "shared/redis/conn.h"

struct evq_conn_reader;

struct evq_conn_reader *evq_conn_reader_new(void);         // NULL when out of memory.
void evq_conn_reader_free(struct evq_conn_reader *reader); // Accepts NULL.

/* Takes bytes from the socket. EVQ_E_CORRUPT, EVQ_E_LIMIT, EVQ_E_NOMEM: the stream is of no more
 * use. */
enum evq_status evq_conn_reader_feed(struct evq_conn_reader *reader, const char *data, size_t bytes,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * The next whole reply: *ret_reply, freed by evq_reply_free(), or NULL when it has not all come. An
 * error reply (also one within an array) is *ret_error_text, of at most error_bytes; then
 * *ret_reply is NULL as well.
 */
enum evq_status evq_conn_reader_next(struct evq_conn_reader *reader, struct evq_reply **ret_reply,
                                     char *ret_error_text, size_t error_bytes,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether a whole reply waits to be taken. */
bool evq_conn_reader_ready(const struct evq_conn_reader *reader);

/* Returns true if no received bytes are left unread, as between a reply and the next command. If it
 * is false there, the peer is out of step. */
bool evq_conn_reader_idle(const struct evq_conn_reader *reader);

/* Appends one command to out. arg_bytes NULL: C strings. EVQ_E_LIMIT, EVQ_E_NOMEM. */
enum evq_status evq_conn_reader_format(size_t arg_count, const char *const *args,
                                       const size_t *arg_bytes, struct evq_buffer *out,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
