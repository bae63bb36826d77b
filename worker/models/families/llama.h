/*
 * What the families that are built like Llama share: the names of tensors, and most of the
 * configuration.
 */
#ifndef EVQ_WORKER_MODELS_FAMILIES_LLAMA_H
#define EVQ_WORKER_MODELS_FAMILIES_LLAMA_H

#include "worker/models/decoder.h"
#include "worker/models/rope.h"

// Initialise the names that a family shares with Llama.
#define EVQ_LLAMA_FRAME                                                                            \
    .inside = "model.", .embedding = "embed_tokens", .layer = "layers.", .final_norm = "norm",     \
    .head = "lm_head", .buffers = evq_llama_buffers
#define EVQ_LLAMA_ATTENTION                                                                        \
    .query = "self_attn.q_proj", .key = "self_attn.k_proj", .value = "self_attn.v_proj",           \
    .query_norm = "self_attn.q_norm", .key_norm = "self_attn.k_norm",                              \
    .attention_out = "self_attn.o_proj"
#define EVQ_LLAMA_MLP .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"

// Experts whose matrices are named like those of an MLP.
#define EVQ_LLAMA_EXPERTS                                                                          \
    .router = "mlp.gate", .expert = "mlp.experts.", .expert_gate = "gate_proj",                    \
    .expert_up = "up_proj", .expert_down = "down_proj", EVQ_LLAMA_JOINED
// All experts of a layer are in two tensors: gates and ups, and downs.
#define EVQ_LLAMA_JOINED                                                                           \
    .joined_up = "mlp.experts.gate_up_proj", .joined_down = "mlp.experts.down_proj"

extern const char *const evq_llama_buffers[];
extern const struct evq_decoder_names evq_llama_names; // With norms before both blocks.
extern const char *const evq_llama_keys[];             // For struct evq_decoder_kind.

struct evq_llama_defaults { // Values for missing keys of a configuration; 0: as in Llama.
    int32_t kv_heads;       // In Llama: as many as heads.
    int32_t head_dim;       // In Llama: hidden / heads.
    bool tied, attention_bias;
    double epsilon;                          // In Llama: 1e-6.
    const char *epsilon_key;                 // "rms_norm_eps".
    const char *activation_key, *activation; // "hidden_act", "silu".
};

/* Reads a Llama without its rotary positions (evq_rope_read), which need head_dim first. */
void evq_llama_read(struct evq_model_config *config, const struct evq_llama_defaults *defaults,
                    struct evq_decoder *decoder);

/* Reads the numbers of experts, of all and of a token, with values for missing keys. They are as
 * wide as the MLP. */
void evq_llama_read_experts(struct evq_model_config *config, int64_t experts, int64_t of_token,
                            struct evq_decoder *decoder);

struct evq_llama_windows { // Which layers have the window if there are no layer_types.
    int64_t first;         // From this layer on,
    int64_t pattern;       // except the last of so many layers; 0: no exception.
    int64_t window;        // The window if sliding_window is missing; 0: none.
};

/* Reads sliding_window and layer_types. */
void evq_llama_read_windows(struct evq_model_config *config, struct evq_arena *arena,
                            const struct evq_llama_windows *windows, struct evq_decoder *decoder);

#endif
