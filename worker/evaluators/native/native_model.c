#include "worker/evaluators/native/native_model.h"

enum evq_status evq_native_model_build(const struct evq_task *task,
                                       const struct evq_task_config *config,
                                       const struct evq_checkpoint *checkpoint, int32_t *ret_length,
                                       struct evq_model **ret_model, struct evq_error *err)
{
    struct evq_model_request request = {
        .checkpoint = checkpoint, .task = config, .rows_max = EVQ_NATIVE_CPU_ROWS};
    enum evq_compute compute = EVQ_COMPUTE_F32;

    enum evq_status status = task->head(config, &request.head, err);
    if (status == EVQ_OK) {
        status = evq_task_token_options(config, ret_length, &compute, err);
    }
    if (status == EVQ_OK) {
        status = evq_model_build(&request, ret_model, err);
    }
    if (status == EVQ_OK) {
        (*ret_model)->plan.compute = compute;
    }
    return status;
}
