/*
 * Mistral: a Llama whose layers see a window of positions if sliding_window is set. All layers have
 * the window, or those that layer_types names; Transformers then reads the model as a Ministral.
 * Ministral 3 also scales the queries of positions beyond the trained length, so such sequences are
 * refused.
 */
#include "worker/models/families/llama.h"

static void mistral_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 8};
    static const struct evq_llama_windows windows = {.window = 4096};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    evq_llama_read_windows(config, arena, &windows, decoder);
}

static void ministral3_read(struct evq_model_config *config, struct evq_arena *arena,
                            struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 8, .head_dim = 128, .epsilon = 1e-5};
    static const struct evq_llama_windows windows = {0};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
    evq_llama_read_windows(config, arena, &windows, decoder);
    evq_rope_require(config);
    if (decoder->rope != NULL && evq_rope_has(config, "llama_4_scaling_beta") &&
        decoder->rope->trained < decoder->context) {
        decoder->context = (int32_t)decoder->rope->trained;
    }
}

static const char *const architectures[] = {
    "MistralForCausalLM", "MistralModel", "mistral", "MinistralForCausalLM",
    "MinistralModel",     "ministral",    NULL};
static const char *const more_keys[] = {"layer_types", "sliding_window", NULL};
static const struct evq_decoder_kind kind = {.names = &evq_llama_names,
                                             .keys = evq_llama_keys,
                                             .more_keys = more_keys,
                                             .read = mistral_read};

const struct evq_model_family evq_model_mistral = {
    .name = "mistral", .architectures = architectures, .decoder = &kind};

static const char *const ministral3_keys[] = {"sliding_window", NULL};
static const char *const ministral3_architectures[] = {"Ministral3ForCausalLM", "Ministral3Model",
                                                       "ministral3", NULL};
static const struct evq_decoder_kind ministral3_kind = {.names = &evq_llama_names,
                                                        .keys = evq_llama_keys,
                                                        .more_keys = ministral3_keys,
                                                        .read = ministral3_read};

const struct evq_model_family evq_model_ministral3 = {.name = "ministral3",
                                                      .architectures = ministral3_architectures,
                                                      .own_types_only = true,
                                                      .decoder = &ministral3_kind};
