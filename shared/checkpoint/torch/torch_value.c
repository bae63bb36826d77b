#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/torch/torch.h"

#define DEPTH_MAX 8

/* Finds an item by its index in a list, or by an integer key. */
static const struct evq_pickle_node *find_number(const struct evq_pickle_node *node, int64_t number)
{
    if (node->kind == EVQ_PICKLE_LIST || node->kind == EVQ_PICKLE_TUPLE) {
        return number < (int64_t)node->count ? node->as.items[number] : NULL;
    }
    for (uint32_t i = node->kind == EVQ_PICKLE_DICT ? node->count : 0; i >= 2; i -= 2) {
        const struct evq_pickle_node *key = node->as.items[i - 2];
        if (key->kind == EVQ_PICKLE_INT && key->as.integer == number) {
            return node->as.items[i - 1];
        }
    }
    return NULL;
}

/* Finds a key in a dict, in the items or attributes of an object, or in a list. */
static const struct evq_pickle_node *find_key(const struct evq_pickle_node *node, const char *key)
{
    const struct evq_pickle_node *found = NULL;

    if (node->kind == EVQ_PICKLE_OBJECT) {
        const struct evq_pickle_object *object = node->as.object;
        found = object->items == NULL ? NULL : evq_pickle_get(object->items, key);
        return found != NULL || object->state == NULL ? found : evq_pickle_get(object->state, key);
    }
    found = evq_pickle_get(node, key);
    if (found == NULL && key[0] >= '0' && key[0] <= '9') {
        char *end = NULL;
        const long number = strtol(key, &end, 10);
        found = *end == '\0' ? find_number(node, number) : NULL;
    }
    return found;
}

static const struct evq_pickle_node *find_path(const struct evq_pickle_node *node, const char *path,
                                               int depth)
{
    const struct evq_pickle_node *found = find_key(node, path);

    for (const char *dot = strchr(path, '.'); found == NULL && dot != NULL && depth < DEPTH_MAX;
         dot = strchr(dot + 1, '.')) {
        char head[256];
        size_t bytes = (size_t)(dot - path);
        if (bytes >= sizeof(head)) {
            break;
        }
        memcpy(head, path, bytes);
        head[bytes] = '\0';
        const struct evq_pickle_node *inner = find_key(node, head);
        found = inner == NULL ? NULL : find_path(inner, dot + 1, depth + 1);
    }
    return found;
}

const struct evq_pickle_node *evq_torch_find(const struct evq_pickle_node *node, const char *path)
{
    return find_path(node, path, 0);
}

bool evq_checkpoint_scalar(const struct evq_checkpoint *checkpoint, const char *path,
                           struct evq_scalar *ret_scalar)
{
    const struct evq_pickle *pickle = checkpoint->builder->pickle;
    const struct evq_pickle_node *node =
        pickle == NULL ? NULL : evq_torch_find(evq_pickle_root(pickle), path);

    switch (node == NULL ? EVQ_PICKLE_DICT : node->kind) {
    case EVQ_PICKLE_NONE:
        *ret_scalar = (struct evq_scalar){.kind = EVQ_SCALAR_NONE};
        return true;
    case EVQ_PICKLE_BOOL:
    case EVQ_PICKLE_INT:
        *ret_scalar = (struct evq_scalar){
            .kind = node->kind == EVQ_PICKLE_BOOL ? EVQ_SCALAR_BOOL : EVQ_SCALAR_INTEGER,
            .integer = node->as.integer,
            .real = (double)node->as.integer};
        return true;
    case EVQ_PICKLE_FLOAT:
        *ret_scalar = (struct evq_scalar){.kind = EVQ_SCALAR_REAL, .real = node->as.real};
        return true;
    case EVQ_PICKLE_TEXT:
        *ret_scalar = (struct evq_scalar){
            .kind = EVQ_SCALAR_TEXT, .text = node->as.text, .text_bytes = node->count};
        return true;
    default:
        return false;
    }
}
