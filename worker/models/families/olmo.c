/*
 * OLMo 2: a Llama without norms before the blocks, which norms what each block adds, and all
 * queries and all keys of a token together. OLMo 3 also has windows in three of four layers, and
 * other rotary positions in these.
 */
#include "worker/models/families/llama.h"

static const struct evq_llama_defaults defaults = {.epsilon = 1e-5};

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME, EVQ_LLAMA_ATTENTION, EVQ_LLAMA_MLP,
                                               .attention_post_norm = "post_attention_layernorm",
                                               .mlp_post_norm = "post_feedforward_layernorm"};

static void olmo2_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    evq_llama_read(config, &defaults, decoder);
    decoder->qk_norm = EVQ_QK_NORM_WHOLE;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

static void olmo3_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_windows windows = {.pattern = 4, .window = 4096};
    static const struct evq_rope_form full = {.theta = 5e5, .layers = "full_attention"};
    // Of older files with one set of parameters, Transformers uses nothing for these layers.
    static const struct evq_rope_form sliding = {
        .theta = 5e5, .theta_key = "", .layers = "sliding_attention", .plain = true};

    evq_llama_read(config, &defaults, decoder);
    decoder->qk_norm = EVQ_QK_NORM_WHOLE;
    decoder->rope = evq_rope_read(config, arena, decoder, &full);
    evq_llama_read_windows(config, arena, &windows, decoder);
    decoder->window_rope = evq_rope_read(config, arena, decoder, &sliding);
}

static void olmoe_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    evq_llama_read(config, &defaults, decoder);
    decoder->qk_norm = EVQ_QK_NORM_WHOLE;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    evq_llama_read_experts(config, 64, 8, decoder);
    decoder->route_whole = !evq_model_config_flag(config, "norm_topk_prob", false);
    if (evq_model_config_has(config, "clip_qkv")) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "clip_qkv bounds queries, keys and values, expected null");
    }
}

static const char *const olmo2_architectures[] = {"Olmo2ForCausalLM", "Olmo2Model", "olmo2", NULL};
static const struct evq_decoder_kind olmo2_kind = {
    .names = &names, .keys = evq_llama_keys, .read = olmo2_read};

const struct evq_model_family evq_model_olmo2 = {
    .name = "olmo2", .architectures = olmo2_architectures, .decoder = &olmo2_kind};

static const char *const olmo3_architectures[] = {"Olmo3ForCausalLM", "Olmo3Model", "olmo3", NULL};
static const char *const olmo3_keys[] = {"layer_types", "sliding_window", NULL};
static const struct evq_decoder_kind olmo3_kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = olmo3_keys, .read = olmo3_read};

const struct evq_model_family evq_model_olmo3 = {.name = "olmo3",
                                                 .architectures = olmo3_architectures,
                                                 .own_types_only = true,
                                                 .decoder = &olmo3_kind};

static const struct evq_decoder_names olmoe_names = {
    EVQ_LLAMA_FRAME, EVQ_LLAMA_ATTENTION, EVQ_LLAMA_EXPERTS, .attention_norm = "input_layernorm",
    .mlp_norm = "post_attention_layernorm"};
static const char *const olmoe_architectures[] = {"OlmoeForCausalLM", "OlmoeModel", "olmoe", NULL};
static const char *const olmoe_keys[] = {
    "clip_qkv", "norm_topk_prob", "num_experts", "num_experts_per_tok", "num_local_experts", NULL};
static const struct evq_decoder_kind olmoe_kind = {
    .names = &olmoe_names, .keys = evq_llama_keys, .more_keys = olmoe_keys, .read = olmoe_read};

const struct evq_model_family evq_model_olmoe = {
    .name = "olmoe", .architectures = olmoe_architectures, .decoder = &olmoe_kind};
