/*
 * Gemma 1: a Llama whose norms scale by 1 + weight, whose embedding is scaled by sqrt(hidden), with
 * GELU in its gate and the embedding as its head.
 */
#include <math.h>
#include <string.h>

#include "worker/models/llama.h"
#include "worker/models/rope.h"

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

static void gemma_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 16, .head_dim = 256, .tied = true};

    evq_llama_read(config, &defaults, decoder);
    decoder->norm_one_plus = true;
    decoder->embedding_scale = sqrtf((float)decoder->hidden);
    decoder->activation = read_activation(config);
    evq_rope_read(config, arena, decoder);
    if (evq_model_config_flag(config, "use_bidirectional_attention", false)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "use_bidirectional_attention is true, expected a causal decoder");
    }
}

static const char *const architectures[] = {"GemmaForCausalLM", "GemmaModel", "gemma", NULL};
static const char *const more_keys[] = {"hidden_activation", "use_bidirectional_attention", NULL};
static const struct evq_decoder_kind kind = {
    .names = &evq_llama_names, .keys = evq_llama_keys, .more_keys = more_keys, .read = gemma_read};

const struct evq_model_family evq_model_gemma = {.name = "gemma",
                                                 .architectures = architectures,
                                                 .options = evq_llama_options,
                                                 .check = evq_decoder_check,
                                                 .build = evq_decoder_build,
                                                 .own_types_only = true,
                                                 .decoder = &kind};
