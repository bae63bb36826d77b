/*
 * Llama 2 and 3, and Falcon 3: RMS norms, rotary positions, grouped heads, and a gated feed-forward
 * block.
 */
#include "worker/models/families/llama.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

const char *const evq_llama_buffers[] = {"rotary_emb.inv_freq", NULL};

/* Windows are missing here: families that have them add their keys. */
const char *const evq_llama_keys[] = {"attention_bias",
                                      "head_dim",
                                      "hidden_act",
                                      "hidden_size",
                                      "intermediate_size",
                                      "is_causal",
                                      "max_position_embeddings",
                                      "mlp_bias",
                                      "num_attention_heads",
                                      "num_hidden_layers",
                                      "num_key_value_heads",
                                      "original_max_position_embeddings",
                                      "partial_rotary_factor",
                                      "rms_norm_eps",
                                      "rope_parameters",
                                      "rope_scaling",
                                      "rope_theta",
                                      "tie_word_embeddings",
                                      "vocab_size",
                                      NULL};

const struct evq_decoder_names evq_llama_names = {
    EVQ_LLAMA_FRAME, EVQ_LLAMA_ATTENTION, EVQ_LLAMA_MLP, .attention_norm = "input_layernorm",
    .mlp_norm = "post_attention_layernorm"};

void evq_llama_read(struct evq_model_config *config, const struct evq_llama_defaults *defaults,
                    struct evq_decoder *decoder)
{
    const int64_t hidden = evq_model_config_integer(config, "hidden_size", 1, 1 << 24, 0);
    const int64_t heads = evq_model_config_integer(config, "num_attention_heads", 1, 1 << 16, 0);
    const bool equal =
        defaults->kv_heads == 0 || evq_model_config_null(config, "num_key_value_heads");
    const bool divided = defaults->head_dim == 0 || evq_model_config_null(config, "head_dim");
    const int64_t kv_heads = equal ? heads : defaults->kv_heads;
    // If nothing tells it, the decoder gets 0 and refuses it.
    const int64_t head_dim =
        divided ? (hidden % heads == 0 ? hidden / heads : 0) : defaults->head_dim;

    decoder->hidden = (int32_t)hidden;
    decoder->heads = (int32_t)heads;
    decoder->layers = (int32_t)evq_model_config_integer(config, "num_hidden_layers", 1, 10000, 0);
    decoder->kv_heads =
        (int32_t)evq_model_config_integer(config, "num_key_value_heads", 1, 1 << 16, kv_heads);
    decoder->head_dim = (int32_t)evq_model_config_integer(config, "head_dim", 0, 1 << 16, head_dim);
    decoder->inner = (int32_t)evq_model_config_integer(config, "intermediate_size", 1, 1 << 26, 0);
    decoder->vocabulary = (int32_t)evq_model_config_integer(config, "vocab_size", 1, INT_MAX, 0);
    decoder->context =
        (int32_t)evq_model_config_integer(config, "max_position_embeddings", 1, 1 << 30, 0);
    decoder->epsilon = (float)evq_model_config_real(
        config, defaults->epsilon_key != NULL ? defaults->epsilon_key : "rms_norm_eps",
        defaults->epsilon != 0.0 ? defaults->epsilon : 1e-6);
    decoder->activation = evq_decoder_activation(
        config, defaults->activation_key != NULL ? defaults->activation_key : "hidden_act",
        defaults->activation != NULL ? defaults->activation : "silu");
    decoder->gated = true;
    decoder->tied = evq_model_config_flag(config, "tie_word_embeddings", defaults->tied);
    decoder->qkv_bias = decoder->attention_bias =
        evq_model_config_flag(config, "attention_bias", defaults->attention_bias);
    decoder->mlp_bias = evq_model_config_flag(config, "mlp_bias", false);
}

void evq_llama_read_experts(struct evq_model_config *config, int64_t experts, int64_t of_token,
                            struct evq_decoder *decoder)
{
    const int64_t local =
        evq_model_config_integer(config, "num_local_experts", 1, INT_MAX, experts);
    const int64_t number = evq_model_config_integer(config, "num_experts", 1, INT_MAX, local);

    if (number != local && evq_model_config_has(config, "num_local_experts")) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "num_experts is %lld, but num_local_experts is %lld",
                                (long long)number, (long long)local);
    }
    decoder->experts = (int32_t)number;
    decoder->expert_count =
        (int32_t)evq_model_config_integer(config, "num_experts_per_tok", 1, INT_MAX, of_token);
    decoder->expert_inner = decoder->inner;
}

static bool layer_slides(struct evq_model_config *config, int32_t layer,
                         const struct evq_llama_windows *windows)
{
    char name[40];

    (void)snprintf(name, sizeof(name), "layer_types.%d", (int)layer);
    if (!evq_model_config_has(config, "layer_types.0")) {
        return layer >= windows->first &&
               (windows->pattern == 0 || (layer + 1) % windows->pattern != 0);
    }
    const char *type = evq_model_config_text(config, name, NULL);
    const bool slides = strcmp(type, "sliding_attention") == 0;
    if (!slides && strcmp(type, "full_attention") != 0) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "%s is '%.40s', expected full_attention or sliding_attention", name,
                                type);
    }
    return slides;
}

void evq_llama_read_windows(struct evq_model_config *config, struct evq_arena *arena,
                            const struct evq_llama_windows *windows, struct evq_decoder *decoder)
{
    const bool missing = !evq_model_config_has(config, "sliding_window");

    if (evq_model_config_null(config, "sliding_window") || (missing && windows->window == 0)) {
        return;
    }
    bool *windowed = evq_arena_array(arena, (size_t)decoder->layers, sizeof(*windowed));

    if (windowed == NULL) {
        evq_model_config_refuse(config, EVQ_E_NOMEM, "windows of %d layers", (int)decoder->layers);
        return;
    }
    for (int32_t layer = 0; layer < decoder->layers; layer++) {
        windowed[layer] = layer_slides(config, layer, windows);
    }
    decoder->window =
        (int32_t)evq_model_config_integer(config, "sliding_window", 1, INT_MAX, windows->window);
    decoder->windowed = windowed;
}

static void llama_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {0};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

static const char *const architectures[] = {"LlamaForCausalLM", "LlamaModel", "llama", NULL};
static const struct evq_decoder_kind kind = {
    .names = &evq_llama_names, .keys = evq_llama_keys, .read = llama_read};

const struct evq_model_family evq_model_llama = {
    .name = "llama", .architectures = architectures, .decoder = &kind};
