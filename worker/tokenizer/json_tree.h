/*
 * A small JSON value as a tree, for those parts of tokenizer.json that are settings. Nodes belong
 * to the arena, and texts point into the file. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_TOKENIZER_JSON_TREE_H
#define EVQ_WORKER_TOKENIZER_JSON_TREE_H

#include "shared/base/arena.h"
#include "shared/checkpoint/json.h"
#include "worker/tokenizer/tokenizer_json.h"

struct evq_json_tree {
    enum evq_json_kind kind;        // OBJECT, ARRAY, STRING, NUMBER, TRUE, FALSE or NULL.
    struct evq_tokenizer_text key;  // The key, for a member of an object.
    struct evq_tokenizer_text text; // STRING: the unescaped text. NUMBER: the text as written.
    // The first element of an OBJECT or ARRAY, and the next element in the same one.
    struct evq_json_tree *first, *next;
};

/* Reads the value that began with token to its end. EVQ_E_CORRUPT: also if a key comes twice.
 * EVQ_E_LIMIT: the arena is full. */
enum evq_status evq_json_tree_read(struct evq_json *json, const struct evq_json_token *token,
                                   struct evq_arena *arena, struct evq_json_tree **ret_tree,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* The member of an object, or NULL. tree may be NULL or another kind of value. */
const struct evq_json_tree *evq_json_tree_get(const struct evq_json_tree *tree, const char *key);
/* Whether it is a STRING with this text. tree may be NULL. */
bool evq_json_tree_is(const struct evq_json_tree *tree, const char *words);
/* Whether there is no value, or null. */
bool evq_json_tree_none(const struct evq_json_tree *tree);
/* *ret_value is the member of an object, or `otherwise` if it is missing or null. False: it is
 * neither true nor false. */
bool evq_json_tree_flag(const struct evq_json_tree *tree, const char *key, bool otherwise,
                        bool *ret_value);
// Reads a NUMBER that is an unsigned integer.
bool evq_json_tree_u64(const struct evq_json_tree *tree, uint64_t *ret_value);

#endif
