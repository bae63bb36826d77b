/*
 * Opening files beneath a root directory, for the checkpoint readers. Any thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_ROOT_OPEN_H
#define EVQ_SHARED_CHECKPOINT_ROOT_OPEN_H

#include <sys/stat.h>

#include "shared/checkpoint/checkpoint.h"

/* As evq_root_open(), for a regular file or a directory, whichever path is; *ret_info tells. */
enum evq_status evq_root_open_any(int root_fd, const char *path, int *ret_fd, struct stat *ret_info,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * The way for kernels and sandboxes without openat2: one component after another, following no
 * symbolic link at all. Returns the descriptor, or -1 with errno.
 */
int evq_root_open_stepwise(int root_fd, const char *path, int flags);

#endif
