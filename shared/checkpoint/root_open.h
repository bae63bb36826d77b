/* Opens files below a root directory. Any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_ROOT_OPEN_H
#define EVQ_SHARED_CHECKPOINT_ROOT_OPEN_H

#include <sys/stat.h>

#include "shared/checkpoint/checkpoint.h"

/* Like evq_root_open(), but path may be a file or a directory; *ret_info says which. */
enum evq_status evq_root_open_any(int root_fd, const char *path, int *ret_fd, struct stat *ret_info,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens the regular file folder/name, a part of a checkpoint. Returns `missing` if it is not there.
 */
enum evq_status evq_root_open_part(int root_fd, const char *folder, const char *name,
                                   enum evq_status missing, int *ret_fd, struct stat *ret_info,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* The fallback for kernels and sandboxes without openat2: opens one component after another and
 * follows no symbolic link. Returns the descriptor, or -1 with errno. */
int evq_root_open_stepwise(int root_fd, const char *path, int flags);

#endif
