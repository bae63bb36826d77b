/*
 * GLM and GLM-4 (dense): a Llama that rotates neighbouring pairs of half of each head, with one
 * tensor for gate and up. GLM-4 also norms what each block adds.
 */
#include "worker/models/families/llama.h"

static const struct evq_decoder_names glm_names = {EVQ_LLAMA_FRAME,
                                                   EVQ_LLAMA_ATTENTION,
                                                   .attention_norm = "input_layernorm",
                                                   .mlp_norm = "post_attention_layernorm",
                                                   .gate_up = "mlp.gate_up_proj",
                                                   .down = "mlp.down_proj"};

static const struct evq_decoder_names glm4_names = {EVQ_LLAMA_FRAME,
                                                    EVQ_LLAMA_ATTENTION,
                                                    .attention_norm = "input_layernorm",
                                                    .attention_post_norm =
                                                        "post_self_attn_layernorm",
                                                    .mlp_norm = "post_attention_layernorm",
                                                    .gate_up = "mlp.gate_up_proj",
                                                    .down = "mlp.down_proj",
                                                    .mlp_post_norm = "post_mlp_layernorm"};

static void glm_read(struct evq_model_config *config, struct evq_arena *arena,
                     struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 2, .head_dim = 128, .attention_bias = true, .epsilon = 1.5625e-7};
    // null means 1 here, because Transformers sets its default only for a missing key.
    const struct evq_rope_form form = {
        .part = evq_model_config_null(config, "partial_rotary_factor") ? 1.0 : 0.5,
        .neighbours = true};

    evq_llama_read(config, &defaults, decoder);
    decoder->attention_bias = false;
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
}

static const char *const glm_architectures[] = {"GlmForCausalLM", "GlmModel", "glm", NULL};
static const struct evq_decoder_kind glm_kind = {
    .names = &glm_names, .keys = evq_llama_keys, .read = glm_read};

const struct evq_model_family evq_model_glm = {.name = "glm",
                                               .architectures = glm_architectures,
                                               .own_types_only = true,
                                               .decoder = &glm_kind};

static const char *const glm4_architectures[] = {"Glm4ForCausalLM", "Glm4Model", "glm4", NULL};
static const struct evq_decoder_kind glm4_kind = {
    .names = &glm4_names, .keys = evq_llama_keys, .read = glm_read};

const struct evq_model_family evq_model_glm4 = {.name = "glm4",
                                                .architectures = glm4_architectures,
                                                .own_types_only = true,
                                                .decoder = &glm4_kind};
