/*
 * A checkpoint as a list of tensors: names, types, shapes and where the bytes are. Opening one
 * copies no tensor and executes nothing; memory is bounded by the size of the headers. An open
 * checkpoint does not change, so several threads may read from it. Files are opened below a root
 * directory only (openat2). docs/checkpoints.md describes the formats.
 */
#ifndef EVQ_SHARED_CHECKPOINT_CHECKPOINT_H
#define EVQ_SHARED_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/arena.h"
#include "shared/base/buffer.h"

#define EVQ_TENSOR_RANK_MAX           8
#define EVQ_CHECKPOINT_FILES_MAX      4096
#define EVQ_CHECKPOINT_TENSORS_MAX    1000000
#define EVQ_CHECKPOINT_NAME_BYTES_MAX 4096
#define EVQ_CHECKPOINT_PREFIX_BYTES   512

enum evq_dtype {
    EVQ_DTYPE_BOOL,
    EVQ_DTYPE_U8,
    EVQ_DTYPE_I8,
    EVQ_DTYPE_U16,
    EVQ_DTYPE_I16,
    EVQ_DTYPE_U32,
    EVQ_DTYPE_I32,
    EVQ_DTYPE_U64,
    EVQ_DTYPE_I64,
    EVQ_DTYPE_F16,
    EVQ_DTYPE_BF16,
    EVQ_DTYPE_F32,
    EVQ_DTYPE_F64,
    EVQ_DTYPE_F8_E4M3,
    EVQ_DTYPE_F8_E5M2,
    EVQ_DTYPE_C64,
    EVQ_DTYPE_C128,
    EVQ_DTYPE_OTHER, // A type that is listed, but cannot be read.
    EVQ_DTYPE_COUNT
};

struct evq_tensor_piece;
struct evq_merge;

/*
 * One tensor. Code that reads bytes without evq_checkpoint_read_raw() may do so for contiguous
 * tensors only: file, offset and bytes say where they are. A tensor in pieces, or with an adapter
 * merged into it, is never contiguous.
 */
struct evq_tensor {
    const char *name;
    const char *dtype_name; // As written in the file, for OTHER too.
    enum evq_dtype dtype;
    int32_t rank;
    int64_t shape[EVQ_TENSOR_RANK_MAX];
    int64_t strides[EVQ_TENSOR_RANK_MAX]; // In elements; >= 0.
    bool contiguous;                      // C order: the bytes at offset are the tensor.
    int32_t file;                         // Index into files.
    uint64_t offset;                      // Of the first element, from the start of the file.
    // Length of the range: elements * size if contiguous, else up to the last element.
    uint64_t bytes;
    const struct evq_tensor_piece *pieces; // The tensor is stored in boxes; offset is then unused.
    size_t piece_count;                    // 0: stored in one range.
    const struct evq_merge
        *merge;   // What an adapter adds; NULL: nothing. shared/checkpoint/adapter/adapter_merge.h
    bool adapted; // An adapter adds to it, or replaces the base's tensor.
};

/* A box of a tensor. The boxes fill the tensor, and no two overlap. */
struct evq_tensor_piece {
    int64_t begin[EVQ_TENSOR_RANK_MAX]; // Position of its first element in the tensor.
    struct evq_tensor stored;           // The box itself, with the tensor's name, dtype and rank.
};

struct evq_checkpoint_file {
    const char *name; // Relative to the checkpoint.
    int fd;           // Open for reading while the checkpoint is.
    uint64_t bytes;
};

struct evq_checkpoint {
    struct evq_arena *arena;
    const char *format; // "safetensors", "torch-zip", ...
    const char *path;   // For messages.
    struct evq_checkpoint_file *files;
    size_t file_count;
    struct evq_tensor *tensors; // Sorted by name; names are unique.
    size_t tensor_count;
    struct evq_checkpoint_builder
        *builder; // State that only the readers use: checkpoint_builder.h.
};

struct evq_checkpoint_options {
    const char *key; // Which dict of a torch file: "", "model_state_dict", "ema", "a.b" ... "" :
                     // found by rule.
    const char *variant;       // "regular", "ema": prefers ema_* dicts. NULL: regular.
    uint64_t header_bytes_max; // 0: 100,000,000, as safetensors says; also for indexes and pickles.
    const char *base; // Of an adapter: a path beneath the root or one of root_fds; NULL or "": as
                      // the adapter says.
    const int *root_fds; // More directories in which base is looked for.
    size_t root_count;
    // For a directory with both a model and an adapter: "apply" merges them, "ignore" leaves the
    // adapter out; NULL or "": refused.
    const char *adapter;
    bool files_only; // Checks the files only. The tensors of a torch file are not looked up.
};

/*
 * Opens path (a file or a directory) below the directory root_fd. Symbolic links that leave the
 * root are refused. EVQ_E_GONE: not there. EVQ_E_INCOMPLETE: still being written (a short file, a
 * missing shard). EVQ_E_CORRUPT, EVQ_E_UNSUPPORTED, EVQ_E_LIMIT: one sentence names the file and
 * what is wrong.
 */
enum evq_status evq_checkpoint_open(int root_fd, const char *path,
                                    const struct evq_checkpoint_options *options,
                                    struct evq_checkpoint **ret_checkpoint,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_checkpoint_close(struct evq_checkpoint *checkpoint); // Accepts NULL.
/* Returns the tensor of this name, or NULL. */
const struct evq_tensor *evq_checkpoint_find(const struct evq_checkpoint *checkpoint,
                                             const char *name);

/* Returns the tensor called prefix + name, or NULL. */
const struct evq_tensor *evq_checkpoint_find_below(const struct evq_checkpoint *checkpoint,
                                                   const char *prefix, const char *name);

/*
 * Finds the prefix under which all `count` expected names are in the checkpoint: "", then the usual
 * wrappers ("module.", "_orig_mod.", "model." and combinations of them), then any other prefix if
 * exactly one fits. ret_prefix has room for EVQ_CHECKPOINT_PREFIX_BYTES. EVQ_E_NOT_FOUND names what
 * is missing under the best prefix; *ret_missing (may be NULL) is its index in expected_names.
 * EVQ_E_CONFLICT names two prefixes that both fit.
 */
enum evq_status evq_checkpoint_find_prefix(const struct evq_checkpoint *checkpoint,
                                           const char *const *expected_names, size_t count,
                                           char *ret_prefix, size_t *ret_missing,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_CHANGED: the identity, size or time of a file differs from when it was opened. A file that
 * was only unlinked has not changed. */
enum evq_status evq_checkpoint_verify_unchanged(const struct evq_checkpoint *checkpoint,
                                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads one tensor as C-contiguous float32 into out (elements floats, exactly the tensor's count);
 * converts F16/BF16/F64/F8/ints. pread only. EVQ_E_UNSUPPORTED names tensor and dtype. */
enum evq_status evq_checkpoint_read_f32(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, float *out,
                                        size_t elements, struct evq_error *err) EVQ_CHECK_RESULT;
/* Raw C-contiguous bytes of the tensor's own type into out (out_bytes must be elements * element
 * size). */
enum evq_status evq_checkpoint_read_raw(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, void *out,
                                        size_t out_bytes, struct evq_error *err) EVQ_CHECK_RESULT;
/* Kinds of plain values in a torch file: hyper-parameters, nanoGPT's model_args, a step. */
enum evq_scalar_kind {
    EVQ_SCALAR_NONE,
    EVQ_SCALAR_BOOL,
    EVQ_SCALAR_INTEGER,
    EVQ_SCALAR_REAL,
    EVQ_SCALAR_TEXT
};

struct evq_scalar {
    enum evq_scalar_kind kind;
    int64_t integer;  // BOOL, INTEGER.
    double real;      // BOOL, INTEGER, REAL.
    const char *text; // TEXT: not NUL-terminated; valid while the checkpoint is open.
    size_t text_bytes;
};

/*
 * Looks up a plain value of the torch file that holds the weights by its dotted path
 * ("model_args.n_layer", "hyper_parameters.width", "betas.0"); keys may contain dots. Python's None
 * is EVQ_SCALAR_NONE. Returns false and leaves *ret_scalar if there is no plain value, or the
 * format has none. Any thread.
 */
bool evq_checkpoint_scalar(const struct evq_checkpoint *checkpoint, const char *path,
                           struct evq_scalar *ret_scalar);

/*
 * Opens a file next to the weights, such as config.json: inside a checkpoint directory, in the
 * folder of a checkpoint file, and for an adapter also next to its base. name has no slash; links
 * may lead anywhere below the root. The caller closes *ret_fd. EVQ_E_GONE: not there; else as
 * evq_root_open(). Any thread.
 */
enum evq_status evq_checkpoint_open_sibling(const struct evq_checkpoint *checkpoint,
                                            const char *name, int *ret_fd,
                                            struct evq_error *err) EVQ_CHECK_RESULT;

/* Where an adapter's base is: a folder below a root. Both belong to the checkpoint. Returns false
 * and sets nothing if this is no adapter. Any thread. */
bool evq_checkpoint_adapter_base(const struct evq_checkpoint *checkpoint, int *ret_root_fd,
                                 const char **ret_folder);

bool evq_tensor_elements(const struct evq_tensor *tensor, size_t *ret_elements); // false: overflow.
size_t evq_dtype_bytes(enum evq_dtype dtype);                                    // 0 for OTHER.
bool evq_dtype_is_float(enum evq_dtype dtype);
const char *evq_dtype_name(enum evq_dtype dtype); // safetensors spelling: "F32".

/*
 * XXH3-128 over names, sizes and sampled blocks (first, last and 14 spread blocks of 4 KiB) of
 * every file that holds weights, without times. A renamed or copied checkpoint has the same
 * fingerprint. Takes milliseconds. If evalq does not read the format, every file at path counts and
 * the checkpoint is taken as complete. manifest (may be NULL) gets a line "name TAB bytes" for each
 * file. Errors: those of evq_checkpoint_check_complete() and evq_file_list_scan().
 */
enum evq_status evq_checkpoint_fingerprint(int root_fd, const char *path, char out[33],
                                           struct evq_buffer *manifest,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
/* The same over every file at path, whatever its format. Errors: those of evq_file_list_scan(). */
enum evq_status evq_checkpoint_files_fingerprint(int root_fd, const char *path, char out[33],
                                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_CHANGED: path below the directory root holds other weights than those of this fingerprint.
 * Else as evq_checkpoint_fingerprint(). */
enum evq_status evq_checkpoint_verify_fingerprint(const char *root, const char *path,
                                                  const char *fingerprint,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* XXH3-128 over every tensor's name, dtype, shape and values in name order; digest.h describes it.
 * Reads all tensors, then checks that no file changed. */
enum evq_status evq_checkpoint_digest(const struct evq_checkpoint *checkpoint, char out[33],
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_OK: complete. EVQ_E_INCOMPLETE, EVQ_E_GONE, or what is wrong. Judged by content, never by
 * names alone. */
enum evq_status evq_checkpoint_check_complete(int root_fd, const char *path,
                                              struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Opens path below root_fd for reading. ".." and absolute paths are refused, and symbolic links
 * must stay below the root (openat2 RESOLVE_BENEATH; without openat2 no link is followed). Regular
 * files only, or directories only if `directory`. EVQ_E_GONE, EVQ_E_INVALID, EVQ_E_IO.
 */
enum evq_status evq_root_open(int root_fd, const char *path, bool directory, int *ret_fd,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
