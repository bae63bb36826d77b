/*
 * GPT-2: learned positions, layer norms, and matrices stored as [in, out] by Conv1D. Also nanoGPT's
 * form of it: matrices stored by Linear, GELU with erf, and optionally no biases.
 */
#include <limits.h>

#include "worker/models/decoder.h"

static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", NULL};

static const struct evq_decoder_names names = {
    .inside = "transformer.",
    .embedding = "wte",
    .positions = "wpe",
    .layer = "h.",
    .attention_norm = "ln_1",
    .qkv = "attn.c_attn",
    .attention_out = "attn.c_proj",
    .mlp_norm = "ln_2",
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
    .final_norm = "ln_f",
    .head = "lm_head",
    .buffers = buffers,
    .conv1d = true,
};

static void gpt2_read(struct evq_model_config *config, struct evq_arena *arena,
                      struct evq_decoder *decoder)
{
    // Only nanoGPT uses this name. The hyper-parameters of a Lightning module may have one that
    // means something else.
    const bool nano = evq_model_config_has(config, "block_size");
    const bool named =
        !evq_model_config_told(config, "block_size") && evq_model_config_has(config, "n_positions");
    const char *context = nano && !named ? "block_size" : "n_positions";

    (void)arena; // GPT-2 has no rotary positions and no windows.
    decoder->layers = (int32_t)evq_model_config_integer(config, "n_layer", 1, 10000, 0);
    decoder->hidden = (int32_t)evq_model_config_integer(config, "n_embd", 1, 1 << 24, 0);
    decoder->heads = (int32_t)evq_model_config_integer(config, "n_head", 1, 1 << 16, 0);
    decoder->kv_heads = decoder->heads;
    decoder->head_dim =
        decoder->hidden % decoder->heads == 0 ? decoder->hidden / decoder->heads : 0;
    decoder->inner = (int32_t)evq_model_config_integer(config, "n_inner", 1, 1 << 26,
                                                       4 * (int64_t)decoder->hidden);
    decoder->vocabulary = (int32_t)evq_model_config_integer(config, "vocab_size", 1, INT_MAX, 0);
    decoder->context = (int32_t)evq_model_config_integer(config, context, 1, 1 << 30, 0);
    decoder->activation =
        evq_decoder_activation(config, "activation_function", nano ? "gelu" : "gelu_new");
    decoder->epsilon = (float)evq_model_config_real(config, "layer_norm_epsilon", 1e-5);
    decoder->layer_norm = true;
    decoder->norm_bias = decoder->qkv_bias = decoder->attention_bias = decoder->mlp_bias =
        evq_model_config_flag(config, "bias", true);
    decoder->tied = evq_model_config_flag(config, "tie_word_embeddings", true);
    decoder->scale_by_layer =
        evq_model_config_flag(config, "scale_attn_by_inverse_layer_idx", false);
    if (!evq_model_config_flag(config, "scale_attn_weights", true)) {
        decoder->attention_scale = 1.0f;
    }
    if (evq_model_config_flag(config, "add_cross_attention", false)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "add_cross_attention is true, expected a plain decoder");
    }
}

static const char *const architectures[] = {"GPT2LMHeadModel", "GPT2Model", "gpt2", NULL};
static const char *const keys[] = {"activation_function",
                                   "add_cross_attention",
                                   "bias",
                                   "block_size",
                                   "is_causal",
                                   "layer_norm_epsilon",
                                   "n_embd",
                                   "n_head",
                                   "n_inner",
                                   "n_layer",
                                   "n_positions",
                                   "scale_attn_by_inverse_layer_idx",
                                   "scale_attn_weights",
                                   "tie_word_embeddings",
                                   "vocab_size",
                                   NULL};
static const struct evq_decoder_kind kind = {.names = &names, .keys = keys, .read = gpt2_read};

const struct evq_model_family evq_model_gpt2 = {
    .name = "gpt2", .architectures = architectures, .decoder = &kind};
