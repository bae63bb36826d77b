/*
 * A file without a name, for what a sink would otherwise hold in memory: it goes with its
 * descriptor, also when the process is killed. What is in it can always be read from elsewhere
 * again.
 */
#ifndef EVQ_LOGGER_SCRATCH_H
#define EVQ_LOGGER_SCRATCH_H

#include "shared/error.h"

/* Empty, on the file system of directory; the caller closes it. EVQ_E_IO, EVQ_E_LIMIT. */
enum evq_status evq_scratch_open(const char *directory, int *ret_fd,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
