/*
 * What the families that are built like Llama share: the names of tensors, and most of the
 * configuration.
 */
#ifndef EVQ_WORKER_MODELS_LLAMA_H
#define EVQ_WORKER_MODELS_LLAMA_H

#include "worker/models/decoder.h"

extern const struct evq_decoder_names evq_llama_names;
extern const char *const evq_llama_options[];
extern const char *const evq_llama_keys[]; // For struct evq_decoder_kind.

struct evq_llama_defaults { // Values for missing keys of a configuration; 0: as in Llama.
    int32_t kv_heads;       // In Llama: as many as heads.
    int32_t head_dim;       // In Llama: hidden / heads.
    bool tied;
};

/* Reads a Llama without its rotary positions (evq_rope_read), which need head_dim first. */
void evq_llama_read(struct evq_model_config *config, const struct evq_llama_defaults *defaults,
                    struct evq_decoder *decoder);

/* Reads sliding_window for the layers that layer_types names, otherwise for the layers from `first`
 * on. */
void evq_llama_read_windows(struct evq_model_config *config, struct evq_arena *arena,
                            struct evq_decoder *decoder, int64_t first);

#endif
