/*
 * StableLM: a Llama with layer norms instead of RMS norms, in which a part of each head rotates.
 * Some models norm each head of queries and keys, and some have parallel blocks with one norm.
 */
#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME,
                                               EVQ_LLAMA_MLP,
                                               .attention_norm = "input_layernorm",
                                               .query = "self_attn.q_proj",
                                               .key = "self_attn.k_proj",
                                               .value = "self_attn.v_proj",
                                               .query_norm = "self_attn.q_layernorm.norms.",
                                               .key_norm = "self_attn.k_layernorm.norms.",
                                               .attention_out = "self_attn.o_proj",
                                               .mlp_norm = "post_attention_layernorm"};

static void stablelm_read(struct evq_model_config *config, struct evq_arena *arena,
                          struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 32, .epsilon = 1e-5, .epsilon_key = "layer_norm_eps"};
    static const struct evq_rope_form form = {.part = 0.25};

    evq_llama_read(config, &defaults, decoder);
    decoder->layer_norm = decoder->norm_bias = true;
    decoder->qkv_bias = evq_model_config_flag(config, "use_qkv_bias", false);
    decoder->parallel = decoder->shared_norm =
        evq_model_config_flag(config, "use_parallel_residual", false);
    decoder->qk_norm =
        evq_model_config_flag(config, "qk_layernorm", false) ? EVQ_QK_NORM_EACH : EVQ_QK_NORM_NONE;
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
}

static const char *const architectures[] = {"StableLmForCausalLM", "StableLmModel", "stablelm",
                                            NULL};
// Unlike a Llama, a StableLM does not read head_dim, attention_bias and mlp_bias in Transformers.
static const char *const keys[] = {"hidden_act",
                                   "hidden_size",
                                   "intermediate_size",
                                   "is_causal",
                                   "layer_norm_eps",
                                   "max_position_embeddings",
                                   "num_attention_heads",
                                   "num_hidden_layers",
                                   "num_key_value_heads",
                                   "original_max_position_embeddings",
                                   "partial_rotary_factor",
                                   "qk_layernorm",
                                   "rope_parameters",
                                   "rope_scaling",
                                   "rope_theta",
                                   "tie_word_embeddings",
                                   "use_parallel_residual",
                                   "use_qkv_bias",
                                   "vocab_size",
                                   NULL};
static const struct evq_decoder_kind kind = {.names = &names, .keys = keys, .read = stablelm_read};

const struct evq_model_family evq_model_stablelm = {
    .name = "stablelm", .architectures = architectures, .own_types_only = true, .decoder = &kind};
