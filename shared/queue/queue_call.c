#include "shared/queue/queue_call.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void evq_queue_call_worker(struct evq_queue *queue, const char *worker)
{
    (void)snprintf(queue->worker, sizeof queue->worker, "%s", worker);
}

static bool reserve(struct evq_queue *queue)
{
    if (queue->failed || queue->word_count < queue->word_max) {
        return !queue->failed;
    }
    size_t room =
        queue->word_max == 0 ? 64 : queue->word_max * 2; // Bounded by EVQ_QUEUE_BATCH_MAX.
    const char **words = realloc(queue->words, room * sizeof *words);
    if (words != NULL) {
        queue->words = words;
        size_t *word_bytes = realloc(queue->word_bytes, room * sizeof *word_bytes);
        if (word_bytes != NULL) {
            queue->word_bytes = word_bytes;
            queue->word_max = room;
            return true;
        }
    }
    queue->failed = true;
    return false;
}

void evq_queue_call_bytes(struct evq_queue *queue, const void *data, size_t bytes)
{
    if (reserve(queue)) {
        queue->words[queue->word_count] = bytes > 0 ? data : "";
        queue->word_bytes[queue->word_count++] = bytes;
    }
}

void evq_queue_call_text(struct evq_queue *queue, const char *text)
{
    evq_queue_call_bytes(queue, text, text != NULL ? strlen(text) : 0);
}

void evq_queue_call_cut(struct evq_queue *queue, const char *text, size_t bytes_max)
{
    size_t bytes = text != NULL ? strnlen(text, bytes_max + 1) : 0;

    if (bytes > bytes_max) {
        bytes = bytes_max;
        while (bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80) {
            bytes--; // Cuts only between UTF-8 characters.
        }
    }
    evq_queue_call_bytes(queue, text, bytes);
}

void evq_queue_call_printf(struct evq_queue *queue, const char *format, ...)
{
    char text[512];
    va_list list;

    va_start(list, format);
    int bytes = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (bytes < 0 || (size_t)bytes >= sizeof text) {
        queue->failed = true;
        return;
    }
    char *word = evq_arena_strndup(queue->arena, text, (size_t)bytes);
    if (word == NULL) {
        queue->failed = true;
        return;
    }
    evq_queue_call_bytes(queue, word, (size_t)bytes);
}

void evq_queue_call_number(struct evq_queue *queue, int64_t number)
{
    evq_queue_call_printf(queue, "%lld", (long long)number);
}

void evq_queue_call_double(struct evq_queue *queue, double value)
{
    if (isnan(value)) { // printf may say "-nan".
        evq_queue_call_text(queue, "nan");
        return;
    }
    evq_queue_call_printf(queue, "%.17g", value);
}

void evq_queue_call_begin(struct evq_queue *queue, const char *function, bool read_only)
{
    queue->function = function;
    queue->word_count = 0;
    queue->failed = false;
    evq_arena_reset(queue->arena);
    evq_buffer_clear(&queue->records);
    evq_queue_call_text(queue, read_only ? "FCALL_RO" : "FCALL");
    evq_queue_call_printf(queue, "%s%s", EVQ_FUNCTIONS_PREFIX, function);
    evq_queue_call_text(queue, "1");
    evq_queue_call_text(queue, queue->prefix);
}

static enum evq_status words_check(const struct evq_queue *queue, struct evq_error *err)
{
    return queue->failed || queue->records.failed
               ? evq_error_set(err, EVQ_E_NOMEM, "no memory for a call of %s%s",
                               EVQ_FUNCTIONS_PREFIX, queue->function)
               : EVQ_OK;
}

enum evq_status evq_queue_call_send(struct evq_queue *queue, struct evq_reply **ret_reply,
                                    struct evq_error *err)
{
    const enum evq_status status = words_check(queue, err);

    return status == EVQ_OK ? evq_conn_call(queue->conn, queue->word_count, queue->words,
                                            queue->word_bytes, 0, ret_reply, err)
                            : status;
}

enum evq_status evq_queue_call_append(struct evq_queue *queue, struct evq_error *err)
{
    const enum evq_status status = words_check(queue, err);

    return status == EVQ_OK ? evq_conn_append(queue->conn, queue->word_count, queue->words,
                                              queue->word_bytes, err)
                            : status;
}

enum evq_status evq_queue_call_read(struct evq_queue *queue, struct evq_reply **ret_reply,
                                    struct evq_error *err)
{
    return evq_conn_read(queue->conn, 0, ret_reply, err);
}

enum evq_status evq_queue_call_send_ok(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK && !evq_queue_reply_is(reply, "ok")) {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_call_malformed(const struct evq_queue *queue, struct evq_error *err)
{
    evq_conn_drop(queue->conn);
    return evq_error_set(err, EVQ_E_IO, "%s: the reply of '%s' is out of shape",
                         evq_conn_where(queue->conn), queue->function);
}

const char *evq_queue_reply_text(const struct evq_reply *reply)
{
    if (reply == NULL || (reply->type != EVQ_REPLY_STRING && reply->type != EVQ_REPLY_STATUS)) {
        return NULL;
    }
    return reply->text;
}

const struct evq_reply *evq_queue_reply_item(const struct evq_reply *reply, size_t at)
{
    if (reply == NULL || reply->type != EVQ_REPLY_ARRAY || at >= reply->item_count) {
        return NULL;
    }
    return reply->items[at];
}

const char *evq_queue_reply_word(const struct evq_reply *reply)
{
    if (reply != NULL && reply->type == EVQ_REPLY_ARRAY) {
        reply = evq_queue_reply_item(reply, 0);
    }
    return evq_queue_reply_text(reply);
}

bool evq_queue_reply_is(const struct evq_reply *reply, const char *word)
{
    const char *text = evq_queue_reply_word(reply);
    return text != NULL && strcmp(text, word) == 0;
}

bool evq_queue_reply_number(const struct evq_reply *reply, int64_t *ret_number)
{
    char *end = NULL;
    const char *text = evq_queue_reply_text(reply);

    if (reply != NULL && reply->type == EVQ_REPLY_INTEGER) {
        *ret_number = reply->integer;
        return true;
    }
    if (text == NULL || (*text != '-' && (*text < '0' || *text > '9'))) {
        return false;
    }
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end != text + reply->bytes || end[-1] == '-') {
        return false;
    }
    *ret_number = number;
    return true;
}

bool evq_queue_reply_within(const struct evq_reply *reply, int64_t low, int64_t high,
                            int64_t *ret_number)
{
    int64_t number = 0;
    if (!evq_queue_reply_number(reply, &number) || number < low || number > high) {
        return false;
    }
    *ret_number = number;
    return true;
}

bool evq_queue_reply_double(const struct evq_reply *reply, double *ret_value)
{
    char *end = NULL;
    const char *text = evq_queue_reply_text(reply);

    if (text == NULL || *text == '\0') {
        return false;
    }
    // The host process may use a locale with a decimal comma. The C locale is static.
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double value = strtod_l(text, &end, plain);
    freelocale(plain);
    if (end != text + reply->bytes) {
        return false;
    }
    *ret_value = value;
    return true;
}

bool evq_queue_reply_copy(const struct evq_reply *reply, char *out, size_t out_bytes)
{
    const char *text = evq_queue_reply_text(reply);
    if (text == NULL || reply->bytes >= out_bytes || strlen(text) != reply->bytes) {
        return false;
    }
    memcpy(out, text, reply->bytes + 1);
    return true;
}

bool evq_queue_reply_state(const struct evq_reply *reply, enum evq_job_state *ret_state)
{
    const char *text = evq_queue_reply_text(reply);
    return text != NULL && evq_job_state_parse(text, ret_state) == EVQ_OK;
}
