/*
 * BERT with a head that classifies texts: positions and types of tokens in the embedding, norms
 * after each block's sum, and a pooler before the head.
 */
#include "worker/models/classifier.h"

static const char *const buffers[] = {"embeddings.position_ids", "embeddings.token_type_ids", NULL};

static const struct evq_decoder_names names = {
    EVQ_BERT_EMBEDDING,   EVQ_BERT_LAYER,       .inside = "bert.",  .dense = "pooler.dense",
    .dense_inside = true, .head = "classifier", .buffers = buffers,
};

static void bert_read(struct evq_model_config *config, struct evq_arena *arena,
                      struct evq_decoder *decoder)
{
    (void)arena; // BERT has no rotary positions and no windows.
    evq_classifier_read_encoder(config, NULL, decoder);
    evq_classifier_read_texts(config, decoder);
}

static const char *const architectures[] = {"BertForSequenceClassification", "bert", NULL};
// The first BERT models have these keys. Transformers reads none of them.
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
