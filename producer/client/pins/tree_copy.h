/*
 * Cloning and removing directory trees, for pins. Any thread.
 */
#ifndef EVQ_PRODUCER_TREE_H
#define EVQ_PRODUCER_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "producer/client/pins/pin.h"

struct evq_tree_clone {
    int root_fd;           // Links are followed beneath it only.
    const char *root_path; // For messages: what source paths are relative to.
    bool reflink;          // Becomes false when the file system cannot.
    bool hard_link;
    int64_t copy_bytes_max;
    bool (*stopped)(const void *context);
    const void *stop_context;
    enum evq_pin_kind kind; // The weakest used so far.
    int64_t copied_bytes;
    int64_t bytes; // Of all files, however they were cloned.
    uint32_t files;
    bool lacks_reflink; // The file system knows none, of any file.
};

/* Clones path (a file or a directory, relative to the root) as `name` in target_fd. Errors as
 * evq_pin_make(). */
enum evq_status evq_tree_clone(struct evq_tree_clone *clone, const char *path, int target_fd,
                               const char *name, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes name in parent_fd with all below it; follows no link. Not being there is EVQ_OK. */
enum evq_status evq_tree_remove(int parent_fd, const char *name,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
