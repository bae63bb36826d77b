/*
 * SmolLM3: a Llama in which some layers have no rotary positions. With use_sliding_window, these
 * layers have a window. If there are layer_types, these alone say which layers have it.
 */
#include <limits.h>
#include <stdio.h>

#include "worker/models/families/llama.h"

static void read_layers(struct evq_model_config *config, struct evq_arena *arena,
                        struct evq_decoder *decoder)
{
    const int64_t interval =
        evq_model_config_integer(config, "no_rope_layer_interval", 1, INT_MAX, 4);
    const bool listed = evq_model_config_has(config, "no_rope_layers.0");
    const bool typed = evq_model_config_has(config, "layer_types.0");
    bool *turns = evq_arena_array(arena, (size_t)decoder->layers, sizeof(*turns));
    bool *still = evq_arena_array(arena, (size_t)decoder->layers, sizeof(*still));
    char name[40];

    if (turns == NULL || still == NULL) {
        evq_model_config_refuse(config, EVQ_E_NOMEM, "%d layers", (int)decoder->layers);
        return;
    }
    for (int32_t layer = 0; layer < decoder->layers; layer++) {
        (void)snprintf(name, sizeof(name), "no_rope_layers.%d", (int)layer);
        turns[layer] = listed ? evq_model_config_integer(config, name, 0, 1, -1) == 1
                              : (layer + 1) % interval != 0;
        still[layer] = !turns[layer];
    }
    decoder->turns = turns;
    if (evq_model_config_flag(config, "use_sliding_window", false) || typed) {
        static const struct evq_llama_windows windows = {0};
        evq_llama_read_windows(config, arena, &windows, decoder);
        decoder->windowed = typed ? decoder->windowed : still;
    }
}

static void smollm3_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    static const struct evq_llama_defaults defaults = {.kv_heads = 4, .tied = true};
    static const struct evq_rope_form form = {.theta = 2e6};

    evq_llama_read(config, &defaults, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, &form);
    read_layers(config, arena, decoder);
}

static const char *const architectures[] = {"SmolLM3ForCausalLM", "SmolLM3Model", "smollm3", NULL};
static const char *const more_keys[] = {"layer_types",        "no_rope_layer_interval",
                                        "no_rope_layers",     "sliding_window",
                                        "use_sliding_window", NULL};
static const struct evq_decoder_kind kind = {.names = &evq_llama_names,
                                             .keys = evq_llama_keys,
                                             .more_keys = more_keys,
                                             .read = smollm3_read};

const struct evq_model_family evq_model_smollm3 = {
    .name = "smollm3", .architectures = architectures, .own_types_only = true, .decoder = &kind};
