/*
 * Mistral: a Llama whose layers see a window of positions if sliding_window is set. All layers have
 * the window, or those that layer_types names; Transformers then reads the model as a Ministral.
 */
#include "worker/models/llama.h"
#include "worker/models/rope.h"

static void mistral_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 8};

    evq_llama_read(config, &defaults, decoder);
    evq_rope_read(config, arena, decoder);
    evq_llama_read_windows(config, arena, decoder, 0);
}

static const char *const architectures[] = {
    "MistralForCausalLM", "MistralModel", "mistral", "MinistralForCausalLM",
    "MinistralModel",     "ministral",    NULL};
static const char *const more_keys[] = {"layer_types", "sliding_window", NULL};
static const struct evq_decoder_kind kind = {.names = &evq_llama_names,
                                             .keys = evq_llama_keys,
                                             .more_keys = more_keys,
                                             .read = mistral_read};

const struct evq_model_family evq_model_mistral = {.name = "mistral",
                                                   .architectures = architectures,
                                                   .options = evq_llama_options,
                                                   .check = evq_decoder_check,
                                                   .build = evq_decoder_build,
                                                   .decoder = &kind};
