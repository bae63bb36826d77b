#include "worker/models/classifier.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define CLASSES_MAX 1000000

const char *const evq_classifier_keys[] = {"hidden_act",
                                           "hidden_size",
                                           "intermediate_size",
                                           "layer_norm_eps",
                                           "max_position_embeddings",
                                           "num_attention_heads",
                                           "num_hidden_layers",
                                           "num_labels",
                                           "pad_token_id",
                                           "problem_type",
                                           "tie_word_embeddings", // No head is tied.
                                           "type_vocab_size",
                                           "vocab_size",
                                           NULL};

/* Without id2label there are two labels: Transformers leaves it out only if there are two labels
 * with default names. */
static int64_t count_labels(struct evq_model_config *config)
{
    char name[40];
    int64_t count = 0;

    do {
        (void)snprintf(name, sizeof(name), "id2label.%lld", (long long)count);
    } while (evq_model_config_has(config, name) && count++ < CLASSES_MAX);
    return count > 0 ? count : 2;
}

void evq_classifier_read(struct evq_model_config *config, struct evq_decoder *decoder)
{
    static const char usual[] = "single_label_classification";
    const char *problem = evq_model_config_text(config, "problem_type", usual);
    char shown[64];

    decoder->classes = (int32_t)evq_model_config_integer(config, "num_labels", 1, CLASSES_MAX,
                                                         count_labels(config));
    decoder->padding = -1;
    if (strcmp(problem, usual) != 0 || decoder->classes < 2) {
        evq_error_escape(problem, strlen(problem), shown, sizeof(shown));
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "problem_type is %s with %d labels, expected %s with at least 2",
                                decoder->classes < 2 ? "regression" : shown, (int)decoder->classes,
                                usual);
    }
    if (evq_model_config_flag(config, "is_decoder", false)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "is_decoder is true, expected an encoder");
    }
}

void evq_classifier_read_texts(struct evq_model_config *config, struct evq_decoder *decoder)
{
    decoder->vocabulary = (int32_t)evq_model_config_integer(config, "vocab_size", 1, INT_MAX, 0);
    decoder->context =
        (int32_t)evq_model_config_integer(config, "max_position_embeddings", 1, 1 << 30, 0);
    decoder->types = (int32_t)evq_model_config_integer(config, "type_vocab_size", 1, 1 << 20, 2);
}

void evq_classifier_read_encoder(struct evq_model_config *config,
                                 const struct evq_classifier_names *own,
                                 struct evq_decoder *decoder)
{
    static const struct evq_classifier_names usual = {.hidden = "hidden_size",
                                                      .heads = "num_attention_heads",
                                                      .layers = "num_hidden_layers",
                                                      .inner = "intermediate_size",
                                                      .activation = "hidden_act"};
    const struct evq_classifier_names *names = own != NULL ? own : &usual;

    decoder->hidden = (int32_t)evq_model_config_integer(config, names->hidden, 1, 1 << 20, 0);
    decoder->heads = (int32_t)evq_model_config_integer(config, names->heads, 1, 1 << 16, 0);
    decoder->kv_heads = decoder->heads;
    decoder->head_dim =
        decoder->hidden % decoder->heads == 0 ? decoder->hidden / decoder->heads : 0;
    decoder->layers = (int32_t)evq_model_config_integer(config, names->layers, 1, 10000, 0);
    decoder->inner = (int32_t)evq_model_config_integer(config, names->inner, 1, 1 << 26, 0);
    decoder->activation = evq_decoder_activation(config, names->activation, "gelu");
    decoder->epsilon = (float)evq_model_config_real(config, "layer_norm_eps", 1e-12);
    decoder->layer_norm = decoder->norm_bias = true;
    decoder->qkv_bias = decoder->attention_bias = decoder->mlp_bias = true;
    decoder->dense_bias = true;
    decoder->dense_activation = EVQ_ACT_TANH;
    decoder->both = true;
    evq_classifier_read(config, decoder);
}
