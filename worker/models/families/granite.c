/*
 * Granite: a Llama with factors on the embedding, the attention's logits, what each block adds, and
 * the logits.
 */
#include "worker/models/families/llama.h"

static void granite_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {0};

    evq_llama_read(config, &defaults, decoder);
    decoder->embedding_scale = (float)evq_model_config_real(config, "embedding_multiplier", 1.0);
    decoder->residual_scale = (float)evq_model_config_real(config, "residual_multiplier", 1.0);
    decoder->attention_scale = (float)evq_model_config_real(config, "attention_multiplier", 1.0);
    decoder->logit_scale = (float)(1.0 / evq_model_config_real(config, "logits_scaling", 1.0));
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

static const char *const architectures[] = {"GraniteForCausalLM", "GraniteModel", "granite", NULL};
static const char *const more_keys[] = {"attention_multiplier", "embedding_multiplier",
                                        "logits_scaling", "residual_multiplier", NULL};
static const struct evq_decoder_kind kind = {.names = &evq_llama_names,
                                             .keys = evq_llama_keys,
                                             .more_keys = more_keys,
                                             .read = granite_read};

const struct evq_model_family evq_model_granite = {
    .name = "granite", .architectures = architectures, .own_types_only = true, .decoder = &kind};
