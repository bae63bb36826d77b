/*
 * Reads the configuration of an encoder that chooses a class. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_CLASSIFIER_H
#define EVQ_WORKER_MODELS_CLASSIFIER_H

#include "worker/models/decoder.h"

/* Reads the number of classes, num_labels or that of id2label, and refuses other kinds of
 * problem_type. */
void evq_classifier_read(struct evq_model_config *config, struct evq_decoder *decoder);

/* Reads what BERT, RoBERTa and ViT call alike: sizes, activation and epsilon. The norms are layer
 * norms with biases, and the attention looks in both directions. */
void evq_classifier_read_encoder(struct evq_model_config *config, struct evq_decoder *decoder);

/* Keys of config.json that the two read, and those that every encoder of tokens may have,
 * NULL-terminated. */
extern const char *const evq_classifier_keys[];

#endif
