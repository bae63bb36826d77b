/*
 * Phi-3 and Phi-4: a Llama with one tensor for queries, keys and values and one for gate and up,
 * which rotates the whole head or a part, often by longrope.
 */
#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME,
                                               .attention_norm = "input_layernorm",
                                               .qkv = "self_attn.qkv_proj",
                                               .attention_out = "self_attn.o_proj",
                                               .mlp_norm = "post_attention_layernorm",
                                               .gate_up = "mlp.gate_up_proj",
                                               .down = "mlp.down_proj"};

static void phi3_read(struct evq_model_config *config, struct evq_arena *arena,
                      struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.epsilon = 1e-5};
    static const struct evq_rope_form form = {
        .part = 1.0, .trained = 4096.0, .longrope_names = true};
    static const struct evq_llama_windows windows = {0};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
    evq_llama_read_windows(config, arena, &windows, decoder);
}

static const char *const architectures[] = {"Phi3ForCausalLM", "Phi3Model", "phi3", NULL};
static const char *const more_keys[] = {"sliding_window", NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = more_keys, .read = phi3_read};

const struct evq_model_family evq_model_phi3 = {
    .name = "phi3", .architectures = architectures, .decoder = &kind};
