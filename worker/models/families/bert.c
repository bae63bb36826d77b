/*
 * BERT with a head that classifies texts: positions and types of tokens in the embedding, norms
 * after each block's sum, and a pooler before the head.
 */
#include <limits.h>

#include "worker/models/classifier.h"

static const char *const buffers[] = {"embeddings.position_ids", "embeddings.token_type_ids", NULL};

static const struct evq_decoder_names names = {
    .inside = "bert.",
    .embedding = "embeddings.word_embeddings",
    .positions = "embeddings.position_embeddings",
    .types = "embeddings.token_type_embeddings",
    .embedding_norm = "embeddings.LayerNorm",
    .layer = "encoder.layer.",
    .query = "attention.self.query",
    .key = "attention.self.key",
    .value = "attention.self.value",
    .attention_out = "attention.output.dense",
    .attention_sum_norm = "attention.output.LayerNorm",
    .up = "intermediate.dense",
    .down = "output.dense",
    .mlp_sum_norm = "output.LayerNorm",
    .dense = "pooler.dense",
    .dense_inside = true,
    .head = "classifier",
    .buffers = buffers,
};

static void bert_read(struct evq_model_config *config, struct evq_arena *arena,
                      struct evq_decoder *decoder)
{
    (void)arena; // BERT has no rotary positions and no windows.
    evq_classifier_read_encoder(config, decoder);
    decoder->vocabulary = (int32_t)evq_model_config_integer(config, "vocab_size", 1, INT_MAX, 0);
    decoder->context =
        (int32_t)evq_model_config_integer(config, "max_position_embeddings", 1, 1 << 30, 0);
    decoder->types = (int32_t)evq_model_config_integer(config, "type_vocab_size", 1, 1 << 20, 2);
}

static const char *const architectures[] = {"BertForSequenceClassification", "bert", NULL};
// Transformers reads none of these, which the first models have.
static const char *const more_keys[] = {"directionality",
                                        "pooler_fc_size",
                                        "pooler_num_attention_heads",
                                        "pooler_num_fc_layers",
                                        "pooler_size_per_head",
                                        "pooler_type",
                                        NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_classifier_keys, .more_keys = more_keys, .read = bert_read};

const struct evq_model_family evq_model_bert = {
    .name = "bert", .architectures = architectures, .own_types_only = true, .decoder = &kind};
