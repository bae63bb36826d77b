/*
 * Gemma: a Llama whose norms scale by 1 + weight, whose embedding is scaled by sqrt(hidden), with
 * GELU in its gate and the embedding as its head. Gemma 2 also norms what each block adds, caps the
 * logits of attention and head, and has windows in every other layer. Gemma 3 norms queries and
 * keys, has windows in five of six layers, and other rotary positions in these.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "worker/models/families/llama.h"

/* Gemma's first configurations say "gelu" but mean the tanh form, and Transformers reads them so.
 * Transformers ignores hidden_activation, so it counts only as an option here. */
static enum evq_activation read_activation(struct evq_model_config *config)
{
    static const char tanh_form[] = "gelu_pytorch_tanh";

    if (evq_model_config_told(config, "hidden_activation")) {
        return evq_decoder_activation(config, "hidden_activation", tanh_form);
    }
    return strcmp(evq_model_config_text(config, "hidden_act", tanh_form), "gelu") == 0
               ? EVQ_ACT_GELU_TANH
               : evq_decoder_activation(config, "hidden_act", tanh_form);
}

static void read_common(struct evq_model_config *config, const struct evq_llama_defaults *defaults,
                        struct evq_decoder *decoder)
{
    evq_llama_read(config, defaults, decoder);
    decoder->norm_one_plus = true;
    decoder->embedding_scale = sqrtf((float)decoder->hidden);
    if (evq_model_config_flag(config, "use_bidirectional_attention", false)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "use_bidirectional_attention is true, expected a causal decoder");
    }
}

static void gemma_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 16, .head_dim = 256, .tied = true};

    read_common(config, &defaults, decoder);
    decoder->activation = read_activation(config);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

/* A missing cap has the default of the family; null means none. */
static float read_cap(struct evq_model_config *config, const char *name, double fallback)
{
    const bool none = evq_model_config_null(config, name) ||
                      (fallback == 0.0 && !evq_model_config_has(config, name));

    return none ? 0.0f : (float)evq_model_config_real(config, name, fallback);
}

/* What Gemma 2 and 3 share. caps: the defaults of the attention's and the head's. */
static void read_later(struct evq_model_config *config, struct evq_arena *arena,
                       const struct evq_llama_windows *windows, const double caps[2],
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 4,
                                                       .head_dim = 256,
                                                       .tied = true,
                                                       .activation_key = "hidden_activation",
                                                       .activation = "gelu_pytorch_tanh"};

    read_common(config, &defaults, decoder);
    decoder->attention_scale =
        (float)(1.0 / sqrt(evq_model_config_real(config, "query_pre_attn_scalar", 256.0)));
    decoder->attention_cap = read_cap(config, "attn_logit_softcapping", caps[0]);
    decoder->logit_cap = read_cap(config, "final_logit_softcapping", caps[1]);
    evq_llama_read_windows(config, arena, windows, decoder);
}

static void gemma2_read(struct evq_model_config *config, struct evq_arena *arena,
                        struct evq_decoder *decoder)
{
    static const struct evq_llama_windows windows = {.pattern = 2, .window = 4096};
    static const double caps[2] = {50.0, 30.0};

    read_later(config, arena, &windows, caps, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

static void gemma3_read(struct evq_model_config *config, struct evq_arena *arena,
                        struct evq_decoder *decoder)
{
    static const struct evq_rope_form full = {.theta = 1e6, .layers = "full_attention"};
    static const struct evq_rope_form sliding = {
        .theta_key = "rope_local_base_freq", .layers = "sliding_attention", .plain = true};
    static const double caps[2] = {0.0, 0.0};
    const struct evq_llama_windows windows = {
        .pattern = evq_model_config_integer(config, "sliding_window_pattern", 1, INT_MAX, 6),
        .window = 4096};

    read_later(config, arena, &windows, caps, decoder);
    decoder->attention_cap = 0.0f; // Transformers reads attn_logit_softcapping and does not use it.
    decoder->qk_norm = EVQ_QK_NORM_HEADS;
    decoder->rope = evq_rope_read(config, arena, decoder, &full);
    decoder->window_rope = evq_rope_read(config, arena, decoder, &sliding);
}

static const struct evq_decoder_names later_names = {EVQ_LLAMA_FRAME,
                                                     EVQ_LLAMA_ATTENTION,
                                                     EVQ_LLAMA_MLP,
                                                     .attention_norm = "input_layernorm",
                                                     .attention_post_norm =
                                                         "post_attention_layernorm",
                                                     .mlp_norm = "pre_feedforward_layernorm",
                                                     .mlp_post_norm = "post_feedforward_layernorm"};

static const char *const architectures[] = {"GemmaForCausalLM", "GemmaModel", "gemma", NULL};
static const char *const more_keys[] = {"hidden_activation", "use_bidirectional_attention", NULL};
static const struct evq_decoder_kind kind = {
    .names = &evq_llama_names, .keys = evq_llama_keys, .more_keys = more_keys, .read = gemma_read};

const struct evq_model_family evq_model_gemma = {
    .name = "gemma", .architectures = architectures, .own_types_only = true, .decoder = &kind};

static const char *const later_keys[] = {"_sliding_window_pattern",
                                         "attn_logit_softcapping",
                                         "final_logit_softcapping",
                                         "hidden_activation",
                                         "layer_types",
                                         "query_pre_attn_scalar",
                                         "rope_local_base_freq",
                                         "sliding_window",
                                         "sliding_window_pattern",
                                         "use_bidirectional_attention",
                                         NULL};
static const char *const gemma2_architectures[] = {"Gemma2ForCausalLM", "Gemma2Model", "gemma2",
                                                   NULL};
static const struct evq_decoder_kind gemma2_kind = {
    .names = &later_names, .keys = evq_llama_keys, .more_keys = later_keys, .read = gemma2_read};

const struct evq_model_family evq_model_gemma2 = {.name = "gemma2",
                                                  .architectures = gemma2_architectures,
                                                  .own_types_only = true,
                                                  .decoder = &gemma2_kind};

static const char *const gemma3_architectures[] = {"Gemma3ForCausalLM", "Gemma3TextModel",
                                                   "gemma3_text", NULL};
static const struct evq_decoder_kind gemma3_kind = {
    .names = &later_names, .keys = evq_llama_keys, .more_keys = later_keys, .read = gemma3_read};

const struct evq_model_family evq_model_gemma3 = {.name = "gemma3",
                                                  .architectures = gemma3_architectures,
                                                  .own_types_only = true,
                                                  .decoder = &gemma3_kind};
