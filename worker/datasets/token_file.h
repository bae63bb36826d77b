/*
 * Files of tokens: text that was turned into ids before. What they are is seen by their content:
 * llm.c's .bin (a header of 256 int32, then uint16 or uint32), .npy (one dimension of whole
 * numbers), else plain uint16 or uint32 as nanoGPT writes them, which the caller must name. Numbers
 * are little-endian. Any thread.
 */
#ifndef EVQ_WORKER_TOKEN_FILE_H
#define EVQ_WORKER_TOKEN_FILE_H

#include <stddef.h>

#include "shared/base/error.h"
#include "worker/tokenizer/tokenizer.h"

struct evq_token_file_source {
    const char *path;  // Absolute or relative to the working directory.
    const char *dtype; // "u16", "u32", or "": the file says it. Must agree with what the file says.
    size_t tokens_max; // Of those that it may hold.
    size_t limit;      // Reads the first ones only; 0: all.
};

/*
 * Appends the file's tokens to out; on failure out is as it was. EVQ_E_NOT_FOUND; EVQ_E_INVALID (no
 * regular file, empty, dtype missing or another); EVQ_E_CORRUPT (bytes missing or too many, an id
 * below 0 or above 2^31 - 1: its place is named); EVQ_E_UNSUPPORTED (another version or kind);
 * EVQ_E_LIMIT, EVQ_E_IO, EVQ_E_NOMEM. One sentence that names the file.
 */
enum evq_status evq_token_file_read(const struct evq_token_file_source *source,
                                    struct evq_tokens *out, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
