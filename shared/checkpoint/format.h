/* The readers of checkpoints: one .c file for each file format, with a table, and one for each kind
 * of directory. For the readers in this folder; one thread. */
#ifndef EVQ_SHARED_CHECKPOINT_FORMAT_H
#define EVQ_SHARED_CHECKPOINT_FORMAT_H

#include "shared/checkpoint/checkpoint_builder.h"

#define EVQ_HEADER_BYTES_MAX 100000000u // What safetensors itself allows.

struct evq_format {
    const char *name;
    /* Whether a file that begins with head has this format. head holds the first bytes, at most
     * 512. */
    bool (*probe)(const uint8_t *head, size_t head_bytes, uint64_t file_bytes);
    /* Adds the tensors of checkpoint->files[file]. Messages do not name the file; the caller does
     * that. */
    enum evq_status (*open)(struct evq_checkpoint *checkpoint, int32_t file,
                            const struct evq_checkpoint_options *options, struct evq_error *err);
};

extern const struct evq_format evq_format_safetensors;
extern const struct evq_format evq_format_torch_zip;
extern const struct evq_format evq_format_torch_legacy;
extern const struct evq_format
    evq_format_unsupported; // Formats that are recognised by their first bytes and refused by name.

/*
 * Adds fd (taken over) as a file called name, detects its format by content and reads its tensors.
 */
enum evq_status evq_format_read(struct evq_checkpoint *checkpoint, const char *name, int fd,
                                const struct stat *info,
                                const struct evq_checkpoint_options *options,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens the regular file folder/name below root_fd and reads it as evq_format_read() does. Messages
 * begin with its name. EVQ_E_INCOMPLETE: not there (yet). */
enum evq_status evq_format_read_part(struct evq_checkpoint *checkpoint, int root_fd,
                                     const char *folder, const char *name,
                                     const struct evq_checkpoint_options *options,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads shards that an index file names. fd (taken over) is the index; the shards are in folder
 * below root_fd. */
enum evq_status evq_sharded_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads a directory of torch.distributed.checkpoint. fd (taken over) is folder/.metadata below
 * root_fd. */
enum evq_status evq_dcp_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                             int fd, const struct stat *info,
                             const struct evq_checkpoint_options *options,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds the tensors of path below root_fd. fd (taken over) is this file or directory. */
typedef enum evq_status (*evq_read_path_fn)(struct evq_checkpoint *checkpoint, int root_fd,
                                            const char *path, int fd, const struct stat *info,
                                            const struct evq_checkpoint_options *options,
                                            struct evq_error *err);

/* Reads a PEFT adapter. fd (taken over) is folder/adapter_config.json. read_base reads its base,
 * which is left out with files_only. */
enum evq_status evq_adapter_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 evq_read_path_fn read_base,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds the tensors of options->base, else of `named`, the base that the adapter names (may be
 * NULL). Downloads nothing. EVQ_E_NOT_FOUND: no root contains the base. */
enum evq_status evq_adapter_base_read(struct evq_checkpoint *checkpoint, int root_fd,
                                      const char *named,
                                      const struct evq_checkpoint_options *options,
                                      evq_read_path_fn read_base,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Checks that the files of all FSDP2 ranks are in the directory path below root_fd, which
 * directory_fd has open, and in its folders for regular and averaged weights, and adds them to the
 * file list. Their tensors are not joined or read, so use it with files_only. EVQ_E_INCOMPLETE:
 * some files are missing. *ret_found is false if there are none.
 */
enum evq_status evq_fsdp_ranks_read(struct evq_checkpoint *checkpoint, int root_fd,
                                    const char *path, int directory_fd,
                                    const struct evq_checkpoint_options *options, bool *ret_found,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

#endif
