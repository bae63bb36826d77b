/*
 * Computes the frequencies of rotary positions as Transformers does (modeling_rope_utils.py). It
 * supports the types default, linear, llama3 and yarn. Others depend on the length of the text and
 * are refused.
 */
#ifndef EVQ_WORKER_MODELS_ROPE_H
#define EVQ_WORKER_MODELS_ROPE_H

#include "worker/models/decoder.h"

/* Sets frequencies (head_dim / 2 values, in arena) and rope_scale. head_dim and context must be
 * set. Faults are kept in config. */
void evq_rope_read(struct evq_model_config *config, struct evq_arena *arena,
                   struct evq_decoder *decoder);

#endif
