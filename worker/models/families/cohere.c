/*
 * Cohere (Command R): both blocks of a layer read the same layer norm without a bias, neighbouring
 * pairs rotate, and the logits are scaled. Cohere 2 (Command R7B) has windows in three of four
 * layers, and only these rotate.
 */
#include <limits.h>

#include "worker/models/families/llama.h"

static const struct evq_decoder_names names = {EVQ_LLAMA_FRAME, EVQ_LLAMA_ATTENTION, EVQ_LLAMA_MLP,
                                               .attention_norm = "input_layernorm"};

static void read_common(struct evq_model_config *config, struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .tied = true, .epsilon = 1e-5, .epsilon_key = "layer_norm_eps"};

    evq_llama_read(config, &defaults, decoder);
    decoder->layer_norm = true;
    decoder->parallel = true;
    decoder->logit_scale = (float)evq_model_config_real(config, "logit_scale", 0.0625);
}

static void cohere_read(struct evq_model_config *config, struct evq_arena *arena,
                        struct evq_decoder *decoder)
{
    static const struct evq_rope_form form = {.theta = 5e5, .neighbours = true};

    read_common(config, decoder);
    decoder->qk_norm =
        evq_model_config_flag(config, "use_qk_norm", false) ? EVQ_QK_NORM_OWN : EVQ_QK_NORM_NONE;
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
}

static void cohere2_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_rope_form form = {.neighbours = true};
    const struct evq_llama_windows windows = {
        .pattern = evq_model_config_integer(config, "sliding_window_pattern", 1, INT_MAX, 4),
        .window = 4096};

    read_common(config, decoder);
    evq_llama_read_windows(config, arena, &windows, decoder);
    decoder->turns = decoder->windowed;
    // Without windows no layer rotates.
    decoder->rope = decoder->windowed != NULL ? evq_rope_read(config, arena, decoder, &form) : NULL;
}

static const char *const cohere_architectures[] = {"CohereForCausalLM", "CohereModel", "cohere",
                                                   NULL};
static const char *const cohere_keys[] = {"layer_norm_eps", "logit_scale", "use_qk_norm", NULL};
static const struct evq_decoder_kind cohere_kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = cohere_keys, .read = cohere_read};

const struct evq_model_family evq_model_cohere = {.name = "cohere",
                                                  .architectures = cohere_architectures,
                                                  .own_types_only = true,
                                                  .decoder = &cohere_kind};

// Transformers does not read the keys from layer_switch on.
static const char *const cohere2_keys[] = {"layer_norm_eps",
                                           "layer_types",
                                           "logit_scale",
                                           "sliding_window",
                                           "sliding_window_pattern",
                                           "layer_switch",
                                           "order_of_interleaved_layers",
                                           "position_embedding_type",
                                           "rotary_pct",
                                           "use_embedding_sharing",
                                           "use_gated_activation",
                                           "use_parallel_block",
                                           "use_parallel_embedding",
                                           NULL};
static const char *const cohere2_architectures[] = {"Cohere2ForCausalLM", "Cohere2Model", "cohere2",
                                                    NULL};
static const struct evq_decoder_kind cohere2_kind = {
    .names = &names, .keys = evq_llama_keys, .more_keys = cohere2_keys, .read = cohere2_read};

const struct evq_model_family evq_model_cohere2 = {.name = "cohere2",
                                                   .architectures = cohere2_architectures,
                                                   .own_types_only = true,
                                                   .decoder = &cohere2_kind};
