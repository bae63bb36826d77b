/*
 * A small JSON value as a tree, for the parts of tokenizer.json that are settings. Nodes are the
 * arena's, texts point into the file. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_TOKENIZER_JSON_TREE_H
#define EVQ_WORKER_TOKENIZER_JSON_TREE_H

#include "shared/base/arena.h"
#include "shared/checkpoint/json.h"
#include "worker/tokenizer/definition.h"

struct evq_json_tree {
    enum evq_json_kind kind;            // OBJECT, ARRAY, STRING, NUMBER, TRUE, FALSE or NULL.
    struct evq_definition_text key;     // Of a member of an object.
    struct evq_definition_text text;    // STRING: unescaped. NUMBER: as written.
    struct evq_json_tree *first, *next; // Of OBJECT and ARRAY; the next in the same one.
};

/* Reads on to the end of the value that began with token. EVQ_E_CORRUPT (also a key that comes
 * twice), EVQ_E_LIMIT: the arena is used up. */
enum evq_status evq_json_tree_read(struct evq_json *json, const struct evq_json_token *token,
                                   struct evq_arena *arena, struct evq_json_tree **ret_tree,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* The member of an object, or NULL; tree may be NULL or no object. */
const struct evq_json_tree *evq_json_tree_get(const struct evq_json_tree *tree, const char *key);
/* Whether it is a STRING with these words. tree may be NULL. */
bool evq_json_tree_is(const struct evq_json_tree *tree, const char *words);
/* No value, or null. */
bool evq_json_tree_none(const struct evq_json_tree *tree);
/* *ret_value is what an object's member says, or what otherwise counts when there is none or it is
 * null; false: it is neither true nor false. */
bool evq_json_tree_flag(const struct evq_json_tree *tree, const char *key, bool otherwise,
                        bool *ret_value);
bool evq_json_tree_u64(const struct evq_json_tree *tree, uint64_t *ret_value); // Of a NUMBER.

#endif
