/*
 * Decoders of tokens: an embedding, layers of attention and a feed-forward block with residuals
 * around both, a norm, and a scoring head. An encoder is a decoder whose attention looks in both
 * directions and whose head chooses a class (worker/models/classifier.h); it may read an image in
 * the place of tokens. A family gives the names of its tensors and reads its configuration into a
 * shape; this file makes the plan.
 */
#ifndef EVQ_WORKER_MODELS_DECODER_H
#define EVQ_WORKER_MODELS_DECODER_H

#include "worker/models/config.h"
#include "worker/models/model.h"

/* Names without ".weight" and ".bias". NULL: the family has no such tensor. */
struct evq_decoder_names {
    // "model.": prefix of everything except the head; the checkpoint may leave it out everywhere.
    const char *inside;
    const char *embedding, *positions, *types;
    const char *embedding_norm; // The norm of the embedding.
    const char *layer; // "layers.": followed by a number, a dot and one of the names below.
    const char *attention_norm; // The norm before the attention.
    const char *qkv;            // Queries, keys and values in one tensor; otherwise:
    const char *query, *key, *value;
    const char *query_norm, *key_norm; // EVQ_QK_NORM_EACH: followed by the number of a head.
    const char *attention_out;
    const char *attention_post_norm; // The norm of what the attention adds to the stream.
    const char *attention_sum_norm;  // The norm of the stream after that.
    const char *mlp_norm;            // NULL: in parallel blocks it is the attention's.
    const char *gate_up;             // Gate and up in one tensor; otherwise:
    const char *gate, *up, *down;
    const char *mlp_post_norm, *mlp_sum_norm;
    // Layers with experts: the logits that choose them, and "mlp.experts.", which is followed by a
    // number, a dot and the names of an expert's matrices.
    const char *router, *expert, *expert_gate, *expert_up, *expert_down;
    // One tensor for all experts of a layer, as a model in memory and some files have it: [experts,
    // out, in], the gates before the ups. joined_router: the router's name in such a checkpoint;
    // NULL: the same. Families without `expert` have [experts, in, out], alternating gates and ups,
    // and biases in tensors of the same names with "_bias".
    const char *joined_up, *joined_down, *joined_router;
    const char *sinks; // For each head of the attention, one more logit, which has no value.
    const char *final_norm;
    const char *head, *other_head; // Two names of the head; the second may be NULL.
    // Classifiers: a matrix and a norm before the head.
    const char *dense, *dense_norm;
    bool dense_inside; // dense and dense_norm have the prefix `inside`.
    // Images: the token before the patches. The embedding is then the product over the patches.
    const char *class_token;
    const char *const *buffers; // Endings of names that are not weights, NULL-terminated.
    bool conv1d;                // The layers' matrices may be [in, out]; the shape of qkv shows it.
};

struct evq_rope {   // Rotary positions. The arrays are in the model's arena.
    int32_t turned; // So many values of each head rotate, in pairs.
    bool neighbours;
    float scale;    // Factor of cosine and sine.
    double trained; // The longest sequence of the training.
    // For each pair. far_frequencies is for sequences of more than `near` tokens; NULL: none.
    const float *frequencies, *far_frequencies;
    int32_t near;
};

enum evq_qk_norm { // How queries and keys are normed before the rotation.
    EVQ_QK_NORM_NONE,
    EVQ_QK_NORM_HEADS, // An RMS norm of each head.
    EVQ_QK_NORM_OWN,   // A layer norm of each head; one tensor has the weights of all heads.
    EVQ_QK_NORM_EACH,  // A layer norm of each head; each head has a tensor of its own.
    EVQ_QK_NORM_WHOLE  // An RMS norm of all heads together.
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
    enum evq_qk_norm qk_norm;
    bool qkv_mixed; // The tensor qkv has the queries, keys and values of one head after another.
    bool gated;
    bool parallel;    // Both blocks of a layer read the layer's input, and are added to it.
    bool shared_norm; // The feed-forward block has no norm of its own, as if mlp_norm were NULL.
    bool tied;        // The head is the embedding.
    float embedding_scale; // 0 means 1.
    float residual_scale;  // Factor of what a block adds to the stream; 0 means 1.
    float attention_scale; // 0 means 1 / sqrt(head_dim).
    float attention_cap, logit_scale, logit_cap; // As in struct evq_op: 0 changes nothing.
    bool scale_by_layer; // The attention's scale is divided by the layer's number, from 1 on.
    const struct evq_rope *rope;        // NULL: no rotary positions.
    const struct evq_rope *window_rope; // For layers with a window; NULL: the same.
    const bool *turns;                  // Which layers rotate, in the model's arena; NULL: all.
    int32_t window;                     // 0: no window.
    int32_t experts;                    // Experts of a layer; 0: no layer has any.
    int32_t expert_count, expert_inner; // Experts of a token, and their width.
    bool router_bias;                   // The router has a bias.
    float expert_slope, expert_cap;     // Joined experts: scale and cap of EVQ_OP_EXPERTS.
    bool route_whole;     // The weights of the chosen experts come from a softmax over all experts.
    const bool *dense;    // Which layers have no experts, in the model's arena; NULL: none.
    const bool *windowed; // Which layers have the window, in the model's arena; NULL: all.
    bool both;            // The attention looks in both directions.
    bool bare_first;      // The first layer has no norm before its attention.
    int32_t types;        // Types of tokens; 0: the model has none.
    bool typeless;        // Every token has the type 0.
    int32_t first_place;  // The first token's row in the table of positions.
    int32_t padding;      // A token that no text may contain. -1, or without classes 0: none.
    int32_t classes;      // The head chooses one of so many classes; 0: it scores tokens.
    bool mean;            // The head reads the mean of the rows instead of the first row.
    bool dense_bias;
    enum evq_activation dense_activation;
    struct evq_patches patches; // channels 0: the model reads tokens.
};

/* Model options that every decoder has besides the keys of its configuration, NULL-terminated. */
extern const char *const evq_decoder_options[];

struct evq_decoder_kind {
    const struct evq_decoder_names *names;
    // Keys of config.json that read() handles, NULL-terminated; more_keys may be NULL. A file with
    // other keys is refused (worker/models/config_keys.h). Single values may also be options.
    const char *const *keys, *const *more_keys;
    /* Fills in decoder, which is zeroed; arena is the model's. Faults are kept in config. */
    void (*read)(struct evq_model_config *config, struct evq_arena *arena,
                 struct evq_decoder *decoder);
};

/* Checks the values of the `model` options before there is a checkpoint. */
enum evq_status evq_decoder_check(const struct evq_decoder_kind *kind,
                                  const struct evq_task_config *task,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_decoder_build(const struct evq_model_family *family,
                                  const struct evq_model_request *request, struct evq_model *model,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads an activation by its name in configurations ("gelu_new"). An unknown name is a fault. */
enum evq_activation evq_decoder_activation(struct evq_model_config *config, const char *name,
                                           const char *fallback);

#endif
