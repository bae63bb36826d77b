/*
 * Computes the frequencies of rotary positions as Transformers does (modeling_rope_utils.py), for
 * the types default, linear, dynamic, llama3, yarn and longrope.
 */
#ifndef EVQ_WORKER_MODELS_ROPE_H
#define EVQ_WORKER_MODELS_ROPE_H

#include "worker/models/decoder.h"

extern const char *const evq_rope_options[]; // Model options, NULL-terminated.

struct evq_rope_form {     // What is special in the configurations of a family. Zero: nothing is.
    double theta;          // rope_theta if the configuration has none; 0: 10000.
    const char *theta_key; // Its name outside rope_parameters.
    double part;           // The same for partial_rotary_factor; 0: 1.
    const char *part_key;
    double trained;      // Default of original_max_position_embeddings; 0: the context.
    bool neighbours;     // Pairs are (2 i, 2 i + 1).
    bool longrope_names; // The types "su" and "yarn" mean longrope.
    // "full_attention" or "sliding_attention": the parameters are in a group of that name. An older
    // file has one set instead. It is for full attention; plain: so it does not count here.
    const char *layers;
    bool plain;
};

/*
 * Returns the rotary positions, in arena. head_dim and context of the decoder must be set. form may
 * be NULL. Faults are kept in config; NULL if memory runs out.
 */
const struct evq_rope *evq_rope_read(struct evq_model_config *config, struct evq_arena *arena,
                                     const struct evq_decoder *decoder,
                                     const struct evq_rope_form *form);

/* For families whose default is another type of rotary positions: refuses a configuration that does
 * not say the type. */
void evq_rope_require(struct evq_model_config *config);

/* Whether the parameters have a value of this name. Not for parameters by type of layer. */
bool evq_rope_has(struct evq_model_config *config, const char *name);

#endif
