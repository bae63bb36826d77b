/* A checkpoint while a reader fills it: files, tensors, and the memory that names point into. For
 * the readers in this folder; one thread. */
#ifndef EVQ_SHARED_CHECKPOINT_CHECKPOINT_BUILDER_H
#define EVQ_SHARED_CHECKPOINT_CHECKPOINT_BUILDER_H

#include <sys/stat.h>

#include "shared/checkpoint/checkpoint.h"
#include "shared/checkpoint/torch/pickle.h"

#define EVQ_SHOWN_BYTES 160 // Room for an escaped name inside a message.

struct evq_file_identity {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec modified;
};

struct evq_folder {
    int root_fd;      // A duplicate, closed with the checkpoint.
    const char *path; // Relative to the root.
};

struct evq_checkpoint_builder {
    struct evq_checkpoint checkpoint;
    struct evq_file_identity *identities; // One per file.
    size_t file_capacity;
    size_t tensor_capacity;
    void **kept; // Memory that names point into.
    size_t kept_count;
    size_t kept_capacity;
    struct evq_pickle *pickle;    // The torch file that holds the weights; NULL: none.
    struct evq_folder folders[2]; // Folders of the weights and, for an adapter, of its base.
    size_t folder_count;
};

/* Makes an empty checkpoint with a copy of path for messages. */
enum evq_status evq_builder_new(const char *path, struct evq_checkpoint **ret_checkpoint,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds an open file. Takes over fd, also on failure; name is copied. */
enum evq_status evq_builder_add_file(struct evq_checkpoint *checkpoint, const char *name, int fd,
                                     const struct stat *info, int32_t *ret_file,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Adds a copy of the struct after checking the length of the name, that the bytes are inside the
 * file and that pieces fill the tensor. name and pieces must live as long as the checkpoint (arena
 * or kept memory).
 */
enum evq_status evq_builder_add_tensor(struct evq_checkpoint *checkpoint,
                                       const struct evq_tensor *tensor,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees memory with the checkpoint, or at once on failure. */
enum evq_status evq_builder_keep(struct evq_checkpoint *checkpoint, void *memory,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Takes over a pickle and the bytes it was read from, also on failure. Only the first one is kept.
 */
enum evq_status evq_builder_keep_pickle(struct evq_checkpoint *checkpoint,
                                        struct evq_pickle *pickle, uint8_t *data,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds a folder in which sibling files are looked for, after those added before. root_fd stays the
 * caller's. */
enum evq_status evq_builder_add_folder(struct evq_checkpoint *checkpoint, int root_fd,
                                       const char *folder, struct evq_error *err) EVQ_CHECK_RESULT;

/* Compares two struct evq_tensor by name, for qsort(). */
int evq_tensor_compare_names(const void *left, const void *right);

/* Sorts the tensors by name and refuses two of one name. */
enum evq_status evq_builder_finish(struct evq_checkpoint *checkpoint,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads exactly `bytes` at `offset` of a file. EVQ_E_CHANGED: the file ends before. */
enum evq_status evq_checkpoint_read_bytes(const struct evq_checkpoint *checkpoint, int32_t file,
                                          uint64_t offset, void *out, size_t bytes,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* The same for a descriptor, for readers without a checkpoint. */
enum evq_status evq_checkpoint_read_fd(int fd, uint64_t offset, void *out, size_t bytes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Fills strides for C order; *ret_elements is the product of the shape. False on overflow. */
bool evq_tensor_c_order(struct evq_tensor *tensor, uint64_t *ret_elements);

#endif
