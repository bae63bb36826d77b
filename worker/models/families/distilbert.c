/*
 * DistilBERT with a head that classifies texts: BERT without types of tokens and without a pooler,
 * with a head of two layers, and names of its own.
 */
#include "worker/models/classifier.h"

static const char *const buffers[] = {"embeddings.position_ids", NULL};

static const struct evq_decoder_names names = {
    .inside = "distilbert.",
    .embedding = "embeddings.word_embeddings",
    .positions = "embeddings.position_embeddings",
    .embedding_norm = "embeddings.LayerNorm",
    .layer = "transformer.layer.",
    .query = "attention.q_lin",
    .key = "attention.k_lin",
    .value = "attention.v_lin",
    .attention_out = "attention.out_lin",
    .attention_sum_norm = "sa_layer_norm",
    .up = "ffn.lin1",
    .down = "ffn.lin2",
    .mlp_sum_norm = "output_layer_norm",
    .dense = "pre_classifier",
    .head = "classifier",
    .buffers = buffers,
};

static void distilbert_read(struct evq_model_config *config, struct evq_arena *arena,
                            struct evq_decoder *decoder)
{
    static const struct evq_classifier_names own = {.hidden = "dim",
                                                    .heads = "n_heads",
                                                    .layers = "n_layers",
                                                    .inner = "hidden_dim",
                                                    .activation = "activation"};

    (void)arena; // DistilBERT has no rotary positions and no windows.
    evq_classifier_read_encoder(config, &own, decoder);
    evq_classifier_read_texts(config, decoder);
    decoder->types = 0;
    decoder->dense_activation = EVQ_ACT_RELU;
}

static const char *const architectures[] = {"DistilBertForSequenceClassification", "distilbert",
                                            NULL};
static const char *const keys[] = {
    "activation", "dim",      "hidden_dim", "max_position_embeddings",
    "n_heads",    "n_layers", "num_labels", "problem_type",
    "vocab_size", NULL};
// These keys change nothing: the positions are in the checkpoint, and no head is tied.
static const char *const more_keys[] = {"sinusoidal_pos_embds", "tie_weights_",
                                        "tie_word_embeddings", NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = keys, .more_keys = more_keys, .read = distilbert_read};

const struct evq_model_family evq_model_distilbert = {
    .name = "distilbert", .architectures = architectures, .own_types_only = true, .decoder = &kind};
