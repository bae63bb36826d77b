/*
 * A pickle, and what the torch reader makes of it: the dict it selects, every tensor's view.
 */
#include <string.h>

#include "shared/checkpoint/torch/torch.h"
#include "tests/fuzz/check.h"

/* What a view promises: its last element lies inside its storage. */
static enum evq_status visit(void *context, const char *name, const struct evq_pickle_node *tensor,
                             struct evq_error *err)
{
    struct evq_torch_view view;
    uint64_t last = 0;
    bool empty = false;

    (void)context;
    check(strlen(name) <= EVQ_CHECKPOINT_NAME_BYTES_MAX);
    enum evq_status status = evq_torch_view(tensor, &view, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (int32_t i = 0; i < view.tensor.rank; i++) {
        check(view.tensor.shape[i] >= 0 && view.tensor.strides[i] >= 0);
        empty = empty || view.tensor.shape[i] == 0;
        last += (uint64_t)(view.tensor.shape[i] - 1) * (uint64_t)view.tensor.strides[i];
    }
    check(empty || view.first_element + last < view.storage.elements);
    return EVQ_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct evq_checkpoint_options regular;
    static const struct evq_checkpoint_options ema = {.variant = "ema"};
    static const struct evq_checkpoint_options key = {.key = "a.b"};
    const struct evq_checkpoint_options *asked[] = {&regular, &ema, &key};
    struct evq_pickle *pickle = NULL;
    struct evq_error err = {.message = ""};

    if (evq_pickle_read(data, bytes, &pickle, &err) != EVQ_OK) {
        check(err.message[0] != '\0' && pickle == NULL);
        return 0;
    }
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        struct evq_torch_selection choice = {.weights = NULL};
        if (evq_torch_select(evq_pickle_root(pickle), asked[i], &choice, &err) == EVQ_OK &&
            evq_torch_walk(choice.weights, visit, NULL, &err) != EVQ_OK) {
            check(err.message[0] != '\0');
        }
    }
    evq_pickle_free(pickle);
    return 0;
}
