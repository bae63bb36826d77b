/* Reads tokenizer.json in one pass: the vocabulary and merges directly, and the settings as trees,
 * which are interpreted at the end. */
#include <string.h>

#include "worker/tokenizer/json_tree.h"
#include "worker/tokenizer/settings.h"

#define SETTINGS_BYTES_MAX ((size_t)1 << 20) // Size of the trees of one file.

struct reading {
    struct evq_tokenizer_json *definition;
    struct evq_json json;
    struct evq_arena *settings; // Trees that are kept.
    struct evq_arena *passing;  // The tree of one added token.
    struct evq_settings found;
    bool model, vocabulary, merges, added;
};

static enum evq_status read_vocabulary(struct reading *reading, const struct evq_json_token *begin,
                                       struct evq_error *err)
{
    struct evq_tokenizer_json *definition = reading->definition;
    struct evq_json_token token;
    enum evq_status status = EVQ_OK;
    uint64_t id = 0;
    char shown[260];

    if (begin->kind != EVQ_JSON_OBJECT || reading->vocabulary) {
        return evq_tokenizer_json_bad(
            definition, err, "%s",
            reading->vocabulary ? "the model has two vocabularies"
                                : "the model's vocabulary is not an object of tokens and ids");
    }
    reading->vocabulary = true;
    while ((status = evq_json_next(&reading->json, &token, err)) == EVQ_OK &&
           token.kind == EVQ_JSON_KEY) {
        const struct evq_tokenizer_text name = {token.text, token.bytes};
        status = evq_json_next(&reading->json, &token, err);
        if (status == EVQ_OK && !evq_json_u64(&token, &id)) {
            return evq_tokenizer_json_bad(definition, err,
                                          "token '%s' has no whole number as its id",
                                          evq_tokenizer_text_shown(name, shown, sizeof(shown)));
        }
        if (status == EVQ_OK) {
            status = evq_tokenizer_json_add_entry(definition, name, id, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return status;
}

static enum evq_status read_pair(struct reading *reading, struct evq_error *err)
{
    struct evq_tokenizer_json *definition = reading->definition;
    struct evq_tokenizer_text pair[2] = {{0}};
    struct evq_json_token token;

    for (size_t i = 0; i < 3; i++) {
        const enum evq_status status = evq_json_next(&reading->json, &token, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (token.kind != (i < 2 ? EVQ_JSON_STRING : EVQ_JSON_ARRAY_END)) {
            return evq_tokenizer_json_bad(definition, err, "merge %zu is no pair of two tokens",
                                          definition->merge_count);
        }
        if (i < 2) {
            pair[i] = (struct evq_tokenizer_text){token.text, token.bytes};
        }
    }
    return evq_tokenizer_json_add_merge(definition, pair[0], pair[1], err);
}

static enum evq_status read_merges(struct reading *reading, const struct evq_json_token *begin,
                                   struct evq_error *err)
{
    struct evq_tokenizer_json *definition = reading->definition;
    struct evq_json_token token;
    enum evq_status status = EVQ_OK;

    if (begin->kind != EVQ_JSON_ARRAY || reading->merges) {
        return evq_tokenizer_json_bad(definition, err, "%s",
                                      reading->merges ? "the model has two lists of merges"
                                                      : "the model's merges are no list");
    }
    reading->merges = true;
    while ((status = evq_json_next(&reading->json, &token, err)) == EVQ_OK &&
           token.kind != EVQ_JSON_ARRAY_END) {
        if (token.kind == EVQ_JSON_ARRAY) {
            status = read_pair(reading, err);
        } else if (token.kind != EVQ_JSON_STRING) {
            status = evq_tokenizer_json_bad(definition, err, "merge %zu is neither text nor a pair",
                                            definition->merge_count);
        } else if (token.bytes < 8 || memcmp(token.text, "#version", 8) != 0) {
            const struct evq_tokenizer_text line = {token.text, token.bytes};
            status = evq_tokenizer_json_add_merge_line(definition, line, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return status;
}

static enum evq_status keep(struct reading *reading, const struct evq_json_token *token,
                            const char *name, struct evq_json_tree **slot, struct evq_error *err)
{
    if (*slot != NULL) {
        return evq_tokenizer_json_bad(reading->definition, err, "%s comes twice", name);
    }
    return evq_json_tree_read(&reading->json, token, reading->settings, slot, err);
}

static enum evq_status read_model(struct reading *reading, const struct evq_json_token *begin,
                                  struct evq_error *err)
{
    struct evq_json_tree **slot = NULL;
    struct evq_json_token token;
    enum evq_status status = EVQ_OK;

    if (begin->kind != EVQ_JSON_OBJECT || reading->model) {
        return evq_tokenizer_json_bad(reading->definition, err, "%s",
                                      reading->model ? "there are two models"
                                                     : "model is no object");
    }
    reading->model = true;
    while ((status = evq_json_next(&reading->json, &token, err)) == EVQ_OK &&
           token.kind == EVQ_JSON_KEY) {
        const char *key = token.text;
        status = evq_json_next(&reading->json, &token, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (strcmp(key, "vocab") == 0) {
            status = evq_settings_check_type(reading->definition, reading->found.model, err);
            status = status == EVQ_OK ? read_vocabulary(reading, &token, err) : status;
        } else if (strcmp(key, "merges") == 0) {
            status = read_merges(reading, &token, err);
        } else if ((slot = evq_settings_model(&reading->found, key)) != NULL) {
            status = keep(reading, &token, key, slot, err);
        } else {
            status = evq_json_skip(&reading->json, &token, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return status;
}

static enum evq_status read_added(struct reading *reading, const struct evq_json_token *begin,
                                  struct evq_error *err)
{
    struct evq_json_token token;
    enum evq_status status = EVQ_OK;

    if (begin->kind != EVQ_JSON_ARRAY || reading->added) {
        return evq_tokenizer_json_bad(reading->definition, err, "%s",
                                      reading->added ? "added_tokens comes twice"
                                                     : "added_tokens is no list");
    }
    reading->added = true;
    while ((status = evq_json_next(&reading->json, &token, err)) == EVQ_OK &&
           token.kind != EVQ_JSON_ARRAY_END) {
        struct evq_json_tree *tree = NULL;
        evq_arena_reset(reading->passing);
        status = evq_json_tree_read(&reading->json, &token, reading->passing, &tree, err);
        if (status == EVQ_OK) {
            status = evq_settings_added(reading->definition, tree, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return status;
}

static enum evq_status read_members(struct reading *reading, struct evq_error *err)
{
    struct evq_json_tree **slot = NULL;
    struct evq_json_token token;
    enum evq_status status = EVQ_OK;

    while ((status = evq_json_next(&reading->json, &token, err)) == EVQ_OK &&
           token.kind == EVQ_JSON_KEY) {
        const char *key = token.text;
        status = evq_json_next(&reading->json, &token, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (strcmp(key, "model") == 0) {
            status = read_model(reading, &token, err);
        } else if (strcmp(key, "added_tokens") == 0) {
            status = read_added(reading, &token, err);
        } else if ((slot = evq_settings_member(&reading->found, key)) != NULL) {
            status = keep(reading, &token, key, slot, err);
        } else {
            status = evq_json_skip(&reading->json, &token, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    // Nothing may follow.
    return status == EVQ_OK ? evq_json_next(&reading->json, &token, err) : status;
}

static enum evq_status read_all(struct reading *reading, struct evq_error *err)
{
    struct evq_tokenizer_json *definition = reading->definition;
    struct evq_json_token token;

    enum evq_status status = evq_json_next(&reading->json, &token, err);
    if (status == EVQ_OK && token.kind != EVQ_JSON_OBJECT) {
        return evq_tokenizer_json_bad(definition, err, "it is not a JSON object");
    }
    if (status == EVQ_OK) {
        status = read_members(reading, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (!reading->model) {
        return evq_tokenizer_json_bad(definition, err, "it has no model");
    }
    status = evq_settings_apply(definition, &reading->found, err);
    // WordPiece has no merges.
    if (status == EVQ_OK &&
        (!reading->vocabulary || (!reading->merges && definition->word_characters_max == 0))) {
        return evq_tokenizer_json_bad(definition, err, "the model has no %s",
                                      reading->vocabulary ? "merges" : "vocabulary");
    }
    return status;
}

enum evq_status evq_tokenizer_json_read(struct evq_tokenizer_json *definition,
                                        struct evq_error *err)
{
    struct evq_buffer *file = &definition->file;
    struct evq_error fault = {.status = EVQ_OK};
    struct reading reading = {.definition = definition};

    enum evq_status status = evq_tokenizer_json_check_text(file, definition->path, err);
    if (status != EVQ_OK) {
        return status;
    }
    reading.settings = evq_arena_new(SETTINGS_BYTES_MAX);
    reading.passing = evq_arena_new(SETTINGS_BYTES_MAX);
    if (reading.settings == NULL || reading.passing == NULL) {
        status = evq_error_set(&fault, EVQ_E_NOMEM, "'%s'", definition->path);
    } else {
        evq_json_init(&reading.json, (char *)file->data, file->bytes);
        status = read_all(&reading, &fault);
    }
    evq_arena_free(reading.settings);
    evq_arena_free(reading.passing);
    if (status != EVQ_OK && strstr(fault.message, definition->path) == NULL) {
        // It returns the status that it was given.
        (void)evq_error_prefix(&fault, "'%s'", definition->path);
    }
    if (status != EVQ_OK && err != NULL) {
        *err = fault;
    }
    return status;
}
