/*
 * Arcee: a Llama whose feed-forward block has no gate, and squares what RELU gives.
 */
#include "worker/models/families/llama.h"

static void arcee_read(struct evq_model_config *config, struct evq_arena *arena,
                       struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.epsilon = 1e-5, .activation = "relu2"};

    evq_llama_read(config, &defaults, decoder);
    decoder->gated = false;
    decoder->rope = evq_rope_read(config, arena, decoder, NULL);
}

static const char *const architectures[] = {"ArceeForCausalLM", "ArceeModel", "arcee", NULL};
static const struct evq_decoder_kind kind = {
    .names = &evq_llama_names, .keys = evq_llama_keys, .read = arcee_read};

const struct evq_model_family evq_model_arcee = {
    .name = "arcee", .architectures = architectures, .decoder = &kind};
