/* Reads the special tokens that the files beside vocab.json and merges.txt name. Transformers finds
 * each of them in a text. */
#include <stdio.h>
#include <string.h>

#include "worker/tokenizer/files.h"
#include "worker/tokenizer/json_tree.h"

#define SETTINGS_BYTES_MAX ((size_t)1 << 20) // Size of the tree of one file.

static enum evq_status refuse(const struct evq_definition *definition, const char *what,
                              const struct evq_definition_text *token, struct evq_error *err)
{
    char shown[260] = "";

    if (token != NULL) {
        (void)evq_definition_shown(*token, shown, sizeof(shown));
    }
    return evq_definition_refuse(definition, err,
                                 "has beside it a setting %s%s%s%s, and no tokenizer.json (save "
                                 "the tokenizer with save_pretrained)",
                                 what, token != NULL ? " '" : "", shown, token != NULL ? "'" : "");
}

static bool same(struct evq_definition_text a, struct evq_definition_text b)
{
    return a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0;
}

static bool is_added(const struct evq_definition *definition, struct evq_definition_text token)
{
    for (size_t i = 0; i < definition->added_count; i++) {
        if (same(definition->added[i].content, token)) {
            return true;
        }
    }
    return false;
}

/* Adds a token that is given only by its text, with the flags that Transformers uses. */
static enum evq_status add(struct evq_definition *definition, struct evq_definition_text token,
                           bool needed, struct evq_error *err)
{
    if (is_added(definition, token)) {
        return EVQ_OK;
    }
    for (size_t i = 0; i < definition->entry_count; i++) {
        if (same(definition->entries[i].token, token)) {
            const struct evq_definition_added added = {.content = definition->entries[i].token,
                                                       .id = definition->entries[i].id};
            return evq_definition_added(definition, &added, err);
        }
    }
    return needed ? refuse(definition, "naming a token that its vocabulary lacks,", &token, err)
                  : EVQ_OK;
}

/* Adds a token that is given as a text, or as an object with its content. */
static enum evq_status add_named(struct evq_definition *definition,
                                 const struct evq_json_tree *tree, struct evq_error *err)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    const struct evq_json_tree *content = evq_json_tree_get(tree, "content");
    bool flag = false;

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (!evq_json_tree_flag(tree, flags[i], false, &flag) || flag) {
            return refuse(definition, flags[i], content != NULL ? &content->text : NULL, err);
        }
    }
    content = content != NULL ? content : tree;
    return content != NULL && content->kind == EVQ_JSON_STRING && content->text.bytes > 0
               ? add(definition, content->text, true, err)
               : EVQ_OK; // null means that there is none.
}

static enum evq_status add_all(struct evq_definition *definition,
                               const struct evq_json_tree *settings, struct evq_error *err)
{
    static const char *const tokens[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                         "cls_token", "sep_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens",
                                        // The list "additional_special_tokens" comes last, ordered
                                        // by ids.
                                        "added_tokens_decoder"};
    static const char *const flags[] = {"add_bos_token", "add_eos_token", "split_special_tokens"};
    enum evq_status status = EVQ_OK;
    bool flag = false;

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (!evq_json_tree_flag(settings, flags[i], false, &flag) || flag) {
            return refuse(definition, flags[i], NULL, err);
        }
    }
    if (!evq_json_tree_flag(settings, "add_prefix_space", false, &flag) ||
        (flag && definition->steps.scan != EVQ_PRETOKENIZER_GPT2)) {
        return refuse(definition, "add_prefix_space", NULL, err);
    }
    definition->steps.space_before = definition->steps.space_before || flag;
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]) && status == EVQ_OK; i++) {
        status = add_named(definition, evq_json_tree_get(settings, tokens[i]), err);
    }
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        const struct evq_json_tree *list = evq_json_tree_get(settings, lists[i]);
        for (list = list != NULL ? list->first : NULL; list != NULL && status == EVQ_OK;
             list = list->next) {
            status = add_named(definition, list, err);
        }
    }
    return status;
}

/* *ret_alone: the file has added_tokens_decoder, so no other file counts. */
static enum evq_status read_settings(struct evq_definition *definition, struct evq_buffer *file,
                                     const char *path, bool *ret_alone, struct evq_error *err)
{
    struct evq_arena *arena = evq_arena_new(SETTINGS_BYTES_MAX);
    struct evq_json_tree *settings = NULL;
    struct evq_json_token token;
    struct evq_json json;

    enum evq_status status = arena != NULL ? evq_definition_text_check(file, path, err)
                                           : evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
    if (status == EVQ_OK) {
        evq_json_init(&json, (char *)file->data, file->bytes);
        json.python = true;
        status = evq_json_next(&json, &token, err);
    }
    if (status == EVQ_OK) {
        status = evq_json_tree_read(&json, &token, arena, &settings, err);
    }
    if (status == EVQ_OK) {
        *ret_alone = evq_json_tree_get(settings, "added_tokens_decoder") != NULL;
        status = add_all(definition, settings, err);
    } else if (status == EVQ_E_CORRUPT || status == EVQ_E_LIMIT) {
        (void)evq_error_prefix(err, "'%s'", path); // It returns the status that it was given.
    }
    evq_arena_free(arena);
    return status;
}

enum evq_status evq_tokenizer_files_named(const struct evq_tokenizer_files *files,
                                          struct evq_definition *definition, struct evq_error *err)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    static const char end_of_text[] = "<|endoftext|>"; // The token of GPT-2's and Qwen's classes.
    char path[EVQ_TOKENIZER_PATH_MAX + 32];
    char shown[260];
    bool alone = false;

    enum evq_status status = add(
        definition, (struct evq_definition_text){end_of_text, sizeof(end_of_text) - 1}, false, err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == EVQ_OK && !alone; i++) {
        struct evq_buffer file;
        (void)snprintf(path, sizeof(path), "%s%s", files->folder, names[i]); // The path fits.
        evq_error_escape(path, strlen(path), shown, sizeof(shown));
        evq_buffer_init(&file, EVQ_TOKENIZER_FILE_BYTES_MAX);
        status = evq_tokenizer_files_read(files, path, &file, err);
        if (status == EVQ_E_GONE || status == EVQ_E_NOT_FOUND) {
            status = EVQ_OK;
        } else if (status == EVQ_OK) {
            status = read_settings(definition, &file, shown, &alone, err);
        }
        evq_buffer_free(&file);
    }
    return status;
}
