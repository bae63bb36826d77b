#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/json.h"
#include "shared/checkpoint/torch/torch.h"

#define DEPTH_MAX 64
#define STEPS_MAX 4000000u

struct walk {
    evq_torch_visitor visitor;
    void *context;
    struct evq_error *err;
    uint32_t steps;
    int depth;
    char name[EVQ_CHECKPOINT_NAME_BYTES_MAX + 1];
};

static enum evq_status walk_value(struct walk *walk, const struct evq_pickle_node *node,
                                  size_t name_bytes);

/* Appends key to the name of name_bytes. Keys that are neither text nor integer are skipped
 * (*ret_bytes is 0). */
static enum evq_status append_key(struct walk *walk, const struct evq_pickle_node *key,
                                  size_t name_bytes, size_t *ret_bytes)
{
    char digits[24];
    const char *text = key->as.text;
    size_t bytes = key->count;
    size_t dot = name_bytes > 0 ? 1 : 0;

    *ret_bytes = 0;
    if (key->kind == EVQ_PICKLE_INT) {
        bytes = (size_t)snprintf(digits, sizeof(digits), "%" PRId64, key->as.integer);
        text = digits;
    } else if (key->kind != EVQ_PICKLE_TEXT) {
        return EVQ_OK;
    }
    if (bytes > EVQ_CHECKPOINT_NAME_BYTES_MAX ||
        name_bytes + dot + bytes > EVQ_CHECKPOINT_NAME_BYTES_MAX) {
        return evq_error_set(walk->err, EVQ_E_LIMIT, "a tensor name of more than %d bytes",
                             EVQ_CHECKPOINT_NAME_BYTES_MAX);
    }
    if (bytes == 0 || memchr(text, '\0', bytes) != NULL || evq_utf8_valid(text, bytes) < bytes) {
        return evq_error_set(walk->err, EVQ_E_CORRUPT,
                             "a key of the weights is empty, holds a NUL or is not UTF-8");
    }
    if (dot > 0) {
        walk->name[name_bytes] = '.';
    }
    memcpy(walk->name + name_bytes + dot, text, bytes);
    *ret_bytes = name_bytes + dot + bytes;
    walk->name[*ret_bytes] = '\0';
    return EVQ_OK;
}

static bool leads_on(const struct evq_pickle_node *node)
{
    return node->kind == EVQ_PICKLE_DICT || node->kind == EVQ_PICKLE_LIST ||
           node->kind == EVQ_PICKLE_TUPLE || node->kind == EVQ_PICKLE_OBJECT;
}

/* Whether set contains key. A set is written by ADDITEMS, or as set([...]) before protocol 4. NULL
 * is empty. */
static bool has(const struct evq_pickle_node *set, const struct evq_pickle_node *key)
{
    if (set != NULL && set->kind == EVQ_PICKLE_OBJECT && set->as.object->arguments->count == 1) {
        set = set->as.object->arguments->as.items[0];
    }
    if (set == NULL || (set->kind != EVQ_PICKLE_SET && set->kind != EVQ_PICKLE_LIST)) {
        return false;
    }
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->as.items[i]->kind == EVQ_PICKLE_TEXT && key->kind == EVQ_PICKLE_TEXT &&
            evq_pickle_text_compare(set->as.items[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* except: a set of keys to skip, or NULL. */
static enum evq_status walk_dict(struct walk *walk, const struct evq_pickle_node *dict,
                                 const struct evq_pickle_node *except, size_t name_bytes)
{
    enum evq_status status = EVQ_OK;

    for (uint32_t i = 0; i + 1 < dict->count && status == EVQ_OK; i += 2) {
        size_t bytes = 0;
        if (!leads_on(dict->as.items[i + 1]) || has(except, dict->as.items[i])) {
            continue;
        }
        status = append_key(walk, dict->as.items[i], name_bytes, &bytes);
        if (status == EVQ_OK && bytes > 0) {
            status = walk_value(walk, dict->as.items[i + 1], bytes);
        }
    }
    return status;
}

static enum evq_status walk_list(struct walk *walk, const struct evq_pickle_node *list,
                                 size_t name_bytes)
{
    enum evq_status status = EVQ_OK;

    for (uint32_t i = 0; i < list->count && status == EVQ_OK; i++) {
        const struct evq_pickle_node index = {.kind = EVQ_PICKLE_INT, .as = {.integer = i}};
        size_t bytes = 0;
        if (!leads_on(list->as.items[i])) {
            continue;
        }
        status = append_key(walk, &index, name_bytes, &bytes);
        if (status == EVQ_OK) {
            status = walk_value(walk, list->as.items[i], bytes);
        }
    }
    return status;
}

/* A pickled nn.Module keeps its tensors in three dicts that its names do not show; some buffers are
 * not in its state dict. TorchScript keeps them in its attributes. */
static enum evq_status walk_object(struct walk *walk, const struct evq_pickle_node *node,
                                   size_t name_bytes)
{
    static const char *const parts[] = {"_parameters", "_buffers", "_modules"};
    const struct evq_pickle_object *object = node->as.object;
    enum evq_status status = EVQ_OK;

    if (object->state == NULL || object->state->kind != EVQ_PICKLE_DICT) {
        // An instance of a subclass of dict.
        return object->items != NULL && object->items->kind == EVQ_PICKLE_DICT
                   ? walk_dict(walk, object->items, NULL, name_bytes)
                   : EVQ_OK;
    }
    if (object->callable->kind == EVQ_PICKLE_GLOBAL &&
        strncmp(object->callable->as.global->module, "__torch__", strlen("__torch__")) == 0) {
        return walk_dict(walk, object->state, NULL, name_bytes);
    }
    const struct evq_pickle_node *passing =
        evq_pickle_get(object->state, "_non_persistent_buffers_set");
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == EVQ_OK; i++) {
        const struct evq_pickle_node *part = evq_pickle_get(object->state, parts[i]);
        if (part != NULL && part->kind == EVQ_PICKLE_DICT) {
            status = walk_dict(walk, part, passing, name_bytes);
        }
    }
    return status;
}

static enum evq_status walk_value(struct walk *walk, const struct evq_pickle_node *node,
                                  size_t name_bytes)
{
    enum evq_status status = EVQ_OK;

    if (++walk->steps > STEPS_MAX || walk->depth >= DEPTH_MAX) {
        return evq_error_set(walk->err, EVQ_E_LIMIT,
                             "the weights are nested too deep, or refer to themselves");
    }
    if (evq_torch_is_tensor(node)) {
        walk->name[name_bytes] = '\0';
        return walk->visitor(walk->context, walk->name, node, walk->err);
    }
    walk->depth++;
    if (node->kind == EVQ_PICKLE_DICT) {
        status = walk_dict(walk, node, NULL, name_bytes);
    } else if (node->kind == EVQ_PICKLE_LIST || node->kind == EVQ_PICKLE_TUPLE) {
        status = walk_list(walk, node, name_bytes);
    } else if (node->kind == EVQ_PICKLE_OBJECT) {
        status = walk_object(walk, node, name_bytes);
    }
    walk->depth--;
    return status;
}

enum evq_status evq_torch_walk(const struct evq_pickle_node *node, evq_torch_visitor visitor,
                               void *context, struct evq_error *err)
{
    struct walk walk = {.visitor = visitor, .context = context, .err = err};

    return walk_value(&walk, node, 0);
}
