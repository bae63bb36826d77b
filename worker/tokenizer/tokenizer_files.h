/*
 * Finds the files of a tokenizer, and reads what the files beside it say about special tokens. Any
 * thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_TOKENIZER_FILES_H
#define EVQ_WORKER_TOKENIZER_TOKENIZER_FILES_H

#include "worker/tokenizer/tokenizer_json.h"

#define EVQ_TOKENIZER_PATH_MAX 4096

struct evq_tokenizer_files {
    int root_fd; // It belongs to the caller. AT_FDCWD: paths are used as they are.
    char folder[EVQ_TOKENIZER_PATH_MAX]; // Ends with '/', or "".
    char path[EVQ_TOKENIZER_PATH_MAX];   // Path of tokenizer.json.
};

/* Finds the files of the tokenizer at path. EVQ_E_NOT_FOUND names what was searched. */
enum evq_status evq_tokenizer_files_find(int root_fd, const char *path,
                                         struct evq_tokenizer_files *ret_files,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Appends the whole file to out. EVQ_E_GONE or EVQ_E_NOT_FOUND: it does not exist. */
enum evq_status evq_tokenizer_files_read(const struct evq_tokenizer_files *files, const char *path,
                                         struct evq_buffer *out,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Sets tokenizer->bos and ->eos: from special_tokens_map.json; otherwise from tokenizer_config.json
 * (which alone counts if it has added_tokens_decoder); otherwise the defaults of its class.
 * config.json counts only if these files do not exist. null means none.
 */
struct evq_tokenizer;
enum evq_status evq_tokenizer_files_set_bos_eos(const struct evq_tokenizer_files *files,
                                                struct evq_tokenizer *tokenizer,
                                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
