/*
 * Finds the folders of a checkpoint and of its base model. Files are opened only beneath the
 * configured roots. Any thread.
 */
#ifndef EVQ_WORKER_CONVERT_CHECKPOINT_FOLDERS_H
#define EVQ_WORKER_CONVERT_CHECKPOINT_FOLDERS_H

#include <limits.h>

#include "shared/checkpoint/checkpoint.h"
#include "shared/config/config.h"

#define EVQ_BASE_ROOTS_MAX 65

/* Opens the folder of a checkpoint: the checkpoint itself, or the folder of its file. */
enum evq_status evq_checkpoint_folder_open(int root_fd, const char *path, int *ret_fd,
                                           bool *ret_is_directory,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_base_roots { // The directories in which the base of an adapter is searched.
    int fds[EVQ_BASE_ROOTS_MAX];
    size_t count;
    char base[PATH_MAX]; // Absolute, without links; "": not named.
};

/*
 * Opens the configured roots. base is the directory that the user names, and need not be beneath a
 * root; NULL or "": none. *ret_base is its real path, or "". After EVQ_OK, the caller closes the
 * roots with evq_base_roots_close(). EVQ_E_NOT_FOUND: base does not exist.
 */
enum evq_status evq_base_roots_open(struct evq_base_roots *roots, const struct evq_config *config,
                                    const char *base, const char **ret_base,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_base_roots_close(struct evq_base_roots *roots);

/* Opens the weights of the base that the user names. *ret_weights is NULL if the base has no
 * weights, or if the checkpoint is an adapter, which was opened merged with its base. */
enum evq_status evq_base_weights_open(const struct evq_base_roots *roots, const char *base,
                                      const struct evq_checkpoint *checkpoint,
                                      struct evq_checkpoint **ret_weights,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
