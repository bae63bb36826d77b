/*
 * Files as wholes: all of the bytes or an error, whatever signals come between. Any thread. name is
 * what messages call the file. Errors unless said otherwise: EVQ_E_IO.
 */
#ifndef EVQ_SHARED_FILE_H
#define EVQ_SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "shared/base/buffer.h"

enum evq_status evq_file_write(int fd, const void *data, size_t bytes, const char *name,
                               struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_file_write_at(int fd, const void *data, size_t bytes, uint64_t offset,
                                  const char *name, struct evq_error *err) EVQ_CHECK_RESULT;

/* What was written is on the disk, in a file that still has a name: EVQ_E_GONE where it was
 * removed, so that nobody will ever find it. */
enum evq_status evq_file_sync(int fd, const char *name, struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_CORRUPT: the file ends before offset + bytes. */
enum evq_status evq_file_read_at(int fd, void *out, size_t bytes, uint64_t offset, const char *name,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Appends the whole of a regular file, opened below dir_fd (AT_FDCWD: the working directory) with
 * further flags such as O_NOFOLLOW; never waits for a pipe. EVQ_E_NOT_FOUND, EVQ_E_INVALID (no
 * regular file), EVQ_E_LIMIT (more than bytes_max: nothing was read unless it grew meanwhile),
 * EVQ_E_NOMEM.
 */
enum evq_status evq_file_read(int dir_fd, const char *path, int flags, size_t bytes_max,
                              struct evq_buffer *out, struct evq_error *err) EVQ_CHECK_RESULT;

/* The file has the old content or the new, never a part. One writer at a time for one path; not
 * synced to disk. */
enum evq_status evq_file_replace(const char *path, const void *data, size_t bytes, mode_t mode,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* As mkdir -p does; mode is of those that are new. EVQ_E_LIMIT. */
enum evq_status evq_file_make_directories(const char *path, mode_t mode,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* One file, and its content the same, as far as that can be told without reading it. */
bool evq_file_unchanged(const struct stat *before, const struct stat *now);

/* Closes *fd unless it is -1, and makes it -1. Where a failed close loses nothing: after reading,
 * or a sync, or a failure that is reported already. */
void evq_file_close(int *fd);

/* Where execvp() would find a program: a name with a slash as it stands, any other in $PATH. False:
 * it is not there, or must not be executed. */
bool evq_file_program_find(const char *name, char *out, size_t out_bytes);

bool evq_file_ends_with(const char *path, const char *ending); // ".json"

/* An empty file without a name, on the file system of directory: it goes with its descriptor, also
 * when the process is killed. The caller closes it. EVQ_E_LIMIT. */
enum evq_status evq_file_unnamed(const char *directory, int *ret_fd,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
