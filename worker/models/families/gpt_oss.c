/*
 * gpt-oss: experts with biases and bounded gates, all in one tensor of a layer, attention with a
 * sink for each head, and windows in every other layer. The experts are plain, or MXFP4 as in the
 * released checkpoints.
 */
#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME,
                                               EVQ_LLAMA_ATTENTION,
                                               .attention_norm = "input_layernorm",
                                               .sinks = "self_attn.sinks",
                                               .mlp_norm = "post_attention_layernorm",
                                               .router = "mlp.router",
                                               EVQ_LLAMA_JOINED};

static void gpt_oss_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 8, .head_dim = 64, .attention_bias = true, .epsilon = 1e-5};
    static const struct evq_rope_form form = {.theta = 150000.0};
    static const struct evq_llama_windows windows = {.pattern = 2, .window = 128};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
    evq_llama_read_windows(config, arena, &windows, decoder);
    evq_llama_read_experts(config, 128, 4, decoder);
    decoder->router_bias = true;
    decoder->expert_slope = (float)evq_model_config_real(config, "swiglu_alpha", 1.702);
    decoder->expert_cap = (float)evq_model_config_real(config, "swiglu_limit", 7.0);
    evq_rope_require(config);
}

static const char *const architectures[] = {"GptOssForCausalLM", "GptOssModel", "gpt_oss", NULL};
static const char *const more_keys[] = {"experts_per_token",
                                        "layer_types",
                                        "num_experts",
                                        "num_experts_per_tok",
                                        "num_local_experts",
                                        "sliding_window",
                                        "swiglu_alpha",
                                        "swiglu_limit",
                                        "initial_context_length",
                                        NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = more_keys, .read = gpt_oss_read};

const struct evq_model_family evq_model_gpt_oss = {
    .name = "gpt_oss", .architectures = architectures, .decoder = &kind};
