#include "worker/evaluators/native/native_model.h"

/* Whether all matrices are bf16 or fp16. Norms and biases may be fp32. */
static bool has_half_weights(const struct evq_model *model)
{
    bool half = true;

    for (size_t i = 0; i < model->source_count && half; i++) {
        const struct evq_tensor *tensor = model->sources[i].tensor;
        half = tensor == NULL || tensor->rank < 2 || tensor->dtype == EVQ_DTYPE_BF16 ||
               tensor->dtype == EVQ_DTYPE_F16;
    }
    return half;
}

enum evq_status evq_native_model_build(const struct evq_task *task,
                                       const struct evq_task_config *config,
                                       const struct evq_checkpoint *checkpoint, bool fast_bf16,
                                       int32_t *ret_length, struct evq_model **ret_model,
                                       struct evq_error *err)
{
    struct evq_model_request request = {
        .checkpoint = checkpoint, .task = config, .rows_max = EVQ_NATIVE_CPU_ROWS};
    struct evq_token_options options;

    enum evq_status status = task->head(config, &request.head, err);
    if (status == EVQ_OK) {
        status = evq_task_token_options(config, &options, err);
    }
    if (status == EVQ_OK) {
        status = evq_model_build(&request, ret_model, err);
    }
    if (status == EVQ_OK) {
        *ret_length = options.length;
        (*ret_model)->plan.compute =
            options.compute_auto && fast_bf16 && has_half_weights(*ret_model) ? EVQ_COMPUTE_BF16
                                                                              : options.compute;
    }
    return status;
}
