/*
 * What the families built like Llama share: names of tensors, and most of their configuration.
 */
#ifndef EVQ_WORKER_MODEL_LLAMA_H
#define EVQ_WORKER_MODEL_LLAMA_H

#include "worker/models/decoder.h"

extern const struct evq_decoder_names evq_llama_names;
extern const char *const evq_llama_options[];
extern const char *const evq_llama_keys[]; // For struct evq_decoder_kind.

struct evq_llama_defaults { // Of a configuration that leaves them out; 0: as Llama has it.
    int32_t kv_heads;       // Llama: as many as heads.
    int32_t head_dim;       // Llama: hidden / heads.
    bool tied;
};

/* A Llama but for its rotary positions (evq_rope_read), which need head_dim. */
void evq_llama_read(struct evq_model_config *config, const struct evq_llama_defaults *defaults,
                    struct evq_decoder *decoder);

/* sliding_window, of the layers that layer_types names, else of those from `first` on. */
void evq_llama_read_windows(struct evq_model_config *config, struct evq_arena *arena,
                            struct evq_decoder *decoder, int64_t first);

#endif
