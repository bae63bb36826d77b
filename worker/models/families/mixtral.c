/*
 * Mixtral: a Mistral whose feed-forward blocks are mixtures of experts. The weights of a token's
 * experts sum to 1.
 */
#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME,
                                               EVQ_LLAMA_ATTENTION,
                                               .attention_norm = "input_layernorm",
                                               .mlp_norm = "post_attention_layernorm",
                                               .router = "block_sparse_moe.gate",
                                               .expert = "block_sparse_moe.experts.",
                                               .expert_gate = "w1",
                                               .expert_up = "w3",
                                               .expert_down = "w2",
                                               .joined_router = "mlp.gate",
                                               EVQ_LLAMA_JOINED};

static void mixtral_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 8, .epsilon = 1e-5};
    static const struct evq_rope_form form = {.theta = 1e6};
    static const struct evq_llama_windows windows = {0};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
    evq_llama_read_windows(config, arena, &windows, decoder);
    evq_llama_read_experts(config, 8, 2, decoder);
}

static const char *const architectures[] = {"MixtralForCausalLM", "MixtralModel", "mixtral", NULL};
static const char *const more_keys[] = {"num_experts", "num_experts_per_tok", "num_local_experts",
                                        "sliding_window", NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = more_keys, .read = mixtral_read};

const struct evq_model_family evq_model_mixtral = {
    .name = "mixtral", .architectures = architectures, .decoder = &kind};
