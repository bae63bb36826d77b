#include <stdio.h>
#include <string.h>

#include "shared/checkpoint/checkpoint_builder.h"

struct search {
    const struct evq_checkpoint *checkpoint;
    const char *const *names;
    size_t count;
    char best[EVQ_CHECKPOINT_PREFIX_BYTES]; // The prefix under which most names were found.
    size_t best_found;
    bool any; // best is set.
};

static void copy_prefix(char out[EVQ_CHECKPOINT_PREFIX_BYTES], const char *prefix)
{
    (void)snprintf(out, EVQ_CHECKPOINT_PREFIX_BYTES, "%s",
                   prefix); // Every prefix tried is shorter.
}

/* Whether all names are there under prefix. Remembers the best prefix for the error message. */
static bool fits(struct search *search, const char *prefix)
{
    size_t found = 0;

    while (found < search->count &&
           evq_checkpoint_find_below(search->checkpoint, prefix, search->names[found]) != NULL) {
        found++;
    }
    if (!search->any || found > search->best_found) {
        copy_prefix(search->best, prefix);
        search->best_found = found;
        search->any = true;
    }
    return found == search->count;
}

/* Tries the prefixes that DistributedDataParallel, torch.compile and Lightning add, up to three
 * deep. */
static bool find_usual(struct search *search, char *ret_prefix)
{
    static const char *const parts[] = {"module.", "_orig_mod.", "model.", "_forward_module.",
                                        "_fsdp_wrapped_module."};
    enum { PARTS = sizeof(parts) / sizeof(parts[0]) };

    if (fits(search, "")) {
        ret_prefix[0] = '\0';
        return true;
    }
    for (int depth = 1; depth <= 3; depth++) {
        int combinations = depth == 1 ? PARTS : depth == 2 ? PARTS * PARTS : PARTS * PARTS * PARTS;
        for (int i = 0; i < combinations; i++) {
            char prefix[EVQ_CHECKPOINT_PREFIX_BYTES];
            (void)snprintf(prefix, sizeof(prefix), "%s%s%s", parts[i % PARTS],
                           depth > 1 ? parts[i / PARTS % PARTS] : "",
                           depth > 2 ? parts[i / PARTS / PARTS] : "");
            if (fits(search, prefix)) {
                copy_prefix(ret_prefix, prefix);
                return true;
            }
        }
    }
    return false;
}

/* The prefix of a tensor name that ends in ".expected"; false when it does not, or is too long. */
static bool prefix_of(const char *name, const char *expected, char *ret_prefix)
{
    size_t name_bytes = strlen(name);
    size_t expected_bytes = strlen(expected);

    if (name_bytes <= expected_bytes ||
        name_bytes - expected_bytes >= EVQ_CHECKPOINT_PREFIX_BYTES) {
        return false;
    }
    size_t bytes = name_bytes - expected_bytes;
    if (name[bytes - 1] != '.' || strcmp(name + bytes, expected) != 0) {
        return false;
    }
    memcpy(ret_prefix, name, bytes);
    ret_prefix[bytes] = '\0';
    return true;
}

static enum evq_status not_found(const struct search *search, struct evq_error *err)
{
    char missing[EVQ_SHOWN_BYTES];
    char under[EVQ_SHOWN_BYTES];
    const char *name = search->names[search->best_found];

    evq_error_escape(name, strlen(name), missing, sizeof(missing));
    evq_error_escape(search->best, strlen(search->best), under, sizeof(under));
    return evq_error_set(
        err, EVQ_E_NOT_FOUND,
        "tensor '%s' is missing (under the prefix '%s', where %zu of %zu expected names "
        "came before it; the checkpoint has %zu tensors)",
        missing, under, search->best_found, search->count, search->checkpoint->tensor_count);
}

enum evq_status evq_checkpoint_find_prefix(const struct evq_checkpoint *checkpoint,
                                           const char *const *expected_names, size_t count,
                                           char *ret_prefix, size_t *ret_missing,
                                           struct evq_error *err)
{
    struct search search = {.checkpoint = checkpoint, .names = expected_names, .count = count};
    char found[EVQ_CHECKPOINT_PREFIX_BYTES] = "";
    char prefix[EVQ_CHECKPOINT_PREFIX_BYTES];
    bool any = false;

    if (find_usual(&search, ret_prefix)) {
        return EVQ_OK;
    }
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        if (!prefix_of(checkpoint->tensors[i].name, expected_names[0], prefix) ||
            !fits(&search, prefix)) {
            continue;
        }
        if (any) {
            return evq_error_set(
                err, EVQ_E_CONFLICT,
                "all expected names are there under '%.160s' and under '%.160s': name the one "
                "to evaluate",
                found, prefix);
        }
        copy_prefix(found, prefix);
        any = true;
    }
    if (!any) {
        if (ret_missing != NULL) {
            *ret_missing = search.best_found;
        }
        return not_found(&search, err);
    }
    copy_prefix(ret_prefix, found);
    return EVQ_OK;
}
