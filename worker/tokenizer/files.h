/*
 * The files of a tokenizer: which there are, and what those beside it say of its special tokens.
 */
#ifndef EVQ_WORKER_TOKENIZER_FILES_H
#define EVQ_WORKER_TOKENIZER_FILES_H

#include "worker/tokenizer/definition.h"

#define EVQ_TOKENIZER_PATH_MAX 4096

struct evq_tokenizer_files {
    int root_fd; // The caller's; AT_FDCWD: paths are as the system has them.
    char folder[EVQ_TOKENIZER_PATH_MAX]; // Ends with '/', or "".
    char first[EVQ_TOKENIZER_PATH_MAX];  // tokenizer.json or vocab.json, by its path.
    char second[EVQ_TOKENIZER_PATH_MAX]; // merges.txt, or "".
};

/* EVQ_E_NOT_FOUND names what was looked for. */
enum evq_status evq_tokenizer_files_find(int root_fd, const char *path,
                                         struct evq_tokenizer_files *ret_files,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Appends the whole of the file. EVQ_E_GONE or EVQ_E_NOT_FOUND: there is none. */
enum evq_status evq_tokenizer_files_read(const struct evq_tokenizer_files *files, const char *path,
                                         struct evq_buffer *out,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* For vocab.json and merges.txt, which do not say it: the tokens to find in a text, and the kind of
 * tokenizer if tokenizer_config.json names one. */
enum evq_status evq_tokenizer_files_special(const struct evq_tokenizer_files *files,
                                            struct evq_definition *definition,
                                            struct evq_error *err) EVQ_CHECK_RESULT;

/* The second half of it: what beside vocab.json and merges.txt is named is found in a text, and so
 * is <|endoftext|>. */
enum evq_status evq_tokenizer_files_named(const struct evq_tokenizer_files *files,
                                          struct evq_definition *definition,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * tokenizer->bos and ->eos: what special_tokens_map.json says, else tokenizer_config.json (which
 * alone counts if it has added_tokens_decoder), else what tokenizers of its class have; only
 * without these files config.json. null means none.
 */
struct evq_tokenizer;
enum evq_status evq_tokenizer_files_ends(const struct evq_tokenizer_files *files,
                                         struct evq_tokenizer *tokenizer,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#endif
