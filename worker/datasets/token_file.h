/*
 * Reads files of token ids. The content tells the format: llm.c's .bin (a header of 256 int32, then
 * uint16 or uint32), .npy (one dimension of integers), otherwise plain uint16 or uint32 as nanoGPT
 * writes them, for which the caller must name the type. Numbers are little-endian. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_TOKEN_FILE_H
#define EVQ_WORKER_DATASETS_TOKEN_FILE_H

#include <stddef.h>

#include "shared/base/error.h"
#include "worker/tokenizer/tokenizer.h"

struct evq_token_file_source {
    const char *path;  // Absolute or relative to the working directory.
    const char *dtype; // "u16", "u32", or "": the file tells. It must agree with the file.
    size_t tokens_max; // Most tokens that the file may contain.
    size_t limit;      // Reads only the first ones; 0: all.
};

/*
 * Appends the file's tokens to out, which is unchanged on failure. EVQ_E_NOT_FOUND. EVQ_E_INVALID:
 * not a regular file, empty, or dtype is missing or wrong. EVQ_E_CORRUPT: too few or too many
 * bytes, or an id below 0 or above 2^31 - 1, whose position is named. EVQ_E_UNSUPPORTED: another
 * version or kind. EVQ_E_LIMIT, EVQ_E_IO, EVQ_E_NOMEM. The message names the file.
 */
enum evq_status evq_token_file_read(const struct evq_token_file_source *source,
                                    struct evq_tokens *out, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
