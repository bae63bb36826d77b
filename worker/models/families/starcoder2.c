/*
 * StarCoder 2: grouped heads and rotary positions as in Llama, but layer norms, biases everywhere,
 * and a feed-forward block without a gate.
 */
#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME,
                                               EVQ_LLAMA_ATTENTION,
                                               .attention_norm = "input_layernorm",
                                               .mlp_norm = "post_attention_layernorm",
                                               .up = "mlp.c_fc",
                                               .down = "mlp.c_proj"};

static void starcoder2_read(struct evq_model_config *config, struct evq_arena *arena,
                            struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 2,
                                                       .tied = true,
                                                       .epsilon = 1e-5,
                                                       .epsilon_key = "norm_epsilon",
                                                       .activation = "gelu_pytorch_tanh"};
    static const struct evq_llama_windows windows = {0};

    evq_llama_read(config, &defaults, decoder);
    decoder->gated = false;
    decoder->layer_norm = decoder->norm_bias = true;
    decoder->qkv_bias = decoder->attention_bias = decoder->mlp_bias =
        evq_model_config_flag(config, "use_bias", true);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    evq_llama_read_windows(config, arena, &windows, decoder);
}

static const char *const architectures[] = {"Starcoder2ForCausalLM", "Starcoder2Model",
                                            "starcoder2", NULL};
// Transformers does not read the last three.
static const char *const more_keys[] = {
    "norm_epsilon", "sliding_window", "use_bias", "activation_function",
    "mlp_type",     "norm_type",      NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = more_keys, .read = starcoder2_read};

const struct evq_model_family evq_model_starcoder2 = {
    .name = "starcoder2", .architectures = architectures, .decoder = &kind};
