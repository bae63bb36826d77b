/* A directory that one process holds by a lock file in it. Any thread. */
#ifndef EVQ_LOGGER_DIRECTORY_LOCK_H
#define EVQ_LOGGER_DIRECTORY_LOCK_H

#include "shared/base/error.h"

/*
 * Takes DIRECTORY/NAME, which then holds our process id. The lock ends when the caller closes
 * *ret_fd, or with the process.
 * Errors: EVQ_E_CONFLICT (names the process that holds it), EVQ_E_IO (also a file system without
 * locks), EVQ_E_LIMIT.
 */
enum evq_status evq_directory_lock_take(const char *directory, const char *name, int *ret_fd,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

#endif
