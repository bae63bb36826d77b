/*
 * The file formats a checkpoint may have: one file of code each, with a table. For the readers in
 * this folder.
 */
#ifndef EVQ_SHARED_CHECKPOINT_FORMAT_H
#define EVQ_SHARED_CHECKPOINT_FORMAT_H

#include "shared/checkpoint/checkpoint_builder.h"

#define EVQ_HEADER_BYTES_MAX 100000000u // What safetensors itself allows.

struct evq_format {
    const char *name;
    /* Whether a file that begins with head is of this format; head holds the first bytes, at most
     * 512. */
    bool (*probe)(const uint8_t *head, size_t head_bytes, uint64_t file_bytes);
    /* Adds the tensors of checkpoint->files[file]. Messages do not name the file: the caller does.
     */
    enum evq_status (*open)(struct evq_checkpoint *checkpoint, int32_t file,
                            const struct evq_checkpoint_options *options, struct evq_error *err);
};

extern const struct evq_format evq_format_safetensors;
extern const struct evq_format evq_format_torch_zip;
extern const struct evq_format evq_format_torch_legacy;
extern const struct evq_format
    evq_format_unsupported; // Known by their first bytes, and refused by name.

/* Adds fd (taken over) as a file called name, finds its format by content and reads its directory.
 */
enum evq_status evq_format_read(struct evq_checkpoint *checkpoint, const char *name, int fd,
                                const struct stat *info,
                                const struct evq_checkpoint_options *options,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Shards named by an index file beside them: folder/index_name beneath root_fd; fd (taken over) is
 * the index itself. */
enum evq_status evq_sharded_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* A directory of torch.distributed.checkpoint: folder/.metadata beneath root_fd, which fd (taken
 * over) is. */
enum evq_status evq_dcp_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                             int fd, const struct stat *info,
                             const struct evq_checkpoint_options *options,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds the tensors at path beneath root_fd, a file or a directory that fd (taken over) has open. */
typedef enum evq_status (*evq_read_path_fn)(struct evq_checkpoint *checkpoint, int root_fd,
                                            const char *path, int fd, const struct stat *info,
                                            const struct evq_checkpoint_options *options,
                                            struct evq_error *err);

/* A PEFT adapter: folder/adapter_config.json, which fd (taken over) has open. read_base reads its
 * base; with files_only the base is left out. */
enum evq_status evq_adapter_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 evq_read_path_fn read_base,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds the tensors of options->base, else of what the adapter names (may be NULL). Nothing is
 * downloaded. EVQ_E_NOT_FOUND: it is beneath none of the roots. */
enum evq_status evq_base_read(struct evq_checkpoint *checkpoint, int root_fd, const char *named,
                              const struct evq_checkpoint_options *options,
                              evq_read_path_fn read_base, struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_layout {
    char name[512];     // Of the file to read, in the directory.
    bool with_adapter;  // adapter_config.json lies beside a whole model.
    bool stray_adapter; // The same without adapter_config.json: weights of an adapter alone.
};

/* Which file of a directory to read for a variant (NULL: regular). Its name ends in ".index.json"
 * when the weights are sharded, in ".metadata" when they are distributed. */
enum evq_status evq_layout_find(int directory_fd, const char *variant,
                                struct evq_layout *ret_layout,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds the files of each rank of FSDP2 in the directory path beneath root_fd, which directory_fd
 * is, in its folders for regular weights and for averages: whole or EVQ_E_INCOMPLETE. *ret_found
 * false: there are none. With files_only alone: what they hold is not read. */
enum evq_status evq_fsdp_ranks_read(struct evq_checkpoint *checkpoint, int root_fd,
                                    const char *path, int directory_fd,
                                    const struct evq_checkpoint_options *options, bool *ret_found,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Why a file of this name is not read, whatever it holds: a sentence; NULL: it may be read. */
const char *evq_layout_refuses(const char *name);

/* A dtype by its safetensors spelling: its bits; EVQ_DTYPE_OTHER for one that is only listed.
 * False: unknown. */
bool evq_dtype_parse(const char *name, enum evq_dtype *ret_dtype, unsigned *ret_bits,
                     const char **ret_name);

/* Of one of its elements, also where its dtype is only listed; 0: that is no whole number. */
size_t evq_dtype_stored_bytes(const struct evq_tensor *tensor);

/* count values of dtype at source (any alignment, little-endian) as float32; false when dtype has
 * no such reading. */
bool evq_convert_f32(enum evq_dtype dtype, const void *source, size_t count, float *out);

#endif
