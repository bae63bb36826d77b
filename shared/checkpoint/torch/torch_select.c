#include <stdio.h>
#include <string.h>

#include "shared/checkpoint/torch/torch.h"

/* Keys under which frameworks put the weights, in the order in which they are tried. */
static const char *const usual[] = {"state_dict", "model_state_dict", "model",  "module",
                                    "net",        "network",          "params", "weights"};
#define USUAL_COUNT (sizeof(usual) / sizeof(usual[0]))

/* Keys for the weights of a variant; %s is its name. */
static const char *const of_variant[] = {"%s_state_dict", "state_dict_%s", "%s",
                                         "model_%s",      "%s_model",      "%s_model_state_dict",
                                         "params_%s",     "%s_params",     "shadow_params"};
#define OF_VARIANT_COUNT (sizeof(of_variant) / sizeof(of_variant[0]))

static enum evq_status stop_at_first(void *context, const char *name,
                                     const struct evq_pickle_node *tensor, struct evq_error *err)
{
    (void)name;
    (void)tensor;
    (void)err;
    (void)context;
    return EVQ_E_STOPPED; // Ends the walk.
}

/* Whether there are tensors below node. False if node itself is one. */
static bool holds_tensors(const struct evq_pickle_node *node)
{
    if (evq_torch_is_tensor(node)) {
        return false;
    }
    // A walk that fails for another reason fails again when the tensors are read, and then says
    // why.
    return evq_torch_walk(node, stop_at_first, NULL, NULL) != EVQ_OK;
}

/* Lists the keys of a dict, for a message. */
static void list_keys(const struct evq_pickle_node *dict, char *out, size_t out_bytes)
{
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t i = 0; dict->kind == EVQ_PICKLE_DICT && i + 1 < dict->count; i += 2) {
        const struct evq_pickle_node *key = dict->as.items[i];
        char shown[48];
        if (key->kind != EVQ_PICKLE_TEXT) {
            continue;
        }
        evq_error_escape(key->as.text, key->count, shown, sizeof(shown));
        int bytes = snprintf(out + at, out_bytes - at, "%s%s", at == 0 ? "" : ", ", shown);
        if (bytes < 0 || (size_t)bytes >= out_bytes - at) {
            (void)snprintf(out + (at > 4 ? at - 4 : 0), 5, " ...");
            return;
        }
        at += (size_t)bytes;
    }
}

static enum evq_status select_key(const struct evq_pickle_node *root, const char *key,
                                  const struct evq_pickle_node **ret_weights, struct evq_error *err)
{
    char keys[EVQ_SHOWN_BYTES];
    const struct evq_pickle_node *found = evq_torch_find(root, key);

    if (found == NULL) {
        list_keys(root, keys, sizeof(keys));
        return evq_error_set(err, EVQ_E_NOT_FOUND, "there is no key '%.160s'; the file holds: %s",
                             key, keys);
    }
    if (!holds_tensors(found) && !evq_torch_is_tensor(found)) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "there are no tensors under the key '%.160s'",
                             key);
    }
    *ret_weights = found;
    return EVQ_OK;
}

const char *evq_torch_usual_key(size_t i)
{
    return i < USUAL_COUNT ? usual[i] : NULL;
}

bool evq_torch_variant_key(const char *variant, size_t i, char *out, size_t out_bytes)
{
    if (i >= OF_VARIANT_COUNT) {
        return false;
    }
    const char *mark = strstr(of_variant[i], "%s");
    if (mark == NULL) {
        (void)snprintf(out, out_bytes, "%s", of_variant[i]);
    } else {
        (void)snprintf(out, out_bytes, "%.*s%s%s", (int)(mark - of_variant[i]), of_variant[i],
                       variant, mark + 2); // A variant too long to fit matches no key.
    }
    return true;
}

bool evq_torch_is_regular(const char *variant)
{
    return variant == NULL || variant[0] == '\0' || strcmp(variant, "regular") == 0;
}

static const struct evq_pickle_node *find_usual(const struct evq_pickle_node *root)
{
    for (size_t i = 0; i < USUAL_COUNT; i++) {
        const struct evq_pickle_node *found = evq_pickle_get(root, usual[i]);
        if (found != NULL && holds_tensors(found)) {
            return found;
        }
    }
    return NULL;
}

static const struct evq_pickle_node *find_variant(const struct evq_pickle_node *root,
                                                  const char *variant)
{
    char key[128];

    for (size_t i = 0; evq_torch_variant_key(variant, i, key, sizeof(key)); i++) {
        const struct evq_pickle_node *found = evq_pickle_get(root, key);
        if (found != NULL && holds_tensors(found)) {
            return found;
        }
    }
    return NULL;
}

/* Looks in the dicts inside the root dict, as in {"app": {"model": ..., "optim": ...}}. variant
 * NULL: the regular weights. */
static const struct evq_pickle_node *find_within(const struct evq_pickle_node *root,
                                                 const char *variant)
{
    const struct evq_pickle_node *found = NULL;

    for (uint32_t i = 1; root->kind == EVQ_PICKLE_DICT && found == NULL && i < root->count;
         i += 2) {
        const struct evq_pickle_node *inner = root->as.items[i];
        found = variant == NULL ? find_usual(inner) : find_variant(inner, variant);
    }
    return found;
}

/* Lightning callbacks keep their weights in their own state. */
static const struct evq_pickle_node *find_in_callbacks(const struct evq_pickle_node *root,
                                                       const char *variant)
{
    const struct evq_pickle_node *callbacks = evq_pickle_get(root, "callbacks");
    const struct evq_pickle_node *found = NULL;

    for (uint32_t i = 1; callbacks != NULL && callbacks->kind == EVQ_PICKLE_DICT && found == NULL &&
                         i < callbacks->count;
         i += 2) {
        found = find_variant(callbacks->as.items[i], variant);
    }
    return found;
}

struct prefix_search {
    const char *prefix;
    size_t bytes;
};

static enum evq_status stop_at_prefix(void *context, const char *name,
                                      const struct evq_pickle_node *tensor, struct evq_error *err)
{
    const struct prefix_search *search = context;

    (void)tensor;
    (void)err;
    return strncmp(name, search->prefix, search->bytes) == 0 ? EVQ_E_STOPPED : EVQ_OK;
}

/* Finds averages that are a part of the model itself: ema_model.layer.weight next to
 * model.layer.weight. */
static bool find_prefix(const struct evq_pickle_node *weights, const char *variant, char *out,
                        size_t out_bytes)
{
    static const char *const of_part[] = {"%s_model.", "model_%s.", "%s."};

    for (size_t i = 0; i < sizeof(of_part) / sizeof(of_part[0]); i++) {
        const char *mark = strstr(of_part[i], "%s");
        const int bytes = snprintf(out, out_bytes, "%.*s%s%s", (int)(mark - of_part[i]), of_part[i],
                                   variant, mark + 2);
        struct prefix_search search = {.prefix = out, .bytes = (size_t)bytes};
        if (bytes > 0 && (size_t)bytes < out_bytes &&
            evq_torch_walk(weights, stop_at_prefix, &search, NULL) == EVQ_E_STOPPED) {
            return true;
        }
    }
    out[0] = '\0';
    return false;
}

/* With Lightning's callback WeightAveraging, state_dict holds the averages and current_model_state
 * the trained weights. */
static const struct evq_pickle_node *find_averaged(const struct evq_pickle_node *root, bool regular)
{
    const struct evq_pickle_node *current = evq_pickle_get(root, "current_model_state");
    const struct evq_pickle_node *averages = evq_pickle_get(root, "state_dict");

    if (current == NULL || averages == NULL || !holds_tensors(current) ||
        !holds_tensors(averages)) {
        return NULL;
    }
    return regular ? current : averages;
}

static const struct evq_pickle_node *choose_variant(const struct evq_pickle_node *root,
                                                    const char *variant,
                                                    struct evq_torch_selection *choice)
{
    const struct evq_pickle_node *found = find_variant(root, variant);

    if (found == NULL && strcmp(variant, "ema") == 0) {
        found = find_averaged(root, false);
    }
    if (found == NULL) {
        found = find_in_callbacks(root, variant);
    }
    if (found == NULL) {
        const struct evq_pickle_node *home = find_usual(root);
        found = home == NULL ? root : home;
        if (!find_prefix(found, variant, choice->prefix, sizeof(choice->prefix))) {
            found = home == NULL ? find_within(root, variant) : NULL;
        }
    }
    return found;
}

enum evq_status evq_torch_select(const struct evq_pickle_node *root,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_torch_selection *ret_choice, struct evq_error *err)
{
    const char *variant = options->variant;
    bool regular = evq_torch_is_regular(variant);
    struct evq_torch_selection choice = {.prefix = ""};
    char keys[EVQ_SHOWN_BYTES];

    if (options->key != NULL && options->key[0] != '\0') {
        ret_choice->prefix[0] = '\0';
        return select_key(root, options->key, &ret_choice->weights, err);
    }
    const struct evq_pickle_node *found =
        regular ? find_averaged(root, true) : choose_variant(root, variant, &choice);
    if (found == NULL) {
        found = find_usual(root);
        if (!regular && strcmp(variant, "ema") == 0 &&
            (found != NULL || find_within(root, NULL) != NULL)) {
            list_keys(root, keys, sizeof(keys));
            return evq_error_set(err, EVQ_E_NOT_FOUND, "the file holds no EMA weights, but: %s",
                                 keys);
        }
    }
    if (found == NULL && regular) {
        found = find_variant(root, "ema"); // There is nothing else, so these are the weights.
    }
    if (found == NULL && (holds_tensors(root) || evq_torch_is_tensor(root))) {
        found = root; // The file holds one set of weights, which belongs to the variant.
    }
    if (found == NULL) {
        list_keys(root, keys, sizeof(keys));
        return evq_error_set(err, EVQ_E_NOT_FOUND, "the file holds no tensors%s%s",
                             keys[0] == '\0' ? "" : ", but: ", keys);
    }
    choice.weights = found;
    *ret_choice = choice;
    return EVQ_OK;
}
