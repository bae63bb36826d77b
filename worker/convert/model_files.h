/*
 * Copies the files of a Transformers directory other than the weights: the model's configuration
 * and the tokenizer. Any thread.
 */
#ifndef EVQ_WORKER_CONVERT_MODEL_FILES_H
#define EVQ_WORKER_CONVERT_MODEL_FILES_H

#include <stdbool.h>
#include <xxhash.h>

#include "shared/base/error.h"

enum evq_model_files {
    EVQ_MODEL_FILES_CONFIG, // config.json, and what lies beside it: generation, processors, code.
    EVQ_MODEL_FILES_TOKENIZER
};

/* Whether the folder has a configuration (config.json), or a tokenizer. */
bool evq_model_files_has(int folder_fd, enum evq_model_files kind);

/* Copies the files of one kind into the folder out_fd. flags are further flags of open(), such as
 * O_NOFOLLOW. EVQ_E_IO, EVQ_E_LIMIT (a file above 256 MiB), EVQ_E_NOMEM. */
enum evq_status evq_model_files_copy(int folder_fd, enum evq_model_files kind, int flags,
                                     int out_fd, struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds names and contents of the files of both kinds to a hash. Files that cannot be read are left
 * out. */
void evq_model_files_hash(int folder_fd, XXH3_state_t *state);

#endif
