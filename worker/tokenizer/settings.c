#include "worker/tokenizer/settings.h"

#include <stdlib.h>
#include <string.h>

static const char *const model_keys[EVQ_SETTINGS_MODEL_COUNT] = {
    "type",     "dropout",       "unk_token",     "continuing_subword_prefix", "end_of_word_suffix",
    "fuse_unk", "byte_fallback", "ignore_merges", "max_input_chars_per_word",
};

struct evq_json_tree **evq_settings_member(struct evq_settings *settings, const char *key)
{
    return strcmp(key, "version") == 0          ? &settings->version
           : strcmp(key, "truncation") == 0     ? &settings->truncation
           : strcmp(key, "normalizer") == 0     ? &settings->normalizer
           : strcmp(key, "pre_tokenizer") == 0  ? &settings->pre_tokenizer
           : strcmp(key, "post_processor") == 0 ? &settings->post_processor
                                                : NULL;
}

struct evq_json_tree **evq_settings_model(struct evq_settings *settings, const char *key)
{
    for (size_t i = 0; i < EVQ_SETTINGS_MODEL_COUNT; i++) {
        if (strcmp(model_keys[i], key) == 0) {
            return &settings->model[i];
        }
    }
    return NULL;
}

enum evq_status evq_settings_check_type(const struct evq_tokenizer_json *definition,
                                        struct evq_json_tree *const *model, struct evq_error *err)
{
    const struct evq_json_tree *type = model[EVQ_SETTINGS_MODEL_TYPE];
    char shown[260];

    if (evq_json_tree_none(type) || evq_json_tree_is(type, "BPE") ||
        evq_json_tree_is(type, "WordPiece")) {
        return EVQ_OK;
    }
    return evq_tokenizer_json_refuse(definition, err,
                                     "has a model of type '%s', expected BPE or WordPiece",
                                     evq_tokenizer_text_shown(type->text, shown, sizeof(shown)));
}

static enum evq_status flag(const struct evq_tokenizer_json *definition,
                            const struct evq_json_tree *tree, const char *name, bool *ret_flag,
                            struct evq_error *err)
{
    if (!evq_json_tree_none(tree) && tree->kind != EVQ_JSON_TRUE && tree->kind != EVQ_JSON_FALSE) {
        return evq_tokenizer_json_bad(definition, err, "%s is neither true nor false", name);
    }
    *ret_flag = !evq_json_tree_none(tree) && tree->kind == EVQ_JSON_TRUE;
    return EVQ_OK;
}

/* Refuses settings that change tokens and are not supported, unless they have no effect. */
static enum evq_status check_unused(const struct evq_tokenizer_json *definition,
                                    const struct evq_settings *settings, struct evq_error *err)
{
    const struct evq_json_tree *dropout = settings->model[EVQ_SETTINGS_MODEL_DROPOUT];

    if (!evq_json_tree_none(dropout) &&
        !(dropout->kind == EVQ_JSON_NUMBER && strtod(dropout->text.text, NULL) == 0)) {
        return evq_tokenizer_json_refuse(definition, err,
                                         "has dropout: its tokens are drawn by chance");
    }
    for (size_t i = EVQ_SETTINGS_MODEL_PREFIX; i <= EVQ_SETTINGS_MODEL_SUFFIX; i++) {
        if (definition->word_characters_max == 0 && !evq_json_tree_none(settings->model[i]) &&
            !evq_json_tree_is(settings->model[i], "")) {
            return evq_tokenizer_json_refuse(definition, err, "has a %s", model_keys[i]);
        }
    }
    if (!evq_json_tree_none(settings->version) && !evq_json_tree_is(settings->version, "1.0")) {
        return evq_tokenizer_json_refuse(definition, err, "is of a version other than 1.0");
    }
    return EVQ_OK;
}

/* Reads what WordPiece has and BPE has not. */
static enum evq_status apply_wordpiece(struct evq_tokenizer_json *definition,
                                       const struct evq_settings *settings, struct evq_error *err)
{
    const struct evq_json_tree *prefix = settings->model[EVQ_SETTINGS_MODEL_PREFIX];
    uint64_t *characters = &definition->word_characters_max;

    if (evq_json_tree_none(settings->model[EVQ_SETTINGS_MODEL_UNK])) {
        return evq_tokenizer_json_bad(definition, err, "WordPiece has no unk_token");
    }
    if (prefix == NULL || prefix->kind != EVQ_JSON_STRING ||
        prefix->text.bytes > EVQ_WORD_PREFIX_BYTES_MAX) {
        return evq_tokenizer_json_bad(definition, err,
                                      "continuing_subword_prefix is no text of at most %d bytes",
                                      EVQ_WORD_PREFIX_BYTES_MAX);
    }
    if (!evq_json_tree_u64(settings->model[EVQ_SETTINGS_MODEL_WORD_CHARACTERS], characters) ||
        *characters == 0 || *characters > EVQ_WORD_CHARACTERS_MAX) {
        return evq_tokenizer_json_bad(definition, err,
                                      "max_input_chars_per_word is no whole number from 1 to %d",
                                      EVQ_WORD_CHARACTERS_MAX);
    }
    definition->continuing = prefix->text;
    return EVQ_OK;
}

static enum evq_status apply_model(struct evq_tokenizer_json *definition,
                                   const struct evq_settings *settings, struct evq_error *err)
{
    const struct evq_json_tree *unk = settings->model[EVQ_SETTINGS_MODEL_UNK];
    bool *flags[] = {&definition->fuse_unk, &definition->byte_fallback, &definition->ignore_merges};

    enum evq_status status = EVQ_OK;
    if (evq_json_tree_is(settings->model[EVQ_SETTINGS_MODEL_TYPE], "WordPiece")) {
        status = apply_wordpiece(definition, settings, err);
    }
    if (status == EVQ_OK) {
        status = check_unused(definition, settings, err);
    }
    if (status == EVQ_OK && !evq_json_tree_none(unk)) {
        if (unk->kind != EVQ_JSON_STRING) {
            return evq_tokenizer_json_bad(definition, err, "unk_token is no text");
        }
        definition->unk = unk->text;
    }
    for (size_t i = 0; status == EVQ_OK && i < 3; i++) {
        const size_t at = EVQ_SETTINGS_MODEL_FUSE_UNK + i;
        status = flag(definition, settings->model[at], model_keys[at], flags[i], err);
    }
    definition->cuts_left =
        evq_json_tree_is(evq_json_tree_get(settings->truncation, "direction"), "Left");
    return status;
}

enum evq_status evq_settings_added(struct evq_tokenizer_json *definition,
                                   const struct evq_json_tree *tree, struct evq_error *err)
{
    const struct evq_json_tree *content = evq_json_tree_get(tree, "content");
    struct evq_added_token added = {0};
    bool special = false;
    uint64_t id = 0;

    if (content == NULL || content->kind != EVQ_JSON_STRING ||
        !evq_json_tree_u64(evq_json_tree_get(tree, "id"), &id) || id >= EVQ_TOKENIZER_IDS_MAX) {
        return evq_tokenizer_json_bad(definition, err,
                                      "added token %zu lacks its content or an id below %d",
                                      definition->added_count, EVQ_TOKENIZER_IDS_MAX);
    }
    added.content = content->text;
    added.id = (int32_t)id;
    if (!evq_json_tree_flag(tree, "special", false, &special) ||
        !evq_json_tree_flag(tree, "normalized", !special, &added.normalized) ||
        !evq_json_tree_flag(tree, "single_word", false, &added.single_word) ||
        !evq_json_tree_flag(tree, "lstrip", false, &added.lstrip) ||
        !evq_json_tree_flag(tree, "rstrip", false, &added.rstrip)) {
        return evq_tokenizer_json_bad(definition, err,
                                      "a setting of added token %zu is neither true nor false",
                                      definition->added_count);
    }
    return evq_tokenizer_json_add_token(definition, &added, err);
}

enum evq_status evq_settings_apply(struct evq_tokenizer_json *definition,
                                   const struct evq_settings *settings, struct evq_error *err)
{
    enum evq_status status = evq_settings_check_type(definition, settings->model, err);

    if (status == EVQ_OK) {
        status = apply_model(definition, settings, err);
    }
    if (status == EVQ_OK) {
        status = evq_settings_normalizer(definition, settings->normalizer, err);
    }
    if (status == EVQ_OK) {
        status = evq_settings_pre_tokenizer(definition, settings->pre_tokenizer, err);
    }
    if (status == EVQ_OK) {
        status = evq_settings_post_processor(definition, settings->post_processor, err);
    }
    return status;
}
