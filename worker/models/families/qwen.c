/*
 * Qwen2: a Llama with biases on queries, keys and values. Qwen3: a Llama that norms each head of
 * its queries and keys, and whose head_dim is independent of hidden. Qwen3-MoE: a Qwen3 with
 * experts in most layers.
 */
#include <limits.h>
#include <stdio.h>

#include "worker/models/families/llama.h"

/* If use_sliding_window is false, the number of sliding_window is ignored. */
static void read_windows(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    const struct evq_llama_windows windows = {
        .first = evq_model_config_integer(config, "max_window_layers", 0, INT_MAX, 28),
        .window = 4096};

    if (evq_model_config_flag(config, "use_sliding_window", false)) {
        evq_llama_read_windows(config, arena, &windows, decoder);
    }
}

static void qwen2_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 32};

    evq_llama_read(config, &defaults, decoder);
    decoder->qkv_bias = true;
    decoder->attention_bias = false;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    read_windows(config, arena, decoder);
}

static void qwen3_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 32, .head_dim = 128};

    evq_llama_read(config, &defaults, decoder);
    decoder->qk_norm = EVQ_QK_NORM_HEADS;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    read_windows(config, arena, decoder);
}

/* Layers of mlp_only_layers, and those between the steps, have an MLP instead of experts. */
static void read_dense(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    const int64_t step = evq_model_config_integer(config, "decoder_sparse_step", 1, INT_MAX, 1);
    bool *dense = evq_arena_array(arena, (size_t)decoder->layers, sizeof(*dense));
    bool any = false;
    char name[40];

    if (dense == NULL) {
        evq_model_config_refuse(config, EVQ_E_NOMEM, "%d layers", (int)decoder->layers);
        return;
    }
    for (int32_t layer = 0; layer < decoder->layers; layer++) {
        dense[layer] = (layer + 1) % step != 0;
    }
    for (int i = 0;; i++) {
        (void)snprintf(name, sizeof(name), "mlp_only_layers.%d", i);
        if (!evq_model_config_has(config, name)) {
            break;
        }
        dense[evq_model_config_integer(config, name, 0, decoder->layers - 1, 0)] = true;
    }
    for (int32_t layer = 0; layer < decoder->layers; layer++) {
        any = any || dense[layer];
    }
    decoder->dense = any ? dense : NULL;
}

static void qwen3_moe_read(struct evq_model_config *config, struct evq_arena *arena,
                           struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 4};
    static const struct evq_llama_windows windows = {.window = 4096};

    evq_llama_read(config, &defaults, decoder);
    decoder->qk_norm = EVQ_QK_NORM_HEADS;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    if (evq_model_config_flag(config, "use_sliding_window", false)) {
        evq_llama_read_windows(config, arena, &windows, decoder);
    }
    evq_llama_read_experts(config, 128, 8, decoder);
    decoder->expert_inner =
        (int32_t)evq_model_config_integer(config, "moe_intermediate_size", 1, 1 << 26, 768);
    decoder->route_whole = !evq_model_config_flag(config, "norm_topk_prob", false);
    read_dense(config, arena, decoder);
}

static const char *const qwen2_architectures[] = {"Qwen2ForCausalLM", "Qwen2Model", "qwen2", NULL};
static const char *const qwen3_architectures[] = {"Qwen3ForCausalLM", "Qwen3Model", "qwen3", NULL};
static const char *const more_keys[] = {"layer_types", "max_window_layers", "sliding_window",
                                        "use_sliding_window", NULL};
static const struct evq_decoder_kind qwen2_kind = {
    .names = &evq_llama_names, .keys = evq_llama_keys, .more_keys = more_keys, .read = qwen2_read};
static const struct evq_decoder_kind qwen3_kind = {
    .names = &evq_llama_names, .keys = evq_llama_keys, .more_keys = more_keys, .read = qwen3_read};

const struct evq_model_family evq_model_qwen2 = {
    .name = "qwen2", .architectures = qwen2_architectures, .decoder = &qwen2_kind};

const struct evq_model_family evq_model_qwen3 = {
    .name = "qwen3", .architectures = qwen3_architectures, .decoder = &qwen3_kind};

static const struct evq_decoder_names moe_names = {EVQ_LLAMA_FRAME,
                                                   EVQ_LLAMA_ATTENTION,
                                                   EVQ_LLAMA_MLP,
                                                   EVQ_LLAMA_EXPERTS,
                                                   .attention_norm = "input_layernorm",
                                                   .mlp_norm = "post_attention_layernorm"};
static const char *const moe_architectures[] = {"Qwen3MoeForCausalLM", "Qwen3MoeModel", "qwen3_moe",
                                                NULL};
static const char *const moe_keys[] = {"decoder_sparse_step",   "mlp_only_layers",
                                       "moe_intermediate_size", "norm_topk_prob",
                                       "num_experts",           "num_experts_per_tok",
                                       "num_local_experts",     "sliding_window",
                                       "use_sliding_window",    NULL};
static const struct evq_decoder_kind moe_kind = {
    .names = &moe_names, .keys = evq_llama_keys, .more_keys = moe_keys, .read = qwen3_moe_read};

const struct evq_model_family evq_model_qwen3_moe = {
    .name = "qwen3_moe", .architectures = moe_architectures, .decoder = &moe_kind};
