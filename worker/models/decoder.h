/*
 * Decoders of tokens: an embedding, layers of attention and a feed-forward block with residuals
 * around both, a norm, and a scoring head. A family gives the names of its tensors and reads its
 * configuration into a shape; this file makes the plan.
 */
#ifndef EVQ_WORKER_MODELS_DECODER_H
#define EVQ_WORKER_MODELS_DECODER_H

#include "worker/models/config.h"
#include "worker/models/model.h"

/* Names without ".weight" and ".bias". NULL: the family has no such tensor. */
struct evq_decoder_names {
    // "model.": prefix of everything except the head; the checkpoint may leave it out everywhere.
    const char *inside;
    const char *embedding, *positions;
    const char *layer; // "layers.": followed by a number, a dot and one of the names below.
    const char *attention_norm; // The norm before the attention.
    const char *qkv;            // Queries, keys and values in one tensor; otherwise:
    const char *query, *key, *value;
    const char *query_norm, *key_norm;
    const char *attention_out;
    const char *mlp_norm;
    const char *gate, *up, *down;
    const char *final_norm;
    const char *head;
    const char *const *buffers; // Endings of names that are not weights, NULL-terminated.
    bool conv1d;                // The layers' matrices may be [in, out]; the shape of qkv shows it.
};

struct evq_decoder { // The shape of one model. Zero: the model lacks the feature.
    int32_t layers, hidden, heads, kv_heads, inner, vocabulary;
    int32_t head_dim; // 0: hidden is not divisible by the number of heads.
    int32_t context;  // The longest sequence.
    enum evq_activation activation;
    float epsilon;      // Epsilon of the norms.
    bool layer_norm;    // Layer norms; otherwise RMS norms.
    bool norm_one_plus; // The norms scale by 1 + weight.
    // attention_bias is the one of the output projection.
    bool norm_bias, qkv_bias, attention_bias, mlp_bias;
    bool qk_norm; // Each head of queries and keys is normed before the rotation.
    bool gated;
    bool tied;                // The head is the embedding.
    float embedding_scale;    // 0 means 1.
    float attention_scale;    // 0 means 1 / sqrt(head_dim).
    bool scale_by_layer;      // The scale is divided by the number of the layer, counted from 1.
    const float *frequencies; // Rotary positions: head_dim / 2 values in the model's arena.
    float rope_scale;         // Factor of cosine and sine.
    int32_t window;           // 0: no window.
    const bool *windowed;     // Which layers have the window, in the model's arena; NULL: all.
};

/* Model options that every decoder has, for the option list of a family. */
#define EVQ_DECODER_OPTIONS                                                                        \
    "family", "key", "base", "adapter", "prefix", "config_path", "ignore", "ignore.#"

struct evq_decoder_kind {
    const struct evq_decoder_names *names;
    // Keys of config.json that read() handles, NULL-terminated; more_keys may be NULL. A file with
    // other keys is refused (worker/models/config_keys.h).
    const char *const *keys, *const *more_keys;
    /* Fills in decoder, which is zeroed; arena is the model's. Faults are kept in config. */
    void (*read)(struct evq_model_config *config, struct evq_arena *arena,
                 struct evq_decoder *decoder);
};

/* Functions for struct evq_model_family. */
enum evq_status evq_decoder_check(const struct evq_model_family *family,
                                  const struct evq_task_config *task, struct evq_error *err);
enum evq_status evq_decoder_build(const struct evq_model_family *family,
                                  const struct evq_model_request *request, struct evq_model *model,
                                  struct evq_error *err);

/* Reads an activation by its name in configurations ("gelu_new"). An unknown name is a fault. */
enum evq_activation evq_decoder_activation(struct evq_model_config *config, const char *name,
                                           const char *fallback);

#endif
