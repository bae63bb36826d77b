/*
 * Reads the configuration of an encoder that classifies. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_CLASSIFIER_H
#define EVQ_WORKER_MODELS_CLASSIFIER_H

#include "worker/models/decoder.h"

// Initialisers of the names that a family shares with BERT.
#define EVQ_BERT_EMBEDDING                                                                         \
    .embedding = "embeddings.word_embeddings", .positions = "embeddings.position_embeddings",      \
    .types = "embeddings.token_type_embeddings", .embedding_norm = "embeddings.LayerNorm"
#define EVQ_BERT_LAYER                                                                             \
    .layer = "encoder.layer.", .query = "attention.self.query", .key = "attention.self.key",       \
    .value = "attention.self.value", .attention_out = "attention.output.dense",                    \
    .attention_sum_norm = "attention.output.LayerNorm", .up = "intermediate.dense",                \
    .down = "output.dense", .mlp_sum_norm = "output.LayerNorm"

/* Reads the number of classes (num_labels, otherwise the length of id2label), and refuses every
 * problem_type but single_label_classification. */
void evq_classifier_read(struct evq_model_config *config, struct evq_decoder *decoder);

struct evq_classifier_names { // What a configuration calls the sizes of an encoder.
    const char *hidden, *heads, *layers, *inner, *activation;
};

/* Reads the sizes, the activation and the epsilon of an encoder. own: what its configuration calls
 * them; NULL: as BERT's does. The norms are layer norms with biases, and the attention looks in
 * both directions. */
void evq_classifier_read_encoder(struct evq_model_config *config,
                                 const struct evq_classifier_names *own,
                                 struct evq_decoder *decoder);

/* Reads the sizes of an encoder of texts: vocabulary, positions and types of tokens. */
void evq_classifier_read_texts(struct evq_model_config *config, struct evq_decoder *decoder);

/* The keys of config.json that families with BERT's names have, NULL-terminated. */
extern const char *const evq_classifier_keys[];

#endif
