/* Opens the checkpoint of a request as one of its tasks reads it. */
#include "worker/evaluators/native/native_run.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define ROOTS_MAX 64 // Roots in which the base of an adapter is searched.

static enum evq_status open_path(const struct evq_eval_request *request,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_checkpoint **ret_checkpoint, struct evq_error *err)
{
    if (request->prepared == NULL || request->prepared[0] == '\0') {
        return evq_checkpoint_open(request->root_fd, request->path, options, ret_checkpoint, err);
    }
    const int fd = open(request->prepared, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open prepared checkpoint '%s': %s", request->prepared,
                             strerror(errno));
    }
    const enum evq_status status = evq_checkpoint_open(fd, ".", options, ret_checkpoint, err);
    (void)close(fd); // It was opened for reading, so a failed close loses nothing.
    return status;
}

static enum evq_status checkpoint_open(const struct evq_eval_request *request,
                                       const struct evq_task_config *config,
                                       struct evq_checkpoint **ret_checkpoint,
                                       struct evq_error *err)
{
    int root_fds[ROOTS_MAX];
    struct evq_checkpoint_options options = {
        .key = evq_pair_get(config->model, config->model_count, "key", ""),
        .variant = evq_eval_variant(request),
        .base = evq_pair_get(config->model, config->model_count, "base", ""),
        .adapter = evq_pair_get(config->model, config->model_count, "adapter", ""),
        .root_fds = root_fds,
    };

    options.root_count =
        request->config != NULL ? evq_config_roots_open(request->config, root_fds, ROOTS_MAX) : 0;
    const enum evq_status status = open_path(request, &options, ret_checkpoint, err);
    for (size_t i = 0; i < options.root_count; i++) {
        (void)close(root_fds[i]); // They are directories, so a failed close loses nothing.
    }
    return status;
}

/* Whether both tasks read the same weights of a checkpoint: they have the same key, base and
 * adapter. */
static bool same_weights(const struct evq_task_config *a, const struct evq_task_config *b)
{
    static const char *const keys[] = {"key", "base", "adapter"};
    bool same = true;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && same; i++) {
        same = strcmp(evq_pair_get(a->model, a->model_count, keys[i], ""),
                      evq_pair_get(b->model, b->model_count, keys[i], "")) == 0;
    }
    return same;
}

void evq_native_close_checkpoint(struct evq_native_run *run)
{
    evq_checkpoint_close(run->checkpoint);
    run->checkpoint = NULL;
    // The model's tensors are gone, and the backend's memory is used for the new ones.
    run->loaded = NULL;
}

enum evq_status evq_native_open_checkpoint(struct evq_native_run *run, struct evq_error *err)
{
    if (run->checkpoint != NULL && same_weights(run->opened, run->config)) {
        return EVQ_OK;
    }
    evq_native_close_checkpoint(run);
    run->opened = run->config;
    return checkpoint_open(run->request, run->config, &run->checkpoint, err);
}
