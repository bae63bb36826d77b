/*
 * Clones and removes directory trees, for pins. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_PINS_TREE_COPY_H
#define EVQ_PRODUCER_CLIENT_PINS_TREE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "producer/client/pins/pin.h"

struct evq_tree_clone {
    int root_fd;           // Symbolic links are followed only beneath this directory.
    const char *root_path; // Its path, for messages.
    bool reflink;          // Becomes false if the file system cannot clone.
    bool hard_link;
    int64_t copy_bytes_max;
    bool (*stopped)(const void *context);
    const void *stop_context;
    enum evq_pin_kind kind; // The last in the enum of the ways used so far.
    int64_t copied_bytes;
    int64_t bytes; // Bytes of all files, cloned in any way.
    uint32_t files;
    bool lacks_reflink; // The file system cannot clone any file.
};

/* Clones path (a file or a directory, relative to the root) as `name` in target_fd. Errors as
 * evq_pin_make(). */
enum evq_status evq_tree_clone(struct evq_tree_clone *clone, const char *path, int target_fd,
                               const char *name, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes name in parent_fd and everything below it. Follows no symbolic link. EVQ_OK also if it
 * does not exist. */
enum evq_status evq_tree_remove(int parent_fd, const char *name,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
