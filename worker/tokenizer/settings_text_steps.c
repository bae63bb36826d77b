/* Reads normalizer and pre_tokenizer, which change and divide text before it is merged. */
#include <string.h>

#include "worker/tokenizer/settings.h"

#define UNDER "\xe2\x96\x81"

typedef enum evq_status (*step_function)(struct evq_tokenizer_json *definition,
                                         const struct evq_json_tree *tree, struct evq_error *err);

static enum evq_status unknown(const struct evq_tokenizer_json *definition, const char *what,
                               const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");
    char shown[260];

    if (type == NULL || type->kind != EVQ_JSON_STRING) {
        return evq_tokenizer_json_bad(definition, err, "a %s has no type", what);
    }
    return evq_tokenizer_json_refuse(definition, err, "has a %s '%s' that is not handled", what,
                                     evq_tokenizer_text_shown(type->text, shown, sizeof(shown)));
}

/* Applies step() to each element of a Sequence, or to the single step. Sequences cannot be nested.
 */
static enum evq_status each(struct evq_tokenizer_json *definition, const struct evq_json_tree *tree,
                            const char *list, step_function step, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (evq_json_tree_none(tree)) {
        return EVQ_OK;
    }
    if (!evq_json_tree_is(evq_json_tree_get(tree, "type"), "Sequence")) {
        return step(definition, tree, err);
    }
    const struct evq_json_tree *steps = evq_json_tree_get(tree, list);
    if (steps == NULL || steps->kind != EVQ_JSON_ARRAY) {
        return evq_tokenizer_json_bad(definition, err, "a Sequence has no list of %s", list);
    }
    for (tree = steps->first; status == EVQ_OK && tree != NULL; tree = tree->next) {
        status = step(definition, tree, err);
    }
    return status;
}

static enum evq_status normalizer(struct evq_tokenizer_json *definition,
                                  const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");
    const struct evq_json_tree *pattern =
        evq_json_tree_get(evq_json_tree_get(tree, "pattern"), "String");

    if (evq_json_tree_is(type, "NFC")) {
        definition->steps.nfc = true;
        return EVQ_OK;
    }
    if (evq_json_tree_is(type, "Prepend") &&
        evq_json_tree_is(evq_json_tree_get(tree, "prepend"), UNDER) &&
        !definition->steps.prepend_under) {
        definition->steps.prepend_under = true;
        return EVQ_OK;
    }
    if (evq_json_tree_is(type, "Replace") && evq_json_tree_is(pattern, " ") &&
        evq_json_tree_is(evq_json_tree_get(tree, "content"), UNDER)) {
        definition->steps.spaces_to_under = true;
        return EVQ_OK;
    }
    return unknown(definition, "normalizer", tree, err);
}

static enum evq_status not_true_or_false(const struct evq_tokenizer_json *definition,
                                         const char *type, struct evq_error *err)
{
    return evq_tokenizer_json_bad(definition, err, "a setting of %s is neither true nor false",
                                  type);
}

static enum evq_status byte_level(struct evq_tokenizer_json *definition,
                                  const struct evq_json_tree *tree, struct evq_error *err)
{
    struct evq_text_steps *steps = &definition->steps;
    bool regex = true;

    if (!evq_json_tree_flag(tree, "add_prefix_space", true, &steps->space_before) ||
        !evq_json_tree_flag(tree, "use_regex", true, &regex)) {
        return not_true_or_false(definition, "ByteLevel", err);
    }
    if (definition->byte_level || steps->metaspace ||
        (regex && steps->scan != EVQ_PRETOKENIZER_WHOLE)) {
        return evq_tokenizer_json_refuse(definition, err, "divides text in two ways at once");
    }
    if (steps->space_before && (steps->digits_apart || steps->scan != EVQ_PRETOKENIZER_WHOLE)) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "puts a space before every piece (add_prefix_space)");
    }
    definition->byte_level = true;
    steps->scan = regex ? EVQ_PRETOKENIZER_GPT2 : steps->scan;
    return EVQ_OK;
}

static enum evq_status split(struct evq_tokenizer_json *definition,
                             const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *pattern = evq_json_tree_get(tree, "pattern");
    const struct evq_json_tree *regex = evq_json_tree_get(pattern, "Regex");
    const struct evq_json_tree *behavior = evq_json_tree_get(tree, "behavior");
    bool invert = false;
    char shown[260];

    if (!evq_json_tree_flag(tree, "invert", false, &invert)) {
        return not_true_or_false(definition, "Split", err);
    }
    if (evq_json_tree_is(evq_json_tree_get(pattern, "String"), " ") &&
        definition->steps.spaces_to_under) {
        return EVQ_OK; // No space is left by then.
    }
    if (regex == NULL || regex->kind != EVQ_JSON_STRING ||
        !evq_pretokenizer_find(regex->text.text, regex->text.bytes, &definition->steps.scan)) {
        const struct evq_tokenizer_text none = {"", 0};
        return evq_tokenizer_json_refuse(
            definition, err, "divides text by a pattern that is not known: '%s'",
            evq_tokenizer_text_shown(regex != NULL && regex->text.text != NULL ? regex->text : none,
                                     shown, sizeof(shown)));
    }
    // The patterns leave nothing between matches, so both settings mean the same.
    if (!(evq_json_tree_is(behavior, "Isolated") && !invert) &&
        !(evq_json_tree_is(behavior, "Removed") && invert)) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "has a Split that does not keep each match by itself");
    }
    return EVQ_OK;
}

static enum evq_status metaspace(struct evq_tokenizer_json *definition,
                                 const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *scheme = evq_json_tree_get(tree, "prepend_scheme");
    struct evq_text_steps *steps = &definition->steps;
    bool prefix = true;
    bool divides = true;

    if (!evq_json_tree_flag(tree, "add_prefix_space", true, &prefix) ||
        !evq_json_tree_flag(tree, "split", true, &divides)) {
        return not_true_or_false(definition, "Metaspace", err);
    }
    steps->metaspace_prepend = evq_json_tree_is(scheme, "never")   ? EVQ_PREPEND_NEVER
                               : evq_json_tree_is(scheme, "first") ? EVQ_PREPEND_FIRST
                                                                   : EVQ_PREPEND_ALWAYS;
    if (!evq_json_tree_is(evq_json_tree_get(tree, "replacement"), UNDER) ||
        (!evq_json_tree_none(scheme) && steps->metaspace_prepend == EVQ_PREPEND_ALWAYS &&
         !evq_json_tree_is(scheme, "always")) ||
        (!prefix && steps->metaspace_prepend != EVQ_PREPEND_NEVER)) {
        return evq_tokenizer_json_refuse(
            definition, err,
            "has a Metaspace with a replacement or prepend_scheme that is "
            "not known");
    }
    steps->metaspace = true;
    steps->scan = divides ? EVQ_PRETOKENIZER_UNDER : EVQ_PRETOKENIZER_WHOLE;
    return EVQ_OK;
}

static enum evq_status digits(struct evq_tokenizer_json *definition,
                              const struct evq_json_tree *tree, struct evq_error *err)
{
    bool apart = false;

    if (!evq_json_tree_flag(tree, "individual_digits", false, &apart)) {
        return not_true_or_false(definition, "Digits", err);
    }
    if (!apart) {
        return unknown(definition, "pre_tokenizer", tree, err);
    }
    definition->steps.digits_apart = true;
    return EVQ_OK;
}

static enum evq_status pre_tokenizer(struct evq_tokenizer_json *definition,
                                     const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");
    const struct evq_text_steps *steps = &definition->steps;

    if (evq_json_tree_is(type, "ByteLevel")) {
        return byte_level(definition, tree, err);
    }
    if (definition->byte_level || steps->metaspace || steps->scan != EVQ_PRETOKENIZER_WHOLE) {
        return evq_tokenizer_json_refuse(definition, err, "divides text in two ways at once");
    }
    return evq_json_tree_is(type, "Split")       ? split(definition, tree, err)
           : evq_json_tree_is(type, "Metaspace") ? metaspace(definition, tree, err)
           : evq_json_tree_is(type, "Digits")    ? digits(definition, tree, err)
                                                 : unknown(definition, "pre_tokenizer", tree, err);
}

enum evq_status evq_settings_normalizer(struct evq_tokenizer_json *definition,
                                        const struct evq_json_tree *tree, struct evq_error *err)
{
    return each(definition, tree, "normalizers", normalizer, err);
}

enum evq_status evq_settings_pre_tokenizer(struct evq_tokenizer_json *definition,
                                           const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_text_steps *steps = &definition->steps;

    enum evq_status status = each(definition, tree, "pretokenizers", pre_tokenizer, err);
    if (status != EVQ_OK || definition->byte_level) {
        return status;
    }
    if (steps->scan != EVQ_PRETOKENIZER_WHOLE && steps->scan != EVQ_PRETOKENIZER_UNDER) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "divides text by a pattern without ByteLevel");
    }
    if (steps->metaspace && steps->digits_apart) {
        return evq_tokenizer_json_refuse(definition, err, "has Digits beside Metaspace");
    }
    return EVQ_OK;
}
