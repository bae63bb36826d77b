/*
 * RoBERTa with a head that classifies texts, and XLM-RoBERTa and CamemBERT, which compute the same.
 * It is BERT with a head of two layers, and its first position is the padding token's id plus 1.
 */
#include "worker/models/classifier.h"

static const char *const buffers[] = {"embeddings.position_ids", "embeddings.token_type_ids", NULL};

static const struct evq_decoder_names names = {
    EVQ_BERT_EMBEDDING,
    EVQ_BERT_LAYER,
    .inside = "roberta.",
    .dense = "classifier.dense",
    .head = "classifier.out_proj",
    .buffers = buffers,
};

static void roberta_read(struct evq_model_config *config, struct evq_arena *arena,
                         struct evq_decoder *decoder)
{
    (void)arena; // RoBERTa has no rotary positions and no windows.
    evq_classifier_read_encoder(config, NULL, decoder);
    evq_classifier_read_texts(config, decoder);
    decoder->padding = (int32_t)evq_model_config_integer(config, "pad_token_id", 0, 1 << 20, 1);
    decoder->first_place = decoder->padding + 1;
    decoder->context -= decoder->first_place;
    decoder->typeless = true; // RoBERTa's tokenizers give no types.
    if (evq_model_config_null(config, "pad_token_id")) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "pad_token_id is null, expected a token: positions follow it");
    }
    if (decoder->context < 1) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "max_position_embeddings leaves no position behind pad_token_id %d",
                                (int)decoder->padding);
        decoder->context = 1;
    }
}

static const char *const architectures[] = {"RobertaForSequenceClassification",
                                            "XLMRobertaForSequenceClassification",
                                            "CamembertForSequenceClassification",
                                            "roberta",
                                            "xlm-roberta",
                                            "camembert",
                                            NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = evq_classifier_keys, .read = roberta_read};

const struct evq_model_family evq_model_roberta = {
    .name = "roberta", .architectures = architectures, .own_types_only = true, .decoder = &kind};
