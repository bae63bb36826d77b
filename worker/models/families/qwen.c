/*
 * Qwen2: a Llama with biases on queries, keys and values. Qwen3: a Llama that norms each head of
 * its queries and keys, and whose head_dim is independent of hidden.
 */
#include <limits.h>

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
