/* For shared/queue/queue_*.c only: builds one FCALL and reads its reply. The words of a call are in
 * the queue's arena until the next call begins. Threads as the queue. */
#ifndef EVQ_SHARED_QUEUE_QUEUE_CALL_H
#define EVQ_SHARED_QUEUE_QUEUE_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/arena.h"
#include "shared/base/buffer.h"
#include "shared/queue/function_library.h"
#include "shared/queue/keys.h"
#include "shared/queue/queue.h"

struct evq_queue {
    struct evq_conn *conn; // Borrowed.
    char name[EVQ_KEYS_QUEUE_BYTES_MAX + 1];
    char prefix[EVQ_KEYS_BYTES_MAX];
    // Name of the worker that claims and heartbeats here; "" before the first claim.
    char worker[EVQ_KEYS_BYTES_MAX];

    const char *function;    // Function of the current call, for messages.
    struct evq_arena *arena; // Holds the words made by printf.
    const char **words;      // Words of the current call, their lengths, number and capacity.
    size_t *word_bytes;
    size_t word_count;
    size_t word_max;
    bool failed; // Out of memory while collecting words; send reports it.
    // Encoded records of the call. All are appended before a word points to one.
    struct evq_buffer records;
};

/* Remembers the worker's name for verbs that do not pass it. */
void evq_queue_call_worker(struct evq_queue *queue, const char *worker);

/* Begins a call of EVQ_FUNCTIONS_PREFIX + function, a literal. read_only uses FCALL_RO. */
void evq_queue_call_begin(struct evq_queue *queue, const char *function, bool read_only);
/* Adds a word. It must stay valid until send. NULL is "". */
void evq_queue_call_text(struct evq_queue *queue, const char *text);
void evq_queue_call_bytes(struct evq_queue *queue, const void *data, size_t bytes);
void evq_queue_call_number(struct evq_queue *queue, int64_t number);
void evq_queue_call_double(struct evq_queue *queue, double value); // 17 digits.
void evq_queue_call_cut(struct evq_queue *queue, const char *text, size_t bytes_max);
/* A word made by printf, kept in the arena. */
void evq_queue_call_printf(struct evq_queue *queue, const char *format, ...) EVQ_PRINTF(2, 3);
enum evq_status evq_queue_call_send(struct evq_queue *queue, struct evq_reply **ret_reply,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * For several calls at once: append each, then read as many replies in order. The statuses are
 * those of send. Nothing else may be called in between. After a lost connection the remaining
 * replies need not be read.
 */
enum evq_status evq_queue_call_append(struct evq_queue *queue,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_queue_call_read(struct evq_queue *queue, struct evq_reply **ret_reply,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* send, for a verb whose reply is the one word "ok". */
enum evq_status evq_queue_call_send_ok(struct evq_queue *queue,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* The reply is malformed: the connection is out of step, or something sits in between. Closes
 * it. EVQ_E_IO, because the call may be repeated. */
enum evq_status evq_queue_call_malformed(const struct evq_queue *queue, struct evq_error *err);

/* Text of a string or status, NULL for anything else (also for a NULL reply). */
const char *evq_queue_reply_text(const struct evq_reply *reply);
/* Item of an array; NULL when there is none. */
const struct evq_reply *evq_queue_reply_item(const struct evq_reply *reply, size_t at);
/* Returns the word itself, or the first one of an array. */
const char *evq_queue_reply_word(const struct evq_reply *reply);
bool evq_queue_reply_is(const struct evq_reply *reply, const char *word);
/* An integer, or the decimal text of one. */
bool evq_queue_reply_number(const struct evq_reply *reply, int64_t *ret_number);
/* The same, if it is within low to high. */
bool evq_queue_reply_within(const struct evq_reply *reply, int64_t low, int64_t high,
                            int64_t *ret_number);
bool evq_queue_reply_double(const struct evq_reply *reply, double *ret_value);
/* Copies a text that fits, NUL included; false when it is no text or too long. */
bool evq_queue_reply_copy(const struct evq_reply *reply, char *out, size_t out_bytes);
bool evq_queue_reply_state(const struct evq_reply *reply, enum evq_job_state *ret_state);

/* Arguments and reply of claim (queue_claim.c), shared with complete_and_claim. */
void evq_queue_claim_words(struct evq_queue *queue, const struct evq_claim_request *request);
enum evq_status evq_queue_claim_check(const struct evq_claim_request *request,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_queue_claim_read(struct evq_queue *queue,
                                     const struct evq_claim_request *request,
                                     const struct evq_reply *reply, struct evq_claim **ret_claims,
                                     struct evq_claimed *ret_claimed,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* The words of a message that submit and adopt share: session to needs (queue_submit.c). */
void evq_queue_job_words(struct evq_queue *queue, const struct evq_job *job, const char *needs);

#endif
