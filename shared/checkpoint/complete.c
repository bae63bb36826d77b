#include "shared/checkpoint/checkpoint.h"

enum evq_status evq_checkpoint_check_complete(int root_fd, const char *path, struct evq_error *err)
{
    static const struct evq_checkpoint_options options = {.files_only = true};
    struct evq_checkpoint *checkpoint = NULL;
    // Opening reads every header and compares it with the size of its file: that is the whole test.
    enum evq_status status = evq_checkpoint_open(root_fd, path, &options, &checkpoint, err);

    evq_checkpoint_close(checkpoint);
    return status;
}
