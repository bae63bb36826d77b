/*
 * What adapter_config.json of PEFT says of a LoRA adapter. For adapter.c; one thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_ADAPTER_CONFIG_H
#define EVQ_SHARED_CHECKPOINT_ADAPTER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/arena.h"

/* One entry of alpha_pattern: the modules it matches have an alpha of their own. */
struct evq_adapter_alpha {
    const char *pattern;
    double alpha;
};

struct evq_adapter_config {
    const char *base; // base_model_name_or_path; NULL: none.
    double alpha;
    bool rank_stabilized; // use_rslora: scaled by alpha / sqrt(rank), else by alpha / rank.
    bool fan_in_fan_out;  // Weights are [in, out], as those of Conv1D.
    struct evq_adapter_alpha *alphas; // In the order of the file: the first match counts.
    size_t alpha_count;
};

/*
 * Reads text (changed by it) of bytes; what is kept is copied to arena. EVQ_E_INCOMPLETE: it ends
 * early. EVQ_E_UNSUPPORTED names the kind of adapter, or the setting, that is not merged: whatever
 * changes the result and is not known here.
 */
enum evq_status evq_adapter_config_read(char *text, size_t bytes, struct evq_arena *arena,
                                        struct evq_adapter_config *ret_config,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* What the product of the two matrices of a module is multiplied with. */
double evq_adapter_config_scaling(const struct evq_adapter_config *config, const char *module,
                                  long long rank);

#endif
