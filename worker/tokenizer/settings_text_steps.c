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

static enum evq_status too_many(const struct evq_tokenizer_json *definition, const char *what,
                                struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_LIMIT, "'%s' has more than %d %s", definition->path,
                         EVQ_TEXT_STEPS_MAX, what);
}

static enum evq_status add_normalizer(struct evq_tokenizer_json *definition,
                                      enum evq_normalizer normalizer, struct evq_error *err)
{
    struct evq_text_steps *steps = &definition->steps;

    if (steps->normalizer_count == EVQ_TEXT_STEPS_MAX) {
        return too_many(definition, "normalizers", err);
    }
    steps->normalizers[steps->normalizer_count++] = normalizer;
    return EVQ_OK;
}

static enum evq_status not_true_or_false(const struct evq_tokenizer_json *definition,
                                         const char *type, struct evq_error *err)
{
    return evq_tokenizer_json_bad(definition, err, "a setting of %s is neither true nor false",
                                  type);
}

static enum evq_status bert_normalizer(struct evq_tokenizer_json *definition,
                                       const struct evq_json_tree *tree, struct evq_error *err)
{
    bool cleans = false;
    bool cjk = false;
    bool strips = false;
    bool lowers = false;
    enum evq_status status = EVQ_OK;

    if (!evq_json_tree_flag(tree, "clean_text", true, &cleans) ||
        !evq_json_tree_flag(tree, "handle_chinese_chars", true, &cjk) ||
        !evq_json_tree_flag(tree, "lowercase", true, &lowers) ||
        !evq_json_tree_flag(tree, "strip_accents", lowers, &strips)) {
        return not_true_or_false(definition, "BertNormalizer", err);
    }
    const struct {
        bool wanted;
        enum evq_normalizer normalizer;
    } parts[] = {
        {cleans, EVQ_NORMALIZER_MAP + EVQ_UNICODE_CLEAN},
        {cjk, EVQ_NORMALIZER_MAP + EVQ_UNICODE_APART},
        {strips, EVQ_NORMALIZER_NFD},
        {strips, EVQ_NORMALIZER_MAP + EVQ_UNICODE_STRIP_NONSPACING},
        {lowers, EVQ_NORMALIZER_MAP + EVQ_UNICODE_LOWERCASE},
    };
    for (size_t i = 0; status == EVQ_OK && i < sizeof(parts) / sizeof(parts[0]); i++) {
        status = parts[i].wanted ? add_normalizer(definition, parts[i].normalizer, err) : EVQ_OK;
    }
    return status;
}

static enum evq_status normalizer(struct evq_tokenizer_json *definition,
                                  const struct evq_json_tree *tree, struct evq_error *err)
{
    static const struct {
        const char *type;
        enum evq_normalizer normalizer;
    } plain[] = {
        // The normalizers without settings.
        {"NFC", EVQ_NORMALIZER_NFC},
        {"NFD", EVQ_NORMALIZER_NFD},
        {"Lowercase", EVQ_NORMALIZER_MAP + EVQ_UNICODE_LOWERCASE},
        {"StripAccents", EVQ_NORMALIZER_MAP + EVQ_UNICODE_STRIP_ACCENTS},
    };
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");
    const struct evq_json_tree *pattern =
        evq_json_tree_get(evq_json_tree_get(tree, "pattern"), "String");

    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        if (evq_json_tree_is(type, plain[i].type)) {
            return add_normalizer(definition, plain[i].normalizer, err);
        }
    }
    if (evq_json_tree_is(type, "BertNormalizer")) {
        return bert_normalizer(definition, tree, err);
    }
    if (evq_json_tree_is(type, "Prepend") &&
        evq_json_tree_is(evq_json_tree_get(tree, "prepend"), UNDER)) {
        return add_normalizer(definition, EVQ_NORMALIZER_PREPEND_UNDER, err);
    }
    if (evq_json_tree_is(type, "Replace") && evq_json_tree_is(pattern, " ") &&
        evq_json_tree_is(evq_json_tree_get(tree, "content"), UNDER)) {
        return add_normalizer(definition, EVQ_NORMALIZER_SPACES_TO_UNDER, err);
    }
    return unknown(definition, "normalizer", tree, err);
}

/* Whether no space is left in the text after the normalizers. */
static bool leaves_no_space(const struct evq_text_steps *steps)
{
    bool none = false;

    for (size_t i = 0; i < steps->normalizer_count; i++) {
        const enum evq_normalizer normalizer = steps->normalizers[i];
        none = normalizer == EVQ_NORMALIZER_SPACES_TO_UNDER ||
               (none && normalizer == EVQ_NORMALIZER_PREPEND_UNDER);
    }
    return none;
}

static enum evq_status add_scan(struct evq_tokenizer_json *definition,
                                enum evq_pretokenizer_kind scan, struct evq_error *err)
{
    struct evq_text_steps *steps = &definition->steps;

    if (steps->scan_count == EVQ_TEXT_STEPS_MAX) {
        return too_many(definition, "pre-tokenizers", err);
    }
    steps->scans[steps->scan_count++] = scan;
    return EVQ_OK;
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
    if (steps->space_before && steps->scan_count > 0) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "puts a space before every piece (add_prefix_space)");
    }
    definition->byte_level = true;
    return regex ? add_scan(definition, EVQ_PRETOKENIZER_GPT2, err) : EVQ_OK;
}

static enum evq_status split(struct evq_tokenizer_json *definition,
                             const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *pattern = evq_json_tree_get(tree, "pattern");
    const struct evq_json_tree *regex = evq_json_tree_get(pattern, "Regex");
    const struct evq_json_tree *behavior = evq_json_tree_get(tree, "behavior");
    enum evq_pretokenizer_kind scan = EVQ_PRETOKENIZER_GPT2;
    bool invert = false;
    char shown[260];

    if (!evq_json_tree_flag(tree, "invert", false, &invert)) {
        return not_true_or_false(definition, "Split", err);
    }
    if (evq_json_tree_is(evq_json_tree_get(pattern, "String"), " ") &&
        leaves_no_space(&definition->steps)) {
        return EVQ_OK; // The Split finds no space, so it divides nothing.
    }
    if (regex == NULL || regex->kind != EVQ_JSON_STRING ||
        !evq_pretokenizer_find(regex->text.text, regex->text.bytes, &scan)) {
        const struct evq_tokenizer_text none = {"", 0};
        return evq_tokenizer_json_refuse(
            definition, err, "divides text by a pattern that is not known: '%s'",
            evq_tokenizer_text_shown(regex != NULL && regex->text.text != NULL ? regex->text : none,
                                     shown, sizeof(shown)));
    }
    // Patterns before DEEPSEEK match all text, so removing what does not match removes nothing.
    if (!(evq_json_tree_is(behavior, "Isolated") && !invert) &&
        !(evq_json_tree_is(behavior, "Removed") && invert && scan < EVQ_PRETOKENIZER_DEEPSEEK)) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "has a Split that does not keep each match by itself");
    }
    return add_scan(definition, scan, err);
}

static bool removes_characters(const struct evq_text_steps *steps)
{
    bool removes = false;

    for (size_t i = 0; i < steps->normalizer_count; i++) {
        const enum evq_normalizer normalizer = steps->normalizers[i];
        removes = removes || normalizer == EVQ_NORMALIZER_MAP + EVQ_UNICODE_CLEAN ||
                  normalizer == EVQ_NORMALIZER_MAP + EVQ_UNICODE_STRIP_ACCENTS ||
                  normalizer == EVQ_NORMALIZER_MAP + EVQ_UNICODE_STRIP_NONSPACING;
    }
    return removes;
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
    if (steps->scan_count > 0) {
        return evq_tokenizer_json_refuse(definition, err, "has Metaspace behind other steps");
    }
    if (steps->metaspace_prepend == EVQ_PREPEND_FIRST && removes_characters(steps)) {
        // If the first character was removed, Hugging Face takes no piece for the first one.
        return evq_tokenizer_json_refuse(
            definition, err,
            "has a Metaspace with prepend_scheme 'first' behind a normalizer that "
            "removes characters");
    }
    steps->metaspace = true;
    return divides ? add_scan(definition, EVQ_PRETOKENIZER_UNDER, err) : EVQ_OK;
}

static enum evq_status digits(struct evq_tokenizer_json *definition,
                              const struct evq_json_tree *tree, struct evq_error *err)
{
    bool apart = false;

    if (!evq_json_tree_flag(tree, "individual_digits", false, &apart)) {
        return not_true_or_false(definition, "Digits", err);
    }
    return add_scan(definition, apart ? EVQ_PRETOKENIZER_DIGIT : EVQ_PRETOKENIZER_DIGITS, err);
}

static enum evq_status pre_tokenizer(struct evq_tokenizer_json *definition,
                                     const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");

    if (definition->byte_level || definition->steps.metaspace) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "divides text again after ByteLevel or Metaspace");
    }
    return evq_json_tree_is(type, "ByteLevel")   ? byte_level(definition, tree, err)
           : evq_json_tree_is(type, "Split")     ? split(definition, tree, err)
           : evq_json_tree_is(type, "Metaspace") ? metaspace(definition, tree, err)
           : evq_json_tree_is(type, "Digits")    ? digits(definition, tree, err)
           : evq_json_tree_is(type, "BertPreTokenizer")
               ? add_scan(definition, EVQ_PRETOKENIZER_BERT, err)
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
    const bool words = definition->word_characters_max > 0;
    bool bert = false;

    enum evq_status status = each(definition, tree, "pretokenizers", pre_tokenizer, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < steps->scan_count; i++) {
        bert = bert || steps->scans[i] == EVQ_PRETOKENIZER_BERT;
    }
    // BertPreTokenizer drops white space, which evalq implements in WordPiece.
    if (bert != words || (words && (definition->byte_level || steps->metaspace))) {
        return evq_tokenizer_json_refuse(definition, err,
                                         words ? "has WordPiece without BertPreTokenizer alone"
                                               : "has BertPreTokenizer without WordPiece");
    }
    return EVQ_OK;
}
