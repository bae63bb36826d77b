#include <string.h>

#include "shared/checkpoint/torch/torch.h"

struct adding {
    const struct evq_torch_source *source;
    struct evq_torch_selection choice;
};

static enum evq_status add_tensor(void *context, const char *name,
                                  const struct evq_pickle_node *node, struct evq_error *err)
{
    const struct adding *adding = context;
    const struct evq_torch_source *source = adding->source;
    const size_t prefix_bytes = strlen(adding->choice.prefix);
    struct evq_torch_view view;

    if (strncmp(name, adding->choice.prefix, prefix_bytes) != 0) {
        return EVQ_OK;
    }
    name += prefix_bytes;
    enum evq_status status = evq_torch_view(node, &view, err);

    if (status == EVQ_OK) {
        status = source->place(source, &view, err);
    }
    if (status == EVQ_OK) {
        view.tensor.name = evq_arena_strdup(source->checkpoint->arena, name);
        if (view.tensor.bytes == 0) {
            view.tensor.offset = 0; // An empty view may begin where its storage ends.
        }
        status =
            view.tensor.name == NULL
                ? evq_error_set(err, EVQ_E_LIMIT, "the names of its tensors take too much memory")
                : evq_builder_add_tensor(source->checkpoint, &view.tensor, err);
    }
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "tensor '%.160s'", name); // The status stays what it is.
    }
    return status;
}

enum evq_status evq_torch_add(const struct evq_torch_source *source,
                              const struct evq_pickle_node *root,
                              const struct evq_checkpoint_options *options, struct evq_error *err)
{
    struct adding adding = {.source = source};
    enum evq_status status = evq_torch_select(root, options, &adding.choice, err);

    if (status == EVQ_OK) {
        status = evq_torch_walk(adding.choice.weights, add_tensor, &adding, err);
    }
    return status;
}
