#include "worker/evaluators/native/native_checkpoint.h"

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

enum evq_status evq_native_checkpoint_open(const struct evq_eval_request *request,
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

bool evq_native_checkpoint_same(const struct evq_task_config *a, const struct evq_task_config *b)
{
    static const char *const keys[] = {"key", "base", "adapter"};
    bool same = true;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && same; i++) {
        same = strcmp(evq_pair_get(a->model, a->model_count, keys[i], ""),
                      evq_pair_get(b->model, b->model_count, keys[i], "")) == 0;
    }
    return same;
}
