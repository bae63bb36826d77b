/*
 * A checkpoint while its reader fills it: files, tensors, and the memory they stand on. For the
 * readers in this folder.
 */
#ifndef EVQ_SHARED_CHECKPOINT_BUILDER_H
#define EVQ_SHARED_CHECKPOINT_BUILDER_H

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
    int root_fd;      // Its own descriptor.
    const char *path; // Beneath the root.
};

struct evq_checkpoint_builder {
    struct evq_checkpoint checkpoint;
    struct evq_file_identity *identities; // One a file.
    size_t file_capacity;
    size_t tensor_capacity;
    void **kept; // Memory that names point into.
    size_t kept_count;
    size_t kept_capacity;
    struct evq_pickle *pickle;    // Of the torch file that holds the weights; NULL: none.
    struct evq_folder folders[2]; // Where what belongs to the weights lies: its own, its base's.
    size_t folder_count;
};

/* Empty, with a copy of path for messages. */
enum evq_status evq_builder_new(const char *path, struct evq_checkpoint **ret_checkpoint,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes over fd, also on failure. name is copied. */
enum evq_status evq_builder_add_file(struct evq_checkpoint *checkpoint, const char *name, int fd,
                                     const struct stat *info, int32_t *ret_file,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Checks the name's length, that the bytes lie inside the file and that pieces fill the tensor, and
 * copies the struct; name and pieces must live as long as the checkpoint (arena, or kept memory).
 */
enum evq_status evq_builder_add_tensor(struct evq_checkpoint *checkpoint,
                                       const struct evq_tensor *tensor,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees memory with the checkpoint; on failure at once. */
enum evq_status evq_builder_keep(struct evq_checkpoint *checkpoint, void *memory,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes over a pickle and the bytes it was read from, also on failure; the first one is kept. */
enum evq_status evq_builder_keep_pickle(struct evq_checkpoint *checkpoint,
                                        struct evq_pickle *pickle, uint8_t *data,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* One more place where files beside the weights are looked for, after those before; root_fd stays
 * the caller's. */
enum evq_status evq_builder_add_folder(struct evq_checkpoint *checkpoint, int root_fd,
                                       const char *folder, struct evq_error *err) EVQ_CHECK_RESULT;

/* Sorts the tensors by name and refuses two of one name. */
enum evq_status evq_builder_finish(struct evq_checkpoint *checkpoint,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads exactly bytes at offset of a file; EVQ_E_CHANGED when it ends before. */
enum evq_status evq_checkpoint_read_bytes(const struct evq_checkpoint *checkpoint, int32_t file,
                                          uint64_t offset, void *out, size_t bytes,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* A file's descriptor as read by evq_checkpoint_read_bytes(): for readers that have no checkpoint
 * at hand.
 */
enum evq_status evq_checkpoint_read_fd(int fd, uint64_t offset, void *out, size_t bytes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Fills strides for C order; *ret_elements is the product of the shape. False on overflow. */
bool evq_tensor_c_order(struct evq_tensor *tensor, uint64_t *ret_elements);

#endif
