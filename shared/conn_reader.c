#include "shared/conn_reader.h"

#include <hiredis/hiredis.h>
#include <hiredis/read.h>
#include <stdlib.h>
#include <string.h>

#include "shared/arena.h"
#include "shared/conn_guard.h"

enum { ARGS_MAX = 1 << 20 };

struct evq_conn_reader {
    redisReader *reader;
    struct evq_conn_guard guard;
    size_t whole; // Replies that came wholly and were not taken yet.
};

/* A tree over hiredis's own, in one block: the root first, so that freeing the root frees all. */
struct tree {
    struct evq_reply root;
    redisReply *raw; // Owns the texts.
    struct evq_reply **free_items;
    struct evq_reply *free_nodes;
};

struct evq_conn_reader *evq_conn_reader_new(void)
{
    struct evq_conn_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) {
        return NULL;
    }
    reader->reader = redisReaderCreate();
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
    enum evq_status status = evq_conn_guard_feed(&reader->guard, data, bytes, &reader->whole, err);
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
    return reader->whole == 0 && reader->guard.place == EVQ_GUARD_TYPE && reader->guard.depth == 0;
}

/* Counts what raw holds below itself, and finds the first error in it. */
static void measure(const redisReply *raw, size_t *nodes, const redisReply **ret_error)
{
    if (raw->type == REDIS_REPLY_ERROR && *ret_error == NULL) {
        *ret_error = raw;
    }
    if (raw->type == REDIS_REPLY_ARRAY) {
        *nodes += raw->elements;
        for (size_t i = 0; i < raw->elements; i++) {
            measure(raw->element[i], nodes, ret_error); // The guard bounds the depth.
        }
    }
}

static void fill(struct tree *tree, const redisReply *raw, struct evq_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    switch (raw->type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
        reply->type = raw->type == REDIS_REPLY_STRING ? EVQ_REPLY_STRING : EVQ_REPLY_STATUS;
        reply->text = raw->str;
        reply->bytes = (size_t)raw->len; // An int in 0.14.
        break;
    case REDIS_REPLY_INTEGER:
        reply->type = EVQ_REPLY_INTEGER;
        reply->integer = raw->integer;
        break;
    case REDIS_REPLY_ARRAY:
        reply->type = EVQ_REPLY_ARRAY;
        reply->item_count = raw->elements;
        reply->items = tree->free_items;
        tree->free_items += raw->elements;
        for (size_t i = 0; i < raw->elements; i++) {
            reply->items[i] = tree->free_nodes++;
            fill(tree, raw->element[i], reply->items[i]);
        }
        break;
    default:
        reply->type = EVQ_REPLY_NIL;
        break;
    }
}

static enum evq_status build(redisReply *raw, size_t nodes, struct evq_reply **ret_reply,
                             struct evq_error *err)
{
    size_t node_bytes = 0;
    size_t bytes = 0;
    struct tree *tree = NULL;

    if (evq_size_mul(nodes, sizeof(struct evq_reply) + sizeof(struct evq_reply *), &node_bytes) &&
        evq_size_add(node_bytes, sizeof *tree, &bytes)) {
        tree = malloc(bytes);
    }
    if (tree == NULL) {
        freeReplyObject(raw);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a reply of %zu items", nodes);
    }
    tree->raw = raw;
    tree->free_nodes = (struct evq_reply *)(tree + 1);
    tree->free_items = (struct evq_reply **)(tree->free_nodes + nodes);
    fill(tree, raw, &tree->root);
    *ret_reply = &tree->root;
    return EVQ_OK;
}

void evq_reply_free(struct evq_reply *reply)
{
    if (reply != NULL) {
        struct tree *tree = (struct tree *)reply; // The root is its first member.
        freeReplyObject(tree->raw);
        free(tree);
    }
}

enum evq_status evq_conn_reader_next(struct evq_conn_reader *reader, struct evq_reply **ret_reply,
                                     char *ret_error_text, size_t error_bytes,
                                     struct evq_error *err)
{
    void *raw = NULL;
    size_t nodes = 0;
    const redisReply *error = NULL;

    *ret_reply = NULL;
    *ret_error_text = '\0';
    if (reader->whole == 0) {
        return EVQ_OK; // Not all there: hiredis would only look at it again.
    }
    if (redisReaderGetReply(reader->reader, &raw) != REDIS_OK) {
        return evq_error_set(err, reader->reader->err == REDIS_ERR_OOM ? EVQ_E_NOMEM : EVQ_E_IO,
                             "a reply that cannot be read: %s", reader->reader->errstr);
    }
    if (raw == NULL) {
        return evq_error_set(err, EVQ_E_IO, "a reply that ends in its middle");
    }
    reader->whole--;
    measure(raw, &nodes, &error);
    if (error == NULL) {
        return build(raw, nodes, ret_reply, err);
    }
    // An error without text would read as none at all.
    (void)evq_error_escape(error->len > 0 ? error->str : "ERR",
                           error->len > 0 ? (size_t)error->len : 3, ret_error_text, error_bytes);
    freeReplyObject(raw);
    return EVQ_OK;
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
