#include "worker/models/config_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys that cannot change a number: labels, saving, generation, training, and choices of an
 * implementation. */
static const char *const harmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token",
    "cache_implementation",
    "chunk_size_feed_forward",
    "custom_pipelines",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token",
    "experts_implementation",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "loss_type",
    "max_length",
    "max_sequence_length",
    "max_window_layers", // It matters only together with a window, which has a key of its own.
    "min_length",
    "model_max_length",
    "model_type",
    "n_ctx",
    "n_special",
    "name_or_path",
    "neftune_noise_alpha",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "output_scores",
    "pad_token",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config", // evq_quantised_read() reads it in every family.
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "router_aux_loss_coef", // This and the next are used in training.
    "router_jitter_noise",
    "return_dict_in_generate",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "trust_remote_code",
    "typical_p",
    "unk_token",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention",
    "use_flash_attention_2",
    "use_flash_attn",
    NULL};

/* The same by endings of names: bos_token_id, attention_dropout, attn_pdrop. */
static const char *const harmless_ends[] = {"_token_id", "dropout", "_pdrop", "_dropout_prob",
                                            NULL};

static const struct { // Keys of other models, and the value with which each changes nothing.
    const char *key, *value;
} neutral[] = {
    {"add_cross_attention", "false"},
    {"attention_out_bias", "false"},
    {"embedding_multiplier", "1"},
    {"is_encoder_decoder", "false"},
    {"is_moe", "false"},
    {"logit_scale", "1"},
    {"logits_scaling", "1"},
    {"position_embedding_type", "absolute"},
    {"qk_layernorm", "false"},
    {"residual_multiplier", "1"},
    {"rope_interleave", "false"},
    {"rope_interleaved", "false"},
    {"scale_emb", "1"},
    {"use_bias", "false"},
    {"use_bidirectional_attention", "false"},
    {"use_dynamic_ntk", "false"},
    {"use_logn_attn", "false"},
    {"use_mrope", "false"},
    {"use_parallel_residual", "false"},
    {"use_qk_norm", "false"},
    {"use_sliding_window", "false"},
};

/* Keys inside rope_parameters and rope_scaling. */
static const char *const rope[] = {"attention_factor",
                                   "beta_fast",
                                   "beta_slow",
                                   "factor",
                                   "finetuned",
                                   "high_freq_factor",
                                   "llama_4_scaling_beta",
                                   "long_factor",
                                   "low_freq_factor",
                                   "max_position_embeddings",
                                   "mscale",
                                   "mscale_all_dim",
                                   "original_max_position_embeddings",
                                   "partial_rotary_factor",
                                   "rope_theta",
                                   "rope_type",
                                   "short_factor",
                                   "truncate",
                                   "type",
                                   NULL};

static const struct {
    const char *model_type, *why;
} others[] = {
    {"ernie4_5", "its rotary positions turn neighbours instead of halves"},
    {"helium", "its rotary positions turn neighbours instead of halves"},
};

static bool is_in(const char *key, const char *const *keys)
{
    for (; keys != NULL && *keys != NULL; keys++) {
        if (strcmp(key, *keys) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_harmless(const char *key)
{
    const size_t bytes = strlen(key);

    for (const char *const *end = harmless_ends; *end != NULL; end++) {
        const size_t end_bytes = strlen(*end);
        if (bytes >= end_bytes && strcmp(key + bytes - end_bytes, *end) == 0) {
            return true;
        }
    }
    return is_in(key, harmless);
}

static bool is_neutral(const struct evq_model_value *value)
{
    for (size_t i = 0; i < sizeof(neutral) / sizeof(neutral[0]); i++) {
        if (strcmp(value->name, neutral[i].key) == 0) {
            return value->kind == EVQ_MODEL_VALUE_NUMBER
                       ? strtod(value->text, NULL) == strtod(neutral[i].value, NULL)
                       : strcmp(value->text, neutral[i].value) == 0;
        }
    }
    return false;
}

/* Whether a key inside rope_parameters is known. Some are lists, and some are in a group for a type
 * of layer. */
static bool is_of_rope(const char *key)
{
    static const char *const layers[] = {"full_attention", "sliding_attention"};
    char name[64];

    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
        const size_t bytes = strlen(layers[i]);
        if (strncmp(key, layers[i], bytes) == 0 && (key[bytes] == '.' || key[bytes] == '\0')) {
            key += bytes + (key[bytes] == '.');
            break;
        }
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(key, "."), key);
    return key[0] == '\0' || is_in(name, rope);
}

static void refuse(struct evq_model_config *config, const char *family,
                   const struct evq_model_value *value)
{
    char name[80];
    char text[40];

    evq_error_escape(value->name, strlen(value->name), name, sizeof(name));
    evq_error_escape(value->text, strlen(value->text), text, sizeof(text));
    evq_model_config_refuse(
        config, EVQ_E_UNSUPPORTED,
        "%s is %s, and the %s family does not know this key, which may change the numbers: "
        "evaluate the checkpoint with a command or persistent evaluator; if the key changes "
        "nothing, name a configuration without it (model: {config_path: ...})",
        name, text, family);
}

/* Whether the value is inside the group that began last. */
static bool is_inside(const struct evq_model_value *value, const struct evq_model_value *group)
{
    const size_t bytes = group != NULL ? strlen(group->name) : 0;

    return bytes > 0 && strncmp(value->name, group->name, bytes) == 0 && value->name[bytes] == '.';
}

void evq_config_keys_check(struct evq_model_config *config, const char *family,
                           const char *const *keys, const char *const *more)
{
    const struct evq_model_value *values = NULL;
    const struct evq_model_value *group = NULL; // The top level.
    bool turns = false;                         // The group describes rotary positions.
    const size_t count = evq_model_config_values(config, &values);

    for (size_t i = 0; i < count; i++) {
        const struct evq_model_value *value = &values[i];
        const bool inside = is_inside(value, group);
        const char *key = inside ? value->name + strlen(group->name) + 1 : value->name;
        if (!inside) {
            group = value->kind == EVQ_MODEL_VALUE_GROUP ? value : NULL;
            turns = group != NULL &&
                    (strcmp(key, "rope_parameters") == 0 || strcmp(key, "rope_scaling") == 0);
        }
        const bool empty = value->kind == EVQ_MODEL_VALUE_NULL ||
                           (value->kind == EVQ_MODEL_VALUE_GROUP &&
                            (i + 1 == count ||
                             strncmp(values[i + 1].name, value->name, strlen(value->name)) != 0 ||
                             values[i + 1].name[strlen(value->name)] != '.'));
        const bool known =
            inside ? !turns || is_of_rope(key)
                   : is_in(key, keys) || is_in(key, more) || is_harmless(key) || is_neutral(value);
        if (!known && !empty) {
            refuse(config, family, value);
            return;
        }
    }
}

const char *evq_config_keys_other(const char *model_type)
{
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strcmp(others[i].model_type, model_type) == 0) {
            return others[i].why;
        }
    }
    return NULL;
}
