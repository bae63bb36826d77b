/*
 * Decoders of tokens: an embedding, layers of attention and a feed-forward block with residuals
 * around both, a norm, a scoring head. A family says by what names a checkpoint has the tensors and
 * reads its configuration into a shape; the plan is made here.
 */
#ifndef EVQ_WORKER_MODEL_DECODER_H
#define EVQ_WORKER_MODEL_DECODER_H

#include "worker/models/config.h"
#include "worker/models/model.h"

/* Without ".weight" and ".bias". NULL: the family has none. */
struct evq_decoder_names {
    const char *inside; // "model.": before all but the head; may be missing together with it.
    const char *embedding, *positions;
    const char *layer;          // "layers.": followed by a number, a point and the names below.
    const char *attention_norm; // Before the attention.
    const char *qkv;            // All three in one tensor, else
    const char *query, *key, *value;
    const char *query_norm, *key_norm;
    const char *attention_out;
    const char *mlp_norm;
    const char *gate, *up, *down;
    const char *final_norm;
    const char *head;
    const char *const *buffers; // Ends of names that are no weights, NULL-terminated.
    bool conv1d; // Matrices of the layers may be [in, out]; the shape of qkv says so.
};

struct evq_decoder { // The shape of one model. Zero: the feature is not there.
    int32_t layers, hidden, heads, kv_heads, inner, vocabulary;
    int32_t head_dim; // 0: hidden does not divide into heads.
    int32_t context;  // Longest sequence.
    enum evq_activation activation;
    float epsilon;                                      // Of the norms.
    bool layer_norm;                                    // Else RMS.
    bool norm_one_plus;                                 // The norms scale by 1 + weight.
    bool norm_bias, qkv_bias, attention_bias, mlp_bias; // attention: behind it.
    bool qk_norm;                                       // Of each head, before it turns.
    bool gated;
    bool tied;                // The head is the embedding.
    float embedding_scale;    // 0: 1.
    float attention_scale;    // 0: 1 / sqrt(head_dim).
    bool scale_by_layer;      // Divided by the layer's number, from 1.
    const float *frequencies; // head_dim / 2 of them, in the model's arena: rotary positions.
    float rope_scale;         // Of cosine and sine.
    int32_t window;           // 0: none.
    const bool *windowed;     // Which layers have it, in the model's arena; NULL: all.
};

/* Model options that every decoder has, for the list of its family. */
#define EVQ_DECODER_OPTIONS                                                                        \
    "family", "key", "base", "adapter", "prefix", "config_path", "ignore", "ignore.#"

struct evq_decoder_kind {
    const struct evq_decoder_names *names;
    // Keys of config.json that read() honours, NULL-terminated; more may be NULL. A file with
    // others is refused (worker/models/config_keys.h).
    const char *const *keys, *const *more_keys;
    /* Faults are kept in config. decoder is zeroed; arena is the model's. */
    void (*read)(struct evq_model_config *config, struct evq_arena *arena,
                 struct evq_decoder *decoder);
};

/* For struct evq_model_family. */
enum evq_status evq_decoder_check(const struct evq_model_family *family,
                                  const struct evq_task_config *task, struct evq_error *err);
enum evq_status evq_decoder_build(const struct evq_model_family *family,
                                  const struct evq_model_request *request, struct evq_model *model,
                                  struct evq_error *err);

/* By the names that configurations have for it ("gelu_new"); an unknown one is a fault. */
enum evq_activation evq_decoder_activation(struct evq_model_config *config, const char *name,
                                           const char *fallback);

#endif
