/* Reads the files beside a tokenizer: which tokens begin and end a text, where it is cut, and what
 * tokenizer.json must agree with. */
#include <stdio.h>
#include <string.h>

#include "shared/checkpoint/json.h"
#include "worker/tokenizer/tokenizer_files.h"
#include "worker/tokenizer/tokenizer_internal.h"
#include "worker/tokenizer/unicode.h"

#define NAME_BYTES_MAX 256

enum said { SAID_NOTHING, SAID_NONE, SAID_TOKEN, SAID_ID };

struct end { // What one file says about the beginning or the end of a text.
    enum said said;
    char name[NAME_BYTES_MAX];
    size_t name_bytes;
    uint64_t id;
};

enum flag { // Settings that tokenizer_config.json can repeat from tokenizer.json.
    FLAG_LOWER,
    FLAG_STRIP,
    FLAG_CHINESE,
    FLAG_SPACE,
    FLAG_SPLIT, // A special token inside a text is plain text. tokenizer.json has no such setting.
    FLAG_COUNT
};

static const char *const flags[FLAG_COUNT] = {"do_lower_case", "strip_accents",
                                              "tokenize_chinese_chars", "add_prefix_space",
                                              "split_special_tokens"};

struct special {
    bool present; // The file exists.
    struct end bos, eos;
    char class[NAME_BYTES_MAX]; // tokenizer_class, or "".
    char side; // The first letter of truncation_side; 0: the file does not have it.
    bool told[FLAG_COUNT], on[FLAG_COUNT]; // The file has the flag; the flag is true.
    bool inputs, types; // The file has model_input_names; they contain token_type_ids.
    bool alone; // The file has added_tokens_decoder, so special_tokens_map.json does not count.
};

/* The tokens of these classes if the files do not name any. */
static const struct {
    const char *class, *bos, *eos;
} classes[] = {
    {"GPT2Tokenizer", "<|endoftext|>", "<|endoftext|>"},
    {"GPT2TokenizerFast", "<|endoftext|>", "<|endoftext|>"},
    {"LlamaTokenizer", "<s>", "</s>"},
    {"LlamaTokenizerFast", "<s>", "</s>"},
    {"Qwen2Tokenizer", NULL, "<|endoftext|>"},
    {"Qwen2TokenizerFast", NULL, "<|endoftext|>"},
};

static enum evq_status set_name(const struct evq_json_token *token, const char *path,
                                struct end *end, struct evq_error *err)
{
    if (token->bytes == 0 || token->bytes >= sizeof(end->name)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s': a special token has %zu bytes, expected 1 to %zu", path,
                             token->bytes, sizeof(end->name) - 1);
    }
    memcpy(end->name, token->text, token->bytes);
    end->name_bytes = token->bytes;
    end->said = SAID_TOKEN;
    return EVQ_OK;
}

/* Reads a string, an object with "content", or null. */
static enum evq_status read_token(struct evq_json *json, const char *path, struct end *end,
                                  struct evq_error *err)
{
    struct evq_json_token token;

    enum evq_status status = evq_json_next(json, &token, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (token.kind == EVQ_JSON_STRING) {
        return set_name(&token, path, end, err);
    }
    if (token.kind == EVQ_JSON_NULL) {
        end->said = SAID_NONE;
        return EVQ_OK;
    }
    if (token.kind != EVQ_JSON_OBJECT) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s': a special token is neither text nor an object with content",
                             path);
    }
    while ((status = evq_json_next(json, &token, err)) == EVQ_OK && token.kind == EVQ_JSON_KEY) {
        const bool content = strcmp(token.text, "content") == 0;
        status = evq_json_next(json, &token, err);
        if (status == EVQ_OK) {
            status = content && token.kind == EVQ_JSON_STRING ? set_name(&token, path, end, err)
                                                              : evq_json_skip(json, &token, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return status;
}

static enum evq_status read_side(struct evq_json *json, const char *path, char *side,
                                 struct evq_error *err)
{
    struct evq_json_token token;

    const enum evq_status status = evq_json_next(json, &token, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (token.kind != EVQ_JSON_STRING ||
        (strcmp(token.text, "left") != 0 && strcmp(token.text, "right") != 0)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s': truncation_side is neither left nor right",
                             path);
    }
    *side = token.text[0];
    return EVQ_OK;
}

static enum evq_status read_inputs(struct evq_json *json, struct special *special,
                                   struct evq_error *err)
{
    struct evq_json_token token;

    enum evq_status status = evq_json_next(json, &token, err);
    if (status != EVQ_OK || token.kind != EVQ_JSON_ARRAY) {
        return status == EVQ_OK ? evq_json_skip(json, &token, err) : status;
    }
    special->inputs = true;
    while ((status = evq_json_next(json, &token, err)) == EVQ_OK &&
           token.kind != EVQ_JSON_ARRAY_END) {
        special->types = special->types || (token.kind == EVQ_JSON_STRING &&
                                            strcmp(token.text, "token_type_ids") == 0);
        status = evq_json_skip(json, &token, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return status;
}

/* Reads bos_token_id or eos_token_id of config.json: a number, the first of a list, or null. */
static enum evq_status read_id(struct evq_json *json, struct end *end, struct evq_error *err)
{
    struct evq_json_token token;

    enum evq_status status = evq_json_next(json, &token, err);
    if (status == EVQ_OK && token.kind == EVQ_JSON_ARRAY) {
        status = evq_json_next(json, &token, err);
        end->said = status == EVQ_OK && evq_json_u64(&token, &end->id) ? SAID_ID : SAID_NONE;
        while (status == EVQ_OK && token.kind != EVQ_JSON_ARRAY_END) {
            status = evq_json_skip(json, &token, err);
            if (status == EVQ_OK) {
                status = evq_json_next(json, &token, err);
            }
        }
        return status;
    }
    if (status == EVQ_OK) {
        end->said = evq_json_u64(&token, &end->id) ? SAID_ID : SAID_NONE;
        status = evq_json_skip(json, &token, err);
    }
    return status;
}

static enum evq_status read_member(struct evq_json *json, const char *path, const char *key,
                                   struct special *special, struct evq_error *err)
{
    struct evq_json_token token;

    if (strcmp(key, "bos_token") == 0) {
        return read_token(json, path, &special->bos, err);
    }
    if (strcmp(key, "eos_token") == 0) {
        return read_token(json, path, &special->eos, err);
    }
    if (strcmp(key, "bos_token_id") == 0) {
        return read_id(json, &special->bos, err);
    }
    if (strcmp(key, "eos_token_id") == 0) {
        return read_id(json, &special->eos, err);
    }
    if (strcmp(key, "truncation_side") == 0) {
        return read_side(json, path, &special->side, err);
    }
    if (strcmp(key, "model_input_names") == 0) {
        return read_inputs(json, special, err);
    }
    special->alone = special->alone || strcmp(key, "added_tokens_decoder") == 0;
    enum evq_status status = evq_json_next(json, &token, err);
    for (size_t i = 0; status == EVQ_OK && i < FLAG_COUNT; i++) {
        if (strcmp(key, flags[i]) == 0) {
            special->on[i] = token.kind == EVQ_JSON_TRUE;
            special->told[i] = special->on[i] || token.kind == EVQ_JSON_FALSE;
        }
    }
    if (status == EVQ_OK && strcmp(key, "tokenizer_class") == 0 && token.kind == EVQ_JSON_STRING &&
        token.bytes < sizeof(special->class)) {
        memcpy(special->class, token.text, token.bytes + 1);
        return EVQ_OK;
    }
    return status == EVQ_OK ? evq_json_skip(json, &token, err) : status;
}

static enum evq_status parse(struct evq_buffer *file, const char *path, struct special *special,
                             struct evq_error *err)
{
    struct evq_json json;
    struct evq_json_token token;

    enum evq_status status = evq_tokenizer_json_check_text(file, path, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_json_init(&json, (char *)file->data, file->bytes);
    json.python = true; // config.json is also read this way for the model.
    status = evq_json_next(&json, &token, err);
    if (status == EVQ_OK && token.kind != EVQ_JSON_OBJECT) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s' is not a JSON object", path);
    }
    while (status == EVQ_OK && (status = evq_json_next(&json, &token, err)) == EVQ_OK &&
           token.kind == EVQ_JSON_KEY) {
        status = read_member(&json, path, token.text, special, err);
    }
    if (status == EVQ_OK) {
        status = evq_json_next(&json, &token, err); // Nothing may follow.
    }
    return status;
}

static enum evq_status read_file(const struct evq_tokenizer_files *files, const char *name,
                                 struct special *ret_special, struct evq_error *err)
{
    char path[EVQ_TOKENIZER_PATH_MAX + 32];
    char shown[260];
    struct evq_buffer file;

    *ret_special = (struct special){0};
    (void)snprintf(path, sizeof(path), "%s%s", files->folder, name); // The path fits.
    evq_error_escape(path, strlen(path), shown, sizeof(shown));
    evq_buffer_init(&file, EVQ_TOKENIZER_FILE_BYTES_MAX);
    enum evq_status status = evq_tokenizer_files_read(files, path, &file, err);
    if (status == EVQ_E_GONE || status == EVQ_E_NOT_FOUND) {
        status = EVQ_OK;
    } else if (status == EVQ_OK) {
        ret_special->present = true;
        status = parse(&file, shown, ret_special, err);
        if (status == EVQ_E_CORRUPT && strstr(err != NULL ? err->message : "", shown) == NULL) {
            (void)evq_error_prefix(err, "'%s'", shown); // It returns the status that it was given.
        }
    }
    evq_buffer_free(&file);
    return status;
}

static const char *class_end(const char *class, bool bos)
{
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (strcmp(classes[i].class, class) == 0) {
            return bos ? classes[i].bos : classes[i].eos;
        }
    }
    return NULL;
}

static int32_t resolve(const struct evq_tokenizer *tokenizer, const struct end *end,
                       const char *class_token)
{
    if (end->said == SAID_ID) {
        return end->id < (uint64_t)tokenizer->vocabulary ? (int32_t)end->id : -1;
    }
    if (end->said == SAID_TOKEN) {
        return evq_tokenizer_find(tokenizer, end->name, end->name_bytes);
    }
    return end->said == SAID_NOTHING && class_token != NULL
               ? evq_tokenizer_find(tokenizer, class_token, strlen(class_token))
               : -1;
}

static void prefer(struct end *end, const struct end *other)
{
    if (end->said == SAID_NOTHING) {
        *end = *other;
    }
}

static bool normalizes(const struct evq_tokenizer *tokenizer, enum evq_unicode_step step)
{
    for (size_t i = 0; i < tokenizer->steps.normalizer_count; i++) {
        if (tokenizer->steps.normalizers[i] == EVQ_NORMALIZER_MAP + step) {
            return true;
        }
    }
    return false;
}

/* Whether the tokenizer's class serves every model. */
static bool is_general(const struct special *special)
{
    return strcmp(special->class, "PreTrainedTokenizerFast") == 0 ||
           strcmp(special->class, "TokenizersBackend") == 0;
}

/* Refuses a tokenizer.json that tokenizer_config.json contradicts: Transformers would follow the
 * latter, unless the class serves every model. */
static enum evq_status check_flags(const struct evq_tokenizer *tokenizer, struct special *special,
                                   struct evq_error *err)
{
    const char *class = special->class;
    const bool words = tokenizer->wordpiece.characters_max > 0 && !is_general(special);
    const bool spaces = tokenizer->bpe.byte_level && (strncmp(class, "GPT2Tokenizer", 13) == 0 ||
                                                      strncmp(class, "RobertaTokenizer", 16) == 0);
    const bool matters[FLAG_COUNT] = {words, words, words, spaces, false};
    const bool has[FLAG_COUNT] = {
        normalizes(tokenizer, EVQ_UNICODE_LOWERCASE),
        normalizes(tokenizer, EVQ_UNICODE_STRIP_NONSPACING),
        normalizes(tokenizer, EVQ_UNICODE_APART),
        tokenizer->steps.space_before,
        false,
    };

    if (special->on[FLAG_SPLIT]) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tokenizer_config.json beside '%s': split_special_tokens is true, "
                             "expected false",
                             tokenizer->path);
    }
    if (!special->told[FLAG_STRIP]) {
        special->told[FLAG_STRIP] = special->told[FLAG_LOWER];
        special->on[FLAG_STRIP] = special->on[FLAG_LOWER];
    }
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        if (matters[i] && special->told[i] && special->on[i] != has[i]) {
            return evq_error_set(err, EVQ_E_UNSUPPORTED,
                                 "'%s' and tokenizer_config.json beside it differ in %s: save the "
                                 "tokenizer again with Transformers (save_pretrained)",
                                 tokenizer->path, flags[i]);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_tokenizer_files_set_bos_eos(const struct evq_tokenizer_files *files,
                                                struct evq_tokenizer *tokenizer,
                                                struct evq_error *err)
{
    struct special special;
    struct special map = {0};
    struct special config;

    enum evq_status status = read_file(files, "tokenizer_config.json", &special, err);
    if (status == EVQ_OK && !special.alone) {
        status = read_file(files, "special_tokens_map.json", &map, err);
    }
    if (status == EVQ_OK) {
        status = read_file(files, "config.json", &config, err);
    }
    if (status == EVQ_OK) {
        status = check_flags(tokenizer, &special, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    tokenizer->typeless = special.inputs ? !special.types : is_general(&special);
    if (special.side != '\0') {
        tokenizer->cuts_left = special.side == 'l';
    }
    prefer(&map.bos, &special.bos);
    prefer(&map.eos, &special.eos);
    if (!special.present && !map.present) {
        map = special = config;
    }
    tokenizer->bos = resolve(tokenizer, &map.bos, class_end(special.class, true));
    tokenizer->eos = resolve(tokenizer, &map.eos, class_end(special.class, false));
    return EVQ_OK;
}
