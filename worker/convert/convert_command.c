#include "worker/convert/convert_command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"
#include "worker/convert/checkpoint_folders.h"
#include "worker/convert/model_files.h"
#include "worker/convert/tensor_names.h"
#include "worker/evaluators/checkpoint_location.h"
#include "worker/evaluators/program_run.h"
#include "worker/evaluators/python_json.h"

#define JOB_BYTES_MAX ((size_t)16 << 20)

struct conversion {
    const char *path;
    const char *output;
    const char *base;      // NULL: an adapter names its own; other checkpoints have none.
    const char *tokenizer; // NULL: beside the checkpoint, or in the base.
    char variant[EVQ_JOB_NAME_BYTES_MAX + 1];
    struct evq_checkpoint_location place;
    struct evq_checkpoint *checkpoint;
    struct evq_checkpoint *base_weights; // NULL: base has none, or the checkpoint is an adapter.
    int own_fd, base_fd, tokenizer_fd;   // Folders; -1: there is none.
    int out_fd;
    bool own_is_directory;
};

static enum evq_status open_folder(const char *path, int *ret_fd, struct evq_error *err)
{
    *ret_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *ret_fd >= 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_NOT_FOUND, "the folder '%s': %s", path, strerror(errno));
}

static enum evq_status open_checkpoint(struct conversion *conversion,
                                       const struct evq_config *config, struct evq_error *err)
{
    struct evq_base_roots roots;
    const char *base = "";

    enum evq_status status =
        evq_checkpoint_location_open(conversion->path, &conversion->place, err);
    if (status == EVQ_OK) {
        status = evq_base_roots_open(&roots, config, conversion->base, &base, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_checkpoint_options how = {.key = "",
                                               .variant = conversion->variant,
                                               .base = base,
                                               .root_fds = roots.fds,
                                               .root_count = roots.count};
    status = evq_checkpoint_open(conversion->place.root_fd, conversion->place.path, &how,
                                 &conversion->checkpoint, err);
    if (status == EVQ_OK && base[0] != '\0') {
        status = evq_base_weights_open(&roots, base, conversion->checkpoint,
                                       &conversion->base_weights, err);
    }
    evq_base_roots_close(&roots);
    return status;
}

static enum evq_status open_folders(struct conversion *conversion, struct evq_error *err)
{
    const char *folder = NULL;
    int root_fd = -1;

    enum evq_status status =
        evq_checkpoint_folder_open(conversion->place.root_fd, conversion->place.path,
                                   &conversion->own_fd, &conversion->own_is_directory, err);
    if (status == EVQ_OK && conversion->base != NULL) {
        status = open_folder(conversion->base, &conversion->base_fd, err);
    } else if (status == EVQ_OK &&
               evq_checkpoint_adapter_base(conversion->checkpoint, &root_fd, &folder)) {
        status = evq_root_open(root_fd, folder, true, &conversion->base_fd, err);
    }
    if (status == EVQ_OK && conversion->tokenizer != NULL) {
        status = open_folder(conversion->tokenizer, &conversion->tokenizer_fd, err);
    }
    return status;
}

/* Opens the output, which prepare has made, or makes it. */
static enum evq_status open_output(struct conversion *conversion, struct evq_error *err)
{
    if (mkdir(conversion->output, 0777) != 0 && errno != EEXIST) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", conversion->output, strerror(errno));
    }
    const enum evq_status status = open_folder(conversion->output, &conversion->out_fd, err);
    return status == EVQ_OK && evq_file_directory_has_entries(conversion->output)
               ? evq_error_set(err, EVQ_E_INVALID, "the directory '%s' is not empty",
                               conversion->output)
               : status;
}

/* Copies the files of one kind from the first folder that has them. ret_from: that folder. */
static enum evq_status copy_first(struct conversion *conversion, enum evq_model_files kind,
                                  int *ret_from, struct evq_error *err)
{
    const bool config = kind == EVQ_MODEL_FILES_CONFIG;
    const int folders[] = {conversion->own_fd, config ? -1 : conversion->tokenizer_fd,
                           conversion->base_fd};

    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        // A link in a folder of many checkpoints is not followed: nobody has checked it.
        const int flags = i == 0 && !conversion->own_is_directory ? O_NOFOLLOW : 0;
        if (folders[i] >= 0 && evq_model_files_has(folders[i], kind)) {
            *ret_from = folders[i];
            return evq_model_files_copy(folders[i], kind, flags, conversion->out_fd, err);
        }
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         config ? "'%s' has no config.json: name the directory of its model with "
                                  "`base: DIR` in the suite (or --base DIR)"
                                : "'%s' has no tokenizer: name the directory that has it with "
                                  "`tokenizer: DIR` in the suite (or --tokenizer DIR)",
                         conversion->path);
}

static enum evq_status write_weights(struct conversion *conversion, bool base_config,
                                     struct evq_error *err)
{
    char config_path[PATH_MAX];
    char weights_path[PATH_MAX];
    struct evq_named_tensor *tensors = NULL;
    size_t count = 0;

    const int bytes =
        snprintf(weights_path, sizeof(weights_path), "%s/model.safetensors", conversion->output);
    (void)snprintf(config_path, sizeof(config_path), "%s/config.json", conversion->output);
    if (bytes < 0 || (size_t)bytes >= sizeof(weights_path)) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%.60s...' is too long",
                             conversion->output);
    }
    struct evq_arena *arena = evq_arena_new(0);
    if (arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the tensors of '%s'", conversion->path);
    }
    const struct evq_tensor_names_request request = {.checkpoint = conversion->checkpoint,
                                                     .base = conversion->base_weights,
                                                     .config_path = config_path,
                                                     .base_config = base_config};
    enum evq_status status = evq_tensor_names_choose(&request, arena, &tensors, &count, err);
    if (status == EVQ_OK) {
        (void)fprintf(stderr, "evalq-worker: converts %zu of %zu tensors (%s) of '%s'\n", count,
                      conversion->checkpoint->tensor_count, conversion->checkpoint->format,
                      conversion->path);
        status = evq_safetensors_write(conversion->checkpoint, tensors, count, weights_path, err);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(conversion->checkpoint, err);
    }
    evq_arena_free(arena);
    return status;
}

static enum evq_status convert(struct conversion *conversion, const struct evq_config *config,
                               struct evq_error *err)
{
    int config_from = -1;
    int tokenizer_from = -1;

    enum evq_status status = open_checkpoint(conversion, config, err);
    if (status == EVQ_OK) {
        status = open_folders(conversion, err);
    }
    if (status == EVQ_OK) {
        status = open_output(conversion, err);
    }
    if (status == EVQ_OK) {
        status = copy_first(conversion, EVQ_MODEL_FILES_CONFIG, &config_from, err);
    }
    if (status == EVQ_OK) {
        status = copy_first(conversion, EVQ_MODEL_FILES_TOKENIZER, &tokenizer_from, err);
    }
    if (status == EVQ_OK) {
        status = write_weights(conversion, config_from == conversion->base_fd, err);
    }
    return status;
}

/* Reads checkpoint, output and variant as a `prepare` command gets them. */
static enum evq_status from_environment(struct conversion *conversion, struct evq_error *err)
{
    const char *job = getenv("EVALQ_JOB");
    json_t *json = NULL;

    conversion->path = getenv("EVALQ_CHECKPOINT");
    conversion->output = getenv("EVALQ_OUTPUT");
    if (conversion->path == NULL || conversion->output == NULL || job == NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "convert needs CHECKPOINT and OUTPUT, or the variables of a "
                             "`prepare` command");
    }
    const enum evq_status status = evq_python_json_file(AT_FDCWD, job, JOB_BYTES_MAX, &json, err);
    if (status == EVQ_OK) {
        const char *variant = json_string_value(json_object_get(json, "variant"));
        (void)snprintf(conversion->variant, sizeof(conversion->variant), "%s",
                       variant != NULL ? variant : "regular");
        json_decref(json);
    }
    return status;
}

static int exit_status(enum evq_status status, bool prepares)
{
    switch (status) {
    case EVQ_OK:
        return EVQ_EXIT_OK;
    case EVQ_E_CORRUPT:
    case EVQ_E_UNSUPPORTED:
    case EVQ_E_LIMIT:
    case EVQ_E_INVALID:
    case EVQ_E_NOT_FOUND:
        return prepares ? EVQ_PROGRAM_RUN_EXIT_FINAL : EVQ_EXIT_BAD_INPUT;
    case EVQ_E_GONE:
    case EVQ_E_INCOMPLETE:
    case EVQ_E_CHANGED:
    case EVQ_E_IO: // It concerns a file, because nothing else is contacted.
        return EVQ_EXIT_BAD_INPUT;
    default:
        return (int)evq_status_exit_code(status);
    }
}

int evq_convert_main(const struct evq_options *options)
{
    struct conversion conversion = {.path = options->path,
                                    .output = options->output,
                                    .base = options->base,
                                    .tokenizer = options->tokenizer,
                                    .place = {.root_fd = -1},
                                    .own_fd = -1,
                                    .base_fd = -1,
                                    .tokenizer_fd = -1,
                                    .out_fd = -1};
    struct evq_config *config = NULL;
    struct evq_error err;
    enum evq_status status = EVQ_OK;

    if (options->path == NULL) {
        status = from_environment(&conversion, &err);
    } else {
        (void)snprintf(conversion.variant, sizeof(conversion.variant), "%s",
                       options->variant != NULL ? options->variant : "regular");
    }
    if (status == EVQ_OK) {
        status = evq_config_load(&options->source, &config, &err); // Its roots may hold a base.
    }
    if (status == EVQ_OK) {
        status = convert(&conversion, config, &err);
    }
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "evalq-worker: %s\n", err.message);
    }
    evq_checkpoint_close(conversion.base_weights);
    evq_checkpoint_close(conversion.checkpoint);
    evq_checkpoint_location_close(&conversion.place);
    evq_file_close(&conversion.own_fd);
    evq_file_close(&conversion.base_fd);
    evq_file_close(&conversion.tokenizer_fd);
    evq_file_close(&conversion.out_fd);
    evq_config_free(config);
    return exit_status(status, options->path == NULL);
}
