#include "shared/redis/conn_reader.h"

#include <hiredis/hiredis.h>
#include <hiredis/read.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/arena.h"
#include "shared/redis/conn_limits.h"

enum { ARGS_MAX = 1 << 20 };

#if HIREDIS_MAJOR >= 1
typedef size_t element_count;
#else
typedef int element_count;
#endif

struct evq_conn_reader {
    redisReader *reader;
    struct evq_conn_limits limits;
    size_t whole; // Replies that came wholly and were not taken yet.
};

/* A reply with all that is below it and their texts in one arena, which its root owns. */
struct tree {
    struct evq_reply root; // First, so that freeing the root frees all.
    struct evq_arena *arena;
};

/* What hiredis's parser fills while it goes through one reply. */
struct reading {
    struct evq_arena *arena;
    const struct evq_reply *error; // The first in it.
};

/* ---- what hiredis's parser calls for each value; NULL: out of memory ---- */

static struct evq_reply *node_of(const redisReadTask *task, enum evq_reply_type type)
{
    struct reading *reading = task->privdata;
    struct evq_reply *reply = NULL;

    if (task->parent != NULL) {
        reply = ((struct evq_reply *)task->parent->obj)->items[task->idx];
    } else {
        struct tree *tree = evq_arena_alloc(reading->arena, sizeof *tree);
        if (tree == NULL) {
            return NULL;
        }
        tree->arena = reading->arena;
        reply = &tree->root;
    }
    *reply = (struct evq_reply){.type = type};
    return reply;
}

static void *string_made(const redisReadTask *task, char *text, size_t bytes)
{
    struct reading *reading = task->privdata;
    const bool word = task->type == REDIS_REPLY_STATUS;
    struct evq_reply *reply = node_of(task, word ? EVQ_REPLY_STATUS : EVQ_REPLY_STRING);
    char *copy = evq_arena_alloc(reading->arena, bytes + 1);

    if (reply == NULL || copy == NULL) {
        return NULL;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    reply->text = copy;
    reply->bytes = bytes;
    if (task->type == REDIS_REPLY_ERROR && reading->error == NULL) {
        reading->error = reply;
    }
    return reply;
}

static void *array_made(const redisReadTask *task, element_count count)
{
    struct reading *reading = task->privdata;
    struct evq_reply *reply = node_of(task, EVQ_REPLY_ARRAY);
    // The limits bound the count.
    struct evq_reply *nodes =
        evq_arena_alloc(reading->arena, (size_t)count * (sizeof *nodes + sizeof(void *)));

    if (reply == NULL || nodes == NULL) {
        return NULL;
    }
    reply->items = (struct evq_reply **)(nodes + count);
    reply->item_count = (size_t)count;
    for (size_t i = 0; i < reply->item_count; i++) {
        reply->items[i] = &nodes[i];
    }
    return reply;
}

static void *integer_made(const redisReadTask *task, long long value)
{
    struct evq_reply *reply = node_of(task, EVQ_REPLY_INTEGER);

    if (reply != NULL) {
        reply->integer = value;
    }
    return reply;
}

static void *nil_made(const redisReadTask *task)
{
    return node_of(task, EVQ_REPLY_NIL);
}

static void dropped(void *reply)
{
    (void)reply; // It goes with its arena.
}

static const redisReplyObjectFunctions functions = {.createString = string_made,
                                                    .createArray = array_made,
                                                    .createInteger = integer_made,
                                                    .createNil = nil_made,
                                                    .freeObject = dropped};

/* ---- the reader ---- */

struct evq_conn_reader *evq_conn_reader_new(void)
{
    struct evq_conn_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) {
        return NULL;
    }
    // The parser leaves its functions as they are, though it does not say so.
    reader->reader =
        redisReaderCreateWithFunctions((redisReplyObjectFunctions *)(uintptr_t)&functions);
    if (reader->reader == NULL) {
        free(reader);
        return NULL;
    }
    return reader;
}

void evq_conn_reader_free(struct evq_conn_reader *reader)
{
    if (reader != NULL) {
        redisReaderFree(reader->reader);
        free(reader);
    }
}

/* Bytes that are no reply, or too many, mean that the connection is of no more use. */
static enum evq_status garbled(enum evq_status status, struct evq_error *err)
{
    if (status != EVQ_E_CORRUPT && status != EVQ_E_LIMIT) {
        return status;
    }
    if (err != NULL) {
        err->status = EVQ_E_IO;
    }
    return EVQ_E_IO;
}

enum evq_status evq_conn_reader_feed(struct evq_conn_reader *reader, const char *data, size_t bytes,
                                     struct evq_error *err)
{
    enum evq_status status =
        evq_conn_limits_feed(&reader->limits, data, bytes, &reader->whole, err);
    if (status != EVQ_OK) {
        return garbled(status, err);
    }
    if (redisReaderFeed(reader->reader, data, bytes) != REDIS_OK) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a reply of Redis");
    }
    return EVQ_OK;
}

bool evq_conn_reader_ready(const struct evq_conn_reader *reader)
{
    return reader->whole > 0;
}

bool evq_conn_reader_idle(const struct evq_conn_reader *reader)
{
    return reader->whole == 0 && reader->limits.place == EVQ_LIMITS_TYPE &&
           reader->limits.depth == 0;
}

void evq_reply_free(struct evq_reply *reply)
{
    if (reply != NULL) {
        evq_arena_free(((struct tree *)reply)->arena);
    }
}

enum evq_status evq_conn_reader_next(struct evq_conn_reader *reader, struct evq_reply **ret_reply,
                                     char *ret_error_text, size_t error_bytes,
                                     struct evq_error *err)
{
    struct reading reading = {0};
    void *root = NULL;

    *ret_reply = NULL;
    *ret_error_text = '\0';
    if (reader->whole == 0) {
        return EVQ_OK; // Not all there: hiredis would only look at it again.
    }
    reading.arena = evq_arena_new(SIZE_MAX); // Feeding bounded it.
    if (reading.arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a reply");
    }
    reader->reader->privdata = &reading;
    enum evq_status status = EVQ_OK;
    if (redisReaderGetReply(reader->reader, &root) != REDIS_OK) {
        status = evq_error_set(err, reader->reader->err == REDIS_ERR_OOM ? EVQ_E_NOMEM : EVQ_E_IO,
                               "a reply that cannot be read: %s", reader->reader->errstr);
    } else if (root == NULL) {
        status = evq_error_set(err, EVQ_E_IO, "a reply that ends in its middle");
    }
    reader->reader->privdata = NULL;
    reader->whole = status == EVQ_OK ? reader->whole - 1 : 0; // After an error nothing is whole.
    if (status == EVQ_OK && reading.error == NULL) {
        *ret_reply = root;
        return EVQ_OK;
    }
    if (status == EVQ_OK) { // An error without text would read as none at all.
        const bool said = reading.error->bytes > 0;
        (void)evq_error_escape(said ? reading.error->text : "ERR", said ? reading.error->bytes : 3,
                               ret_error_text, error_bytes);
    }
    evq_arena_free(reading.arena);
    return status;
}

enum evq_status evq_conn_reader_format(size_t arg_count, const char *const *args,
                                       const size_t *arg_bytes, struct evq_buffer *out,
                                       struct evq_error *err)
{
    char *command = NULL;
    size_t total = 0;

    if (arg_count == 0 || arg_count > ARGS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a command of %zu words, allowed 1 to %d", arg_count,
                             ARGS_MAX);
    }
    for (size_t i = 0; i < arg_count; i++) {
        size_t bytes = arg_bytes != NULL ? arg_bytes[i] : strlen(args[i]);
        if (!evq_size_add(total, bytes, &total) || total > EVQ_CONN_REPLY_BYTES_MAX) {
            return evq_error_set(err, EVQ_E_LIMIT, "a command longer than %zu bytes",
                                 EVQ_CONN_REPLY_BYTES_MAX);
        }
    }
    // hiredis leaves the words as they are, though it does not say so. Its result is an int in
    // 0.14.
    long long bytes =
        redisFormatCommandArgv(&command, (int)arg_count, (const char **)(uintptr_t)args, arg_bytes);
    if (bytes < 0 || command == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a command of %zu bytes", total);
    }
    evq_buffer_append(out, command, (size_t)bytes);
    redisFreeCommand(command);
    if (out->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "no room for the commands not sent yet");
    }
    return EVQ_OK;
}
