/*
 * A samples file while it is written: it has a temporary name beside its final name, and a lock
 * that ends with its writer. So nobody sees half a file, and what a killed writer left can be told
 * from a file that is still written. One thread.
 */
#ifndef EVQ_SHARED_SAMPLES_TEMPORARY_FILE_H
#define EVQ_SHARED_SAMPLES_TEMPORARY_FILE_H

#include <stdbool.h>

#include "shared/base/error.h"

#define EVQ_SAMPLES_PATH_BYTES 4096
#define EVQ_SAMPLES_SUFFIX     ".jsonl.gz"

struct evq_temporary_file {
    int fd; // -1: not open.
    char path[EVQ_SAMPLES_PATH_BYTES + 8];
};

/* Makes the directories of the final path and a file beside it. The caller ends it with finish or
 * drop. EVQ_E_IO. */
enum evq_status evq_temporary_file_open(const char *final_path, struct evq_temporary_file *ret,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Closes the file and gives it its final name. If that fails, the file is removed. EVQ_E_IO. */
enum evq_status evq_temporary_file_finish(struct evq_temporary_file *file, const char *final_path,
                                          struct evq_error *err) EVQ_CHECK_RESULT;
/* Closes and removes the file, unless fd is -1. */
void evq_temporary_file_drop(struct evq_temporary_file *file);

/* Removes the file if it has a temporary name and no writer. Returns whether it was removed. On a
 * file system without locks nothing is removed. */
bool evq_temporary_file_sweep(const char *path);

#endif
