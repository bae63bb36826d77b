#include "worker/convert/conversion_plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/hex.h"
#include "shared/checkpoint/layout.h"
#include "worker/convert/checkpoint_folders.h"
#include "worker/convert/model_files.h"

static bool is_converted(const struct evq_eval_request *request)
{
    const struct evq_suite *suite = request->suite;
    const struct evq_evaluator *evaluator = evq_config_evaluator(request->config, suite->evaluator);

    return evaluator != NULL && suite->harness[0] != '\0' && suite->prepare[0] == '\0';
}

/* Whether the folder is a Transformers directory whose weights of this variant the server reads,
 * or an adapter that it adds to the suite's base. */
static bool is_as_wanted(int folder_fd, const struct evq_eval_request *request)
{
    const struct evq_suite *suite = request->suite;
    const bool wants_tokenizer = suite->base[0] != '\0' || suite->tokenizer[0] != '\0';
    struct evq_layout layout;

    if (evq_layout_find(folder_fd, evq_eval_variant(request), &layout, NULL) != EVQ_OK ||
        layout.with_adapter) {
        return false;
    }
    if (strcmp(layout.name, "adapter_config.json") == 0) {
        return suite->base[0] != '\0' &&
               evq_config_evaluator(request->config, suite->evaluator)->takes_adapters;
    }
    return (evq_file_ends_with(layout.name, ".safetensors") ||
            evq_file_ends_with(layout.name, ".safetensors.index.json")) &&
           evq_model_files_has(folder_fd, EVQ_MODEL_FILES_CONFIG) &&
           (!wants_tokenizer || evq_model_files_has(folder_fd, EVQ_MODEL_FILES_TOKENIZER));
}

static void hash_text(XXH3_state_t *state, const char *text)
{
    (void)XXH3_128bits_update(state, text, strlen(text) + 1); // Fails for a NULL state only.
}

/* Adds what the conversion reads of a folder that the configuration names. */
static void hash_folder(XXH3_state_t *state, const char *path)
{
    char fingerprint[33] = "";
    int fd = path[0] != '\0' ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    hash_text(state, path);
    if (fd >= 0) {
        evq_model_files_hash(fd, state);
        // A folder without weights has no fingerprint.
        if (evq_checkpoint_fingerprint(fd, ".", fingerprint, NULL, NULL) == EVQ_OK) {
            hash_text(state, fingerprint);
        }
    }
    evq_file_close(&fd);
}

/* Adds the weights of the base that an adapter names itself. */
static void hash_named_base(XXH3_state_t *state, const struct evq_eval_request *request)
{
    struct evq_base_roots roots;
    struct evq_checkpoint *checkpoint = NULL;
    const char *base = "";
    const char *folder = NULL;
    char fingerprint[33] = "";
    int root_fd = -1;

    if (evq_base_roots_open(&roots, request->config, "", &base, NULL) != EVQ_OK) {
        return;
    }
    const struct evq_checkpoint_options how = {
        .key = "", .base = base, .root_fds = roots.fds, .root_count = roots.count};
    if (evq_checkpoint_open(request->root_fd, request->path, &how, &checkpoint, NULL) == EVQ_OK &&
        evq_checkpoint_adapter_base(checkpoint, &root_fd, &folder) &&
        evq_checkpoint_fingerprint(root_fd, folder, fingerprint, NULL, NULL) == EVQ_OK) {
        hash_text(state, fingerprint);
    }
    evq_checkpoint_close(checkpoint);
    evq_base_roots_close(&roots);
}

static enum evq_status make_key(const struct evq_eval_request *request, const char *fingerprint,
                                int folder_fd, bool adapter, char *out, size_t out_bytes,
                                struct evq_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    char sources[33];

    if (state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the key of a conversion");
    }
    (void)XXH3_128bits_reset(state); // Fails for a NULL state only.
    evq_model_files_hash(folder_fd, state);
    hash_folder(state, request->suite->tokenizer);
    hash_folder(state, request->suite->base);
    if (adapter && request->suite->base[0] == '\0') {
        hash_named_base(state, request);
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    evq_hex_128(hash.high64, hash.low64, sources);
    (void)XXH3_freeState(state);
    (void)snprintf(out, out_bytes, "%s-%s-converted-%.16s", fingerprint, evq_eval_variant(request),
                   sources);
    return EVQ_OK;
}

static void make_program(const struct evq_eval_request *request, struct evq_conversion_plan *ret)
{
    const struct evq_suite *suite = request->suite;
    const char *const options[][2] = {{"--config", request->config->file},
                                      {"--base", suite->base},
                                      {"--tokenizer", suite->tokenizer}};
    size_t count = 0;

    ret->argv[count++] = "/proc/self/exe"; // This program, also after an upgrade replaced its file.
    ret->argv[count++] = "convert";
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (options[i][1][0] != '\0') {
            ret->argv[count++] = options[i][0];
            ret->argv[count++] = options[i][1];
        }
    }
    ret->argv[count] = NULL;
    ret->evaluator = (struct evq_evaluator){.name = "convert",
                                            .kind = EVQ_EVALUATOR_COMMAND,
                                            .argv = ret->argv,
                                            .argc = count,
                                            .directory = "",
                                            .results = "",
                                            .settings = ""};
}

enum evq_status evq_conversion_plan_make(const struct evq_eval_request *request,
                                         const char *fingerprint, struct evq_conversion_plan *ret,
                                         struct evq_error *err)
{
    bool is_directory = false;
    int folder_fd = -1;

    ret->needed = false;
    if (!is_converted(request)) {
        return EVQ_OK;
    }
    enum evq_status status =
        evq_checkpoint_folder_open(request->root_fd, request->path, &folder_fd, &is_directory, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!is_directory || !is_as_wanted(folder_fd, request)) {
        const bool adapter =
            is_directory && faccessat(folder_fd, "adapter_config.json", F_OK, 0) == 0;
        status =
            make_key(request, fingerprint, folder_fd, adapter, ret->key, sizeof(ret->key), err);
        make_program(request, ret);
        ret->needed = status == EVQ_OK;
    }
    evq_file_close(&folder_fd);
    return status;
}
