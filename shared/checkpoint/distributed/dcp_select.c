#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/distributed/dcp.h"

struct evq_dcp_path {
    const struct evq_pickle_node *name;
    const struct evq_pickle_node *top;   // The dict that holds it; NULL: none.
    const struct evq_pickle_node *inner; // The dict within that one; NULL: none.
};

// What trainers save next to the weights.
static const char *const not_weights[] = {
    "optimizer",    "optimizers",   "optim", "optimizer_states", "optimizer_state_dict",
    "lr_scheduler", "lr_schedulers"};

bool evq_dcp_is_tensor(const struct evq_pickle_node *node)
{
    return node->kind == EVQ_PICKLE_OBJECT &&
           node->as.object->callable->kind == EVQ_PICKLE_GLOBAL &&
           strcmp(node->as.object->callable->as.global->name, "TensorStorageMetadata") == 0;
}

static int by_name(const void *a, const void *b)
{
    const struct evq_dcp_path *left = a;
    const struct evq_dcp_path *right = b;

    return evq_pickle_text_compare(left->name, right->name);
}

/* Lists the names that are in a dict, each with that dict. */
static enum evq_status list_paths(struct evq_dcp_selection *choice,
                                  const struct evq_pickle_node *paths, struct evq_error *err)
{
    const size_t count = paths->kind == EVQ_PICKLE_DICT ? paths->count / 2 : 0;

    choice->paths = calloc(count + 1, sizeof(*choice->paths)); // Bounded by the pickle.
    if (choice->paths == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu names", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct evq_pickle_node *name = paths->as.items[2 * i];
        const struct evq_pickle_node *path = paths->as.items[2 * i + 1];
        if (name->kind == EVQ_PICKLE_TEXT && path->kind == EVQ_PICKLE_TUPLE && path->count > 1 &&
            path->as.items[0]->kind == EVQ_PICKLE_TEXT) {
            choice->paths[choice->path_count++] = (struct evq_dcp_path){
                .name = name,
                .top = path->as.items[0],
                .inner = path->count > 2 ? path->as.items[1] : NULL,
            };
        }
    }
    qsort(choice->paths, choice->path_count, sizeof(*choice->paths), by_name);
    return EVQ_OK;
}

static const struct evq_pickle_node *top_of(const struct evq_dcp_selection *choice,
                                            const struct evq_pickle_node *name)
{
    const struct evq_dcp_path wanted = {.name = name};
    const struct evq_dcp_path *found =
        choice->path_count == 0
            ? NULL
            : bsearch(&wanted, choice->paths, choice->path_count, sizeof(wanted), by_name);

    return found == NULL ? NULL : found->top;
}

/* Length of path and its dot at the start of name; 0: name is not below path. */
static size_t below(const struct evq_pickle_node *name, const char *path)
{
    const size_t bytes = strlen(path);

    return name->count > bytes + 1 && name->as.text[bytes] == '.' &&
                   memcmp(name->as.text, path, bytes) == 0
               ? bytes + 1
               : 0;
}

bool evq_dcp_is_selected(const struct evq_dcp_selection *choice, const struct evq_pickle_node *name,
                         size_t *ret_skip)
{
    if (name->kind != EVQ_PICKLE_TEXT) {
        return false;
    }
    if (choice->key != NULL) {
        *ret_skip = below(name, choice->key);
        return *ret_skip > 0 || evq_pickle_is_text(name, choice->key);
    }
    const struct evq_pickle_node *top = top_of(choice, name);
    if (choice->top != NULL) {
        *ret_skip = below(name, choice->top);
        return *ret_skip > 0 && top != NULL && evq_pickle_is_text(top, choice->top);
    }
    *ret_skip = 0;
    for (size_t i = 0; top != NULL && i < sizeof(not_weights) / sizeof(not_weights[0]); i++) {
        if (evq_pickle_is_text(top, not_weights[i])) {
            return false;
        }
    }
    return true;
}

/* Whether the selection contains a tensor. */
static bool holds_tensors(const struct evq_dcp_selection *choice)
{
    size_t skip = 0;

    for (uint32_t i = 0; i + 1 < choice->names->count; i += 2) {
        if (evq_dcp_is_tensor(choice->names->as.items[i + 1]) &&
            evq_dcp_is_selected(choice, choice->names->as.items[i], &skip)) {
            return true;
        }
    }
    return false;
}

/* Writes a few of the names, for a message. */
static void list_names(const struct evq_dcp_selection *choice, char *out, size_t out_bytes)
{
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i + 1 < choice->names->count && i < 8; i += 2) {
        const struct evq_pickle_node *name = choice->names->as.items[i];
        char shown[64];
        if (name->kind != EVQ_PICKLE_TEXT) {
            continue;
        }
        evq_error_escape(name->as.text, name->count, shown, sizeof(shown));
        const int bytes = snprintf(out + at, out_bytes - at, "%s%s", at == 0 ? "" : ", ", shown);
        at += bytes > 0 && (size_t)bytes < out_bytes - at ? (size_t)bytes : 0;
        out[at] = '\0';
    }
}

static bool choose_usual(struct evq_dcp_selection *choice)
{
    for (size_t i = 0; evq_torch_usual_key(i) != NULL; i++) {
        choice->top = evq_torch_usual_key(i);
        if (holds_tensors(choice)) {
            return true;
        }
    }
    choice->top = NULL;
    return false;
}

/* Finds a tensor in a dict of this name inside another dict, as in {"app": {"model": ..., "optim":
 * ...}}. */
static const struct evq_dcp_path *find_within(const struct evq_dcp_selection *choice,
                                              const char *name)
{
    size_t skip = 0;

    for (size_t i = 0; i < choice->path_count; i++) {
        const struct evq_dcp_path *path = &choice->paths[i];
        if (path->inner != NULL && evq_pickle_is_text(path->inner, name) &&
            evq_dcp_is_selected(choice, path->name, &skip)) {
            return path;
        }
    }
    return NULL;
}

static bool usual_within(const struct evq_dcp_selection *choice)
{
    bool found = false;

    for (size_t i = 0; evq_torch_usual_key(i) != NULL && !found; i++) {
        found = find_within(choice, evq_torch_usual_key(i)) != NULL;
    }
    return found;
}

static bool variant_within(struct evq_dcp_selection *choice, const char *variant)
{
    char *key = choice->variant_top;
    char name[sizeof(choice->variant_top)];

    for (size_t i = 0; evq_torch_variant_key(variant, i, name, sizeof(name)); i++) {
        const struct evq_dcp_path *path = find_within(choice, name);
        const int bytes = path == NULL ? 0
                                       : snprintf(key, sizeof(choice->variant_top), "%.*s.%s",
                                                  (int)path->top->count, path->top->as.text, name);
        if (bytes > 0 && (size_t)bytes < sizeof(choice->variant_top)) {
            choice->key = key;
            return true;
        }
    }
    return false;
}

static bool choose_variant(struct evq_dcp_selection *choice, const char *variant)
{
    char *key = choice->variant_top;

    choice->top = key;
    for (size_t i = 0; evq_torch_variant_key(variant, i, key, sizeof(choice->variant_top)); i++) {
        if (holds_tensors(choice)) {
            return true;
        }
    }
    choice->top = NULL;
    return false;
}

/* Handles Lightning's callback WeightAveraging, as evq_torch_select() does. */
static bool choose_averaged(struct evq_dcp_selection *choice, bool regular)
{
    static const char trained[] = "current_model_state";
    static const char averages[] = "state_dict";

    choice->top = regular ? averages : trained;
    const bool other = holds_tensors(choice);
    choice->top = regular ? trained : averages;
    if (other && holds_tensors(choice)) {
        return true;
    }
    choice->top = NULL;
    return false;
}

enum evq_status evq_dcp_select(struct evq_dcp_selection *choice,
                               const struct evq_pickle_node *paths,
                               const struct evq_checkpoint_options *options, struct evq_error *err)
{
    const bool regular = evq_torch_is_regular(options->variant);
    char names[EVQ_SHOWN_BYTES];
    enum evq_status status = list_paths(choice, paths, err);

    if (status != EVQ_OK) {
        return status;
    }
    list_names(choice, names, sizeof(names));
    if (options->key != NULL && options->key[0] != '\0') {
        choice->key = options->key;
        return holds_tensors(choice)
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_NOT_FOUND,
                                   "there are no tensors under '%.160s'; it holds: %s",
                                   options->key, names);
    }
    if (!regular && choose_variant(choice, options->variant)) {
        return EVQ_OK;
    }
    const bool ema = !regular && strcmp(options->variant, "ema") == 0;
    if ((regular || ema) && choose_averaged(choice, regular)) {
        return EVQ_OK;
    }
    const bool usual = choose_usual(choice);
    if (!usual && !regular && variant_within(choice, options->variant)) {
        return EVQ_OK;
    }
    if (ema && (usual || usual_within(choice))) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "it holds no EMA weights, but: %s", names);
    }
    if (!usual && regular && choose_variant(choice, "ema")) {
        return EVQ_OK; // There is nothing else, so these are the weights.
    }
    if (!usual && !holds_tensors(choice)) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "it holds no tensors%s%s",
                             names[0] == '\0' ? "" : ", but: ", names);
    }
    return EVQ_OK;
}

void evq_dcp_selection_free(struct evq_dcp_selection *choice)
{
    free(choice->paths);
    choice->paths = NULL;
}
