/*
 * GPT-NeoX, and Pythia: layer norms with biases, one tensor with the queries, keys and values of
 * one head after another, a part of each head rotated, and both blocks beside each other.
 */
#include "worker/models/families/llama.h"

static const char *const buffers[] = {".attention.bias", ".attention.masked_bias",
                                      "rotary_emb.inv_freq", NULL};

static const struct evq_decoder_names names = {
    .inside = "gpt_neox.",
    .embedding = "embed_in",
    .layer = "layers.",
    .attention_norm = "input_layernorm",
    .qkv = "attention.query_key_value",
    .attention_out = "attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
    .final_norm = "final_layer_norm",
    .head = "embed_out",
    .other_head = "lm_head",
    .buffers = buffers,
};

static void gpt_neox_read(struct evq_model_config *config, struct evq_arena *arena,
                          struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.attention_bias = true,
                                                       .epsilon = 1e-5,
                                                       .epsilon_key = "layer_norm_eps",
                                                       .activation = "gelu"};
    static const struct evq_rope_form form = {
        .part = 0.25, .part_key = "rotary_pct", .theta_key = "rotary_emb_base"};

    evq_llama_read(config, &defaults, decoder);
    decoder->gated = false;
    decoder->layer_norm = decoder->norm_bias = decoder->mlp_bias = true;
    decoder->qkv_mixed = true;
    decoder->parallel = evq_model_config_flag(config, "use_parallel_residual", true);
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
}

static const char *const architectures[] = {"GPTNeoXForCausalLM", "GPTNeoXModel", "gpt_neox", NULL};
static const char *const keys[] = {"attention_bias",
                                   "hidden_act",
                                   "hidden_size",
                                   "intermediate_size",
                                   "is_causal",
                                   "layer_norm_eps",
                                   "max_position_embeddings",
                                   "num_attention_heads",
                                   "num_hidden_layers",
                                   "rope_parameters",
                                   "rope_scaling",
                                   "rotary_emb_base",
                                   "rotary_pct",
                                   "tie_word_embeddings",
                                   "use_parallel_residual",
                                   "vocab_size",
                                   NULL};
static const struct evq_decoder_kind kind = {.names = &names, .keys = keys, .read = gpt_neox_read};

const struct evq_model_family evq_model_gpt_neox = {
    .name = "gpt_neox", .architectures = architectures, .decoder = &kind};
