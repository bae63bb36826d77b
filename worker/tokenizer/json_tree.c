#include "worker/tokenizer/json_tree.h"

#include <string.h>

struct levels { // The open objects and arrays, and where their next element goes.
    struct evq_json_tree *open[EVQ_JSON_DEPTH_MAX + 1];
    struct evq_json_tree **end[EVQ_JSON_DEPTH_MAX + 1];
    size_t depth;
};

static enum evq_status check_key(const struct evq_json_tree *object, struct evq_tokenizer_text key,
                                 struct evq_error *err)
{
    char shown[260];

    if (evq_json_tree_get(object, key.text) != NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "the key '%s' comes twice in one object",
                             evq_tokenizer_text_shown(key, shown, sizeof(shown)));
    }
    return EVQ_OK;
}

static enum evq_status add(struct levels *levels, const struct evq_json_token *token,
                           struct evq_tokenizer_text key, struct evq_arena *arena,
                           struct evq_error *err)
{
    struct evq_json_tree *node = evq_arena_alloc(arena, sizeof(*node));

    if (node == NULL) {
        return evq_error_set(err, EVQ_E_LIMIT, "settings of more values than expected");
    }
    *node = (struct evq_json_tree){.kind = token->kind, .key = key};
    if (token->kind == EVQ_JSON_STRING || token->kind == EVQ_JSON_NUMBER) {
        node->text = (struct evq_tokenizer_text){token->text, token->bytes};
    }
    *levels->end[levels->depth] = node;
    levels->end[levels->depth] = &node->next;
    if (token->kind == EVQ_JSON_OBJECT || token->kind == EVQ_JSON_ARRAY) {
        levels->depth++; // The reader limits the depth.
        levels->open[levels->depth] = node;
        levels->end[levels->depth] = &node->first;
    }
    return EVQ_OK;
}

enum evq_status evq_json_tree_read(struct evq_json *json, const struct evq_json_token *token,
                                   struct evq_arena *arena, struct evq_json_tree **ret_tree,
                                   struct evq_error *err)
{
    struct evq_json_tree *root = NULL;
    struct levels levels = {.end = {&root}};
    struct evq_json_token at = *token;
    struct evq_tokenizer_text key = {0};

    for (;;) {
        enum evq_status status = EVQ_OK;
        if (at.kind == EVQ_JSON_KEY) {
            key = (struct evq_tokenizer_text){at.text, at.bytes};
            status = check_key(levels.open[levels.depth], key, err);
        } else if (at.kind == EVQ_JSON_OBJECT_END || at.kind == EVQ_JSON_ARRAY_END) {
            levels.depth--;
        } else {
            status = add(&levels, &at, key, arena, err);
            key = (struct evq_tokenizer_text){0};
        }
        if (status == EVQ_OK && at.kind != EVQ_JSON_KEY && levels.depth == 0) {
            *ret_tree = root;
            return EVQ_OK;
        }
        if (status == EVQ_OK) {
            status = evq_json_next(json, &at, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
}

const struct evq_json_tree *evq_json_tree_get(const struct evq_json_tree *tree, const char *key)
{
    if (tree == NULL || tree->kind != EVQ_JSON_OBJECT) {
        return NULL;
    }
    for (const struct evq_json_tree *member = tree->first; member != NULL; member = member->next) {
        if (evq_tokenizer_text_is(member->key, key)) {
            return member;
        }
    }
    return NULL;
}

bool evq_json_tree_is(const struct evq_json_tree *tree, const char *words)
{
    return tree != NULL && tree->kind == EVQ_JSON_STRING &&
           evq_tokenizer_text_is(tree->text, words);
}

bool evq_json_tree_none(const struct evq_json_tree *tree)
{
    return tree == NULL || tree->kind == EVQ_JSON_NULL;
}

bool evq_json_tree_flag(const struct evq_json_tree *tree, const char *key, bool otherwise,
                        bool *ret_value)
{
    const struct evq_json_tree *member = evq_json_tree_get(tree, key);

    *ret_value = evq_json_tree_none(member) ? otherwise : member->kind == EVQ_JSON_TRUE;
    return evq_json_tree_none(member) || member->kind == EVQ_JSON_TRUE ||
           member->kind == EVQ_JSON_FALSE;
}

bool evq_json_tree_u64(const struct evq_json_tree *tree, uint64_t *ret_value)
{
    const struct evq_json_token token = {
        .kind = tree != NULL ? tree->kind : EVQ_JSON_NULL,
        .text = tree != NULL ? tree->text.text : NULL,
        .bytes = tree != NULL ? tree->text.bytes : 0,
    };

    return evq_json_u64(&token, ret_value);
}
