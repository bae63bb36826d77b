/*
 * EXAONE 4: a Llama without norms before the blocks, which norms what each block adds, and each
 * head of its queries and keys. If there are windows, only the layers that have them rotate.
 */
#include <limits.h>

#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME, EVQ_LLAMA_ATTENTION, EVQ_LLAMA_MLP,
                                               .attention_post_norm = "post_attention_layernorm",
                                               .mlp_post_norm = "post_feedforward_layernorm"};

static void exaone4_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 32, .epsilon = 1e-5};
    const bool listed = evq_model_config_has(config, "layer_types.0");
    const struct evq_llama_windows windows = {
        .pattern =
            listed ? 0 : evq_model_config_integer(config, "sliding_window_pattern", 1, INT_MAX, 4),
        .window = 4096};

    evq_llama_read(config, &defaults, decoder);
    decoder->qk_norm = EVQ_QK_NORM_HEADS;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    evq_llama_read_windows(config, arena, &windows, decoder);
    decoder->turns = decoder->windowed; // NULL if there are no windows.
}

static const char *const architectures[] = {"Exaone4ForCausalLM", "Exaone4Model", "exaone4", NULL};
static const char *const more_keys[] = {"layer_types", "sliding_window", "sliding_window_pattern",
                                        NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = more_keys, .read = exaone4_read};

const struct evq_model_family evq_model_exaone4 = {
    .name = "exaone4", .architectures = architectures, .own_types_only = true, .decoder = &kind};
