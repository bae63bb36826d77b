#include "shared/checkpoint/adapter/adapter_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/json.h"

#define ALPHAS_MAX 4096

/* Settings that describe how the adapter was trained, not what it contains. */
static const char *const harmless[] = {
    "auto_mapping",      "base_model_class",
    "corda_config",      "eva_config",
    "exclude_modules",   "inference_mode",
    "layers_pattern",    "layers_to_transform",
    "loftq_config",      "lora_dropout",
    "lora_ga_config",    "megatron_core",
    "merge_weights",     "modules_to_save",
    "parent_library",    "peft_version",
    "qalora_group_size", "r",
    "rank_pattern",      "revision",
    "runtime_config",    "target_modules",
    "task_type",         "velora_config",
};

struct reader {
    struct evq_json json;
    struct evq_arena *arena;
    struct evq_adapter_config *config;
    const char *unknown; // The first setting that is not understood; NULL: none.
    bool has_type;
    bool has_alpha;
    struct evq_error *err;
};

static enum evq_status not_merged(struct reader *reader, const char *key)
{

    return evq_error_set(
        reader->err, EVQ_E_UNSUPPORTED,
        "adapter_config.json sets '%.160s', which is not merged: merge it first, in a "
        "`prepare` command",
        key);
}

static enum evq_status wrong_kind(struct reader *reader, const char *key, const char *expected)
{
    return evq_error_set(reader->err, EVQ_E_CORRUPT, "adapter_config.json: '%s' is no %s", key,
                         expected);
}

static enum evq_status read_number(struct reader *reader, const char *key, double *ret_value)
{
    struct evq_json_token token;
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);
    char digits[64];

    if (status != EVQ_OK) {
        return status;
    }
    if (token.kind != EVQ_JSON_NUMBER || token.bytes >= sizeof(digits)) {
        return wrong_kind(reader, key, "number");
    }
    memcpy(digits, token.text, token.bytes);
    digits[token.bytes] = '\0';
    const double value = strtod(digits, NULL);
    if (!isfinite(value)) {
        return wrong_kind(reader, key, "finite number");
    }
    *ret_value = value;
    return EVQ_OK;
}

static enum evq_status read_bool(struct reader *reader, const char *key, bool *ret_value)
{
    struct evq_json_token token;
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);

    if (status == EVQ_OK && token.kind != EVQ_JSON_TRUE && token.kind != EVQ_JSON_FALSE &&
        token.kind != EVQ_JSON_NULL) {
        return wrong_kind(reader, key, "boolean");
    }
    *ret_value = status == EVQ_OK && token.kind == EVQ_JSON_TRUE;
    return status;
}

/* *ret_text is NULL if the value is null. */
static enum evq_status read_text(struct reader *reader, const char *key, const char **ret_text)
{
    struct evq_json_token token;
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);

    *ret_text = NULL;
    if (status != EVQ_OK || token.kind == EVQ_JSON_NULL) {
        return status;
    }
    if (token.kind != EVQ_JSON_STRING) {
        return wrong_kind(reader, key, "text");
    }
    *ret_text = evq_arena_strdup(reader->arena, token.text);
    return *ret_text == NULL ? evq_error_set(reader->err, EVQ_E_NOMEM, "adapter_config.json")
                             : EVQ_OK;
}

/* Whether a pattern consists of names and dots only. Patterns are regular expressions, and no
 * others are understood. */
static bool plain_pattern(const char *pattern)
{
    pattern += *pattern == '^' ? 1 : 0;
    for (const char *at = pattern; *at != '\0'; at++) {
        const char c = *at;
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.') {
            return false;
        }
    }
    return *pattern != '\0';
}

static enum evq_status read_alphas(struct reader *reader)
{
    struct evq_json_token token;
    struct evq_adapter_config *config = reader->config;
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);

    if (status != EVQ_OK || token.kind == EVQ_JSON_NULL) {
        return status;
    }
    if (token.kind != EVQ_JSON_OBJECT) {
        return wrong_kind(reader, "alpha_pattern", "object");
    }
    config->alphas = evq_arena_array(reader->arena, ALPHAS_MAX, sizeof(*config->alphas));
    if (config->alphas == NULL) {
        return evq_error_set(reader->err, EVQ_E_NOMEM, "adapter_config.json");
    }
    for (;;) {
        status = evq_json_next(&reader->json, &token, reader->err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_OBJECT_END) {
            return status;
        }
        if (config->alpha_count == ALPHAS_MAX) {
            return evq_error_set(reader->err, EVQ_E_LIMIT, "alpha_pattern has more than %d entries",
                                 ALPHAS_MAX);
        }
        struct evq_adapter_alpha *alpha = &config->alphas[config->alpha_count++];
        if (!plain_pattern(token.text)) {
            return evq_error_set(
                reader->err, EVQ_E_UNSUPPORTED,
                "alpha_pattern holds '%.160s': of regular expressions only names and "
                "dots are understood",
                token.text);
        }
        alpha->pattern = evq_arena_strdup(reader->arena, token.text);
        if (alpha->pattern == NULL) {
            return evq_error_set(reader->err, EVQ_E_NOMEM, "adapter_config.json");
        }
        status = read_number(reader, "alpha_pattern", &alpha->alpha);
        if (status != EVQ_OK) {
            return status;
        }
    }
}

static enum evq_status read_type(struct reader *reader)
{
    const char *type = NULL;
    enum evq_status status = read_text(reader, "peft_type", &type);

    reader->has_type = true;
    if (status == EVQ_OK && (type == NULL || strcmp(type, "LORA") != 0)) {
        return evq_error_set(
            reader->err, EVQ_E_UNSUPPORTED,
            "an adapter of type '%.160s' is not merged, only LORA: merge it first, in "
            "a `prepare` command",
            type == NULL ? "null" : type);
    }
    return status;
}

/* The initial values of A and B matter only if the base was changed together with them. */
static enum evq_status read_initial(struct reader *reader)
{
    static const char *const kept[] = {"gaussian", "eva", "orthogonal"};
    struct evq_json_token token;
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);

    if (status != EVQ_OK || token.kind == EVQ_JSON_TRUE || token.kind == EVQ_JSON_FALSE ||
        token.kind == EVQ_JSON_NULL) {
        return status;
    }
    for (size_t i = 0; token.kind == EVQ_JSON_STRING && i < sizeof(kept) / sizeof(kept[0]); i++) {
        if (strcmp(token.text, kept[i]) == 0) {
            return EVQ_OK;
        }
    }
    return evq_error_set(
        reader->err, EVQ_E_UNSUPPORTED,
        "init_lora_weights is '%.*s', which may change the base too: convert it to a "
        "plain LoRA when saving, or merge it first, in a `prepare` command",
        token.bytes < 160 ? (int)token.bytes : 160, token.text == NULL ? "" : token.text);
}

static enum evq_status read_bias(struct reader *reader)
{
    const char *bias = NULL;
    enum evq_status status = read_text(reader, "bias", &bias);

    // Trained biases are in the file and replace those of the base.
    if (status == EVQ_OK && bias != NULL && strcmp(bias, "none") != 0 && strcmp(bias, "all") != 0 &&
        strcmp(bias, "lora_only") != 0) {
        reader->unknown = "bias";
    }
    return status;
}

/* A setting of null, false, {} or [] counts as absent. Any other value of an unknown setting is
 * reported at the end, because the adapter's type, which explains more, may come later. */
static enum evq_status read_other(struct reader *reader, const char *key)
{
    struct evq_json_token token;
    bool known = false;

    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++) {
        known = known || strcmp(key, harmless[i]) == 0;
    }
    // The reader may overwrite the key's text.
    const char *kept = evq_arena_strdup(reader->arena, key);
    if (kept == NULL) {
        return evq_error_set(reader->err, EVQ_E_NOMEM, "adapter_config.json");
    }
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);
    if (status != EVQ_OK || token.kind == EVQ_JSON_NULL || token.kind == EVQ_JSON_FALSE) {
        return status;
    }
    bool empty = token.kind == EVQ_JSON_OBJECT || token.kind == EVQ_JSON_ARRAY;
    const size_t outside = reader->json.depth - (empty ? 1 : 0);
    for (bool first = true; status == EVQ_OK && reader->json.depth > outside; first = false) {
        status = evq_json_next(&reader->json, &token, reader->err);
        empty = empty && first && reader->json.depth == outside;
    }
    if (!known && !empty && reader->unknown == NULL) {
        reader->unknown = kept;
    }
    return status;
}

static enum evq_status read_member(struct reader *reader, const char *key)
{
    struct evq_adapter_config *config = reader->config;
    bool on = false;
    enum evq_status status;

    if (strcmp(key, "peft_type") == 0) {
        return read_type(reader);
    }
    if (strcmp(key, "base_model_name_or_path") == 0) {
        return read_text(reader, key, &config->base);
    }
    if (strcmp(key, "lora_alpha") == 0) {
        reader->has_alpha = true;
        return read_number(reader, "lora_alpha", &config->alpha);
    }
    if (strcmp(key, "use_rslora") == 0) {
        return read_bool(reader, "use_rslora", &config->rank_stabilized);
    }
    if (strcmp(key, "fan_in_fan_out") == 0) {
        return read_bool(reader, "fan_in_fan_out", &config->fan_in_fan_out);
    }
    if (strcmp(key, "use_dora") == 0) {
        status = read_bool(reader, "use_dora", &on);
        return status == EVQ_OK && on
                   ? evq_error_set(reader->err, EVQ_E_UNSUPPORTED,
                                   "a DoRA adapter (use_dora) is not merged: merge it first, in a "
                                   "`prepare` command")
                   : status;
    }
    if (strcmp(key, "alpha_pattern") == 0) {
        return read_alphas(reader);
    }
    if (strcmp(key, "init_lora_weights") == 0) {
        return read_initial(reader);
    }
    return strcmp(key, "bias") == 0 ? read_bias(reader) : read_other(reader, key);
}

static enum evq_status read_members(struct reader *reader)
{
    struct evq_json_token token;
    enum evq_status status = evq_json_next(&reader->json, &token, reader->err);

    if (status == EVQ_OK && token.kind != EVQ_JSON_OBJECT) {
        return evq_error_set(reader->err, EVQ_E_CORRUPT, "adapter_config.json is not an object");
    }
    while (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, reader->err);
        if (status != EVQ_OK || token.kind == EVQ_JSON_OBJECT_END) {
            break;
        }
        status = read_member(reader, token.text);
    }
    if (status == EVQ_OK) {
        status = evq_json_next(&reader->json, &token, reader->err); // Only white space may follow.
    }
    if (status == EVQ_OK && reader->has_type && reader->unknown != NULL) {
        return not_merged(reader, reader->unknown);
    }
    if (status == EVQ_OK && (!reader->has_type || !reader->has_alpha)) {
        status = evq_error_set(reader->err, EVQ_E_CORRUPT, "adapter_config.json has no '%s'",
                               reader->has_type ? "lora_alpha" : "peft_type");
    }
    return status;
}

enum evq_status evq_adapter_config_read(char *text, size_t bytes, struct evq_arena *arena,
                                        struct evq_adapter_config *ret_config,
                                        struct evq_error *err)
{
    struct evq_adapter_config config = {.base = NULL};
    struct reader reader = {.arena = arena, .config = &config, .err = err};

    const size_t valid = evq_utf8_valid(text, bytes);
    if (valid < bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "adapter_config.json: byte %zu is not UTF-8",
                             valid);
    }
    evq_json_init(&reader.json, text, bytes);
    const enum evq_status status = read_members(&reader);
    if (status != EVQ_OK && reader.json.ended) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "adapter_config.json ends early: still being written");
    }
    if (status == EVQ_OK) {
        *ret_config = config;
    }
    return status;
}

/* Whether text matches pattern, in which a dot stands for any character. */
static bool same(const char *pattern, const char *text)
{
    for (; *pattern != '\0' && *text != '\0'; pattern++, text++) {
        if (*pattern != '.' && *pattern != *text) {
            return false;
        }
    }
    return *pattern == '\0' && *text == '\0';
}

/* Matches the end of a module's name, from a dot or from its beginning, as PEFT does. */
static bool matches(const char *pattern, const char *module)
{
    if (*pattern == '^') {
        return same(pattern + 1, module);
    }
    for (const char *at = module; at != NULL; at = strchr(at, '.')) {
        at += at == module ? 0 : 1;
        if (same(pattern, at)) {
            return true;
        }
    }
    return false;
}

double evq_adapter_config_scaling(const struct evq_adapter_config *config, const char *module,
                                  long long rank)
{
    double alpha = config->alpha;

    for (size_t i = 0; i < config->alpha_count; i++) {
        if (matches(config->alphas[i].pattern, module)) {
            alpha = config->alphas[i].alpha;
            break;
        }
    }
    return config->rank_stabilized ? alpha / sqrt((double)rank) : alpha / (double)rank;
}
