/*
 * Seed-OSS: a Llama with biases on queries, keys and values, and its own key for the one behind the
 * attention.
 */
#include "worker/models/families/llama.h"

static void seed_oss_read(struct evq_model_config *config, struct evq_arena *arena,
                          struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {
        .kv_heads = 8, .head_dim = 128, .attention_bias = true};

    evq_llama_read(config, &defaults, decoder);
    decoder->attention_bias = evq_model_config_flag(config, "attention_out_bias", false);
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

static const char *const architectures[] = {"SeedOssForCausalLM", "SeedOssModel", "seed_oss", NULL};
static const char *const more_keys[] = {"attention_out_bias", NULL};
static const struct evq_decoder_kind kind = {.names = &evq_llama_names,
                                             .keys = evq_llama_keys,
                                             .more_keys = more_keys,
                                             .read = seed_oss_read};

const struct evq_model_family evq_model_seed_oss = {
    .name = "seed_oss", .architectures = architectures, .decoder = &kind};
