/*
 * ModernBERT with a head that classifies texts: rotary positions by type of layer, windows in both
 * directions, gates, no norm before the first attention, and a head with a norm.
 */
#include <stdio.h>
#include <string.h>

#include "worker/models/classifier.h"
#include "worker/models/rope.h"

static const char *const buffers[] = {"inv_freq", NULL};

static const struct evq_decoder_names names = {
    .inside = "model.",
    .embedding = "embeddings.tok_embeddings",
    .embedding_norm = "embeddings.norm",
    .layer = "layers.",
    .attention_norm = "attn_norm",
    .qkv = "attn.Wqkv",
    .attention_out = "attn.Wo",
    .mlp_norm = "mlp_norm",
    .gate_up = "mlp.Wi",
    .down = "mlp.Wo",
    .final_norm = "final_norm",
    .dense = "head.dense",
    .dense_norm = "head.norm",
    .head = "classifier",
    .buffers = buffers,
};

static const struct evq_rope_form global = {
    .theta = 160000.0, .theta_key = "global_rope_theta", .layers = "full_attention"};
static const struct evq_rope_form local = {.theta_key = "local_rope_theta",
                                           .layers = "sliding_attention"};

/* Reads which layers have the window: those that layer_types names, otherwise all but every third.
 */
static void read_windows(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    const bool named = evq_model_config_has(config, "layer_types.0");
    const int64_t pattern =
        evq_model_config_integer(config, "global_attn_every_n_layers", 1, 10000, 3);
    bool *windowed = evq_arena_array(arena, (size_t)decoder->layers, sizeof(*windowed));
    char name[40];

    if (windowed == NULL) {
        evq_model_config_refuse(config, EVQ_E_NOMEM, "windows of %d layers", (int)decoder->layers);
        return;
    }
    for (int32_t layer = 0; layer < decoder->layers; layer++) {
        (void)snprintf(name, sizeof(name), "layer_types.%d", (int)layer);
        const char *type = named ? evq_model_config_text(config, name, NULL) : "";
        windowed[layer] = named ? strcmp(type, "sliding_attention") == 0 : layer % pattern != 0;
        if (named && !windowed[layer] && strcmp(type, "full_attention") != 0) {
            evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                    "%s is '%.40s', expected full_attention or sliding_attention",
                                    name, type);
        }
    }
    decoder->windowed = windowed;
    // A position sees itself and local_attention / 2 others on each side.
    decoder->window =
        (int32_t)evq_model_config_integer(config, "local_attention", 0, 1 << 30, 128) / 2 + 1;
}

static void modernbert_read(struct evq_model_config *config, struct evq_arena *arena,
                            struct evq_decoder *decoder)
{
    static const struct evq_classifier_names own = {.hidden = "hidden_size",
                                                    .heads = "num_attention_heads",
                                                    .layers = "num_hidden_layers",
                                                    .inner = "intermediate_size",
                                                    .activation = "hidden_activation"};
    const char *pooling = evq_model_config_text(config, "classifier_pooling", "cls");
    char shown[64];

    evq_classifier_read_encoder(config, &own, decoder);
    evq_classifier_read_texts(config, decoder);
    decoder->types = 0;
    decoder->epsilon = (float)evq_model_config_real(config, "norm_eps", 1e-5);
    decoder->norm_bias = evq_model_config_flag(config, "norm_bias", false);
    decoder->qkv_bias = decoder->attention_bias =
        evq_model_config_flag(config, "attention_bias", false);
    decoder->mlp_bias = evq_model_config_flag(config, "mlp_bias", false);
    decoder->gated = decoder->bare_first = true;
    decoder->dense_bias = evq_model_config_flag(config, "classifier_bias", false);
    decoder->dense_activation = evq_decoder_activation(config, "classifier_activation", "gelu");
    decoder->mean = strcmp(pooling, "mean") == 0;
    if (!decoder->mean && strcmp(pooling, "cls") != 0) {
        evq_error_escape(pooling, strlen(pooling), shown, sizeof(shown));
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "classifier_pooling is '%s', expected cls or mean", shown);
    }
    read_windows(config, arena, decoder);
    decoder->rope = evq_rope_read(config, arena, decoder, &global);
    decoder->window_rope = evq_rope_read(config, arena, decoder, &local);
}

static const char *const architectures[] = {"ModernBertForSequenceClassification", "modernbert",
                                            NULL};
static const char *const keys[] = {"attention_bias",
                                   "classifier_activation",
                                   "classifier_bias",
                                   "classifier_pooling",
                                   "global_attn_every_n_layers",
                                   "global_rope_theta",
                                   "hidden_activation",
                                   "hidden_size",
                                   "intermediate_size",
                                   "layer_types",
                                   "local_attention",
                                   "local_rope_theta",
                                   "max_position_embeddings",
                                   "mlp_bias",
                                   "norm_bias",
                                   "norm_eps",
                                   "num_attention_heads",
                                   "num_hidden_layers",
                                   "num_labels",
                                   "problem_type",
                                   "rope_parameters",
                                   "rope_scaling",
                                   "vocab_size",
                                   NULL};
// The classifier reads none of these keys.
static const char *const more_keys[] = {"decoder_bias",
                                        "deterministic_flash_attn",
                                        "initializer_cutoff_factor",
                                        "layer_norm_eps",
                                        "reference_compile",
                                        "repad_logits_with_grad",
                                        "sparse_pred_ignore_index",
                                        "sparse_prediction",
                                        "tie_word_embeddings",
                                        NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = keys, .more_keys = more_keys, .read = modernbert_read};

const struct evq_model_family evq_model_modernbert = {
    .name = "modernbert", .architectures = architectures, .own_types_only = true, .decoder = &kind};
