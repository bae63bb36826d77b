/* Reads PEFT's adapter_config.json of a LoRA adapter. For adapter.c; one thread. */
#ifndef EVQ_SHARED_CHECKPOINT_ADAPTER_ADAPTER_CONFIG_H
#define EVQ_SHARED_CHECKPOINT_ADAPTER_ADAPTER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/arena.h"

/* One entry of alpha_pattern: modules that match it have their own alpha. */
struct evq_adapter_alpha {
    const char *pattern;
    double alpha;
};

struct evq_adapter_config {
    const char *base; // base_model_name_or_path; NULL: none.
    double alpha;
    bool rank_stabilized; // use_rslora: scaled by alpha / sqrt(rank), else by alpha / rank.
    bool fan_in_fan_out;  // Weights are [in, out], like those of Conv1D.
    struct evq_adapter_alpha *alphas; // In the order of the file. The first match counts.
    size_t alpha_count;
};

/*
 * Parses text, which it changes. Kept values are copied to arena. EVQ_E_INCOMPLETE: the text ends
 * early. EVQ_E_UNSUPPORTED names the kind of adapter or the setting that cannot be merged; an
 * unknown setting is refused, because it may change the result.
 */
enum evq_status evq_adapter_config_read(char *text, size_t bytes, struct evq_arena *arena,
                                        struct evq_adapter_config *ret_config,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Factor for the product of a module's two matrices. */
double evq_adapter_config_scaling(const struct evq_adapter_config *config, const char *module,
                                  long long rank);

#endif
