/* Reads and writes whole files: all bytes or an error, also when signals arrive. Any thread.
 * Messages call the file by `name`. All functions can return EVQ_E_IO. */
#ifndef EVQ_SHARED_BASE_FILE_H
#define EVQ_SHARED_BASE_FILE_H

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

/* Syncs the file to disk. EVQ_E_GONE: it was removed, so nobody will find the data. */
enum evq_status evq_file_sync(int fd, const char *name, struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_CORRUPT: the file ends before offset + bytes. */
enum evq_status evq_file_read_at(int fd, void *out, size_t bytes, uint64_t offset, const char *name,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Appends the content of a regular file. The path is relative to dir_fd (AT_FDCWD: the working
 * directory); flags are further flags of open(), such as O_NOFOLLOW. Never waits for a pipe.
 * EVQ_E_NOT_FOUND, EVQ_E_INVALID (not a regular file), EVQ_E_LIMIT (more than bytes_max),
 * EVQ_E_NOMEM.
 */
enum evq_status evq_file_read(int dir_fd, const char *path, int flags, size_t bytes_max,
                              struct evq_buffer *out, struct evq_error *err) EVQ_CHECK_RESULT;

/* Replaces the content in one step: readers see the old content or the new. One writer at a time
 * for one path. Not synced to disk. */
enum evq_status evq_file_replace(const char *path, const void *data, size_t bytes, mode_t mode,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes a directory and its parents, as mkdir -p does. New ones get mode. EVQ_E_LIMIT. */
enum evq_status evq_file_make_directories(const char *path, mode_t mode,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether both describe one file with unchanged content, as far as stat() can tell. */
bool evq_file_unchanged(const struct stat *before, const struct stat *now);

/* Closes *fd unless it is -1, and sets it to -1. For files where a failed close loses nothing: they
 * were only read, or are synced, or their error is already reported. */
void evq_file_close(int *fd);

/* Finds a program as execvp() does: a name with a slash as it stands, any other in $PATH. False: it
 * is not there, or must not be executed. */
bool evq_file_program_find(const char *name, char *out, size_t out_bytes);

/* Writes "cannot be executed: " and the reason. fault: the errno of the attempt. If the file lacks
 * the permission, says how to give it. Returns out. */
char *evq_file_program_fault(const char *name, int fault, char *out, size_t out_bytes);

bool evq_file_directory_has_entries(const char *path);         // False also if it cannot be read.
bool evq_file_ends_with(const char *path, const char *ending); // ".json"

#endif
