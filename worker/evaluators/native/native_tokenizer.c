#include "worker/evaluators/native/native_tokenizer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "shared/base/file.h"
#include "worker/datasets/corpus.h"
#include "worker/tokenizer/tokenizer_files.h"

// Bytes that one tokenizer counts for in the cache; enough for a vocabulary of 150,000.
#define KEPT_BYTES ((size_t)64 << 20)

struct kept {
    XXH128_hash_t content;
    struct evq_tokenizer *tokenizer;
};

struct place { // Where a tokenizer is found.
    int root_fd;
    char *path;
};

void evq_native_tokenizer_free(void *thing)
{
    struct kept *kept = thing;

    evq_tokenizer_free(kept->tokenizer);
    free(kept);
}

static bool same_content(const void *thing, const void *wanted)
{
    const struct kept *kept = thing;

    return XXH128_isEqual(kept->content, *(const XXH128_hash_t *)wanted) != 0;
}

/* The folder of a file, or the directory itself. */
static char *folder_of(int root_fd, const char *path)
{
    struct stat info;
    const char *slash = strrchr(path, '/');

    if (fstatat(root_fd, path, &info, 0) == 0 && S_ISDIR(info.st_mode)) {
        return strdup(path);
    }
    return slash != NULL ? strndup(path, (size_t)(slash - path)) : strdup(".");
}

static bool has_tokenizer(const struct place *place)
{
    // Its paths are too large for the stack.
    struct evq_tokenizer_files *files = malloc(sizeof(*files));
    const bool has = files != NULL &&
                     evq_tokenizer_files_find(place->root_fd, place->path, files, NULL) == EVQ_OK;

    free(files);
    return has;
}

/* An adapter that was saved without a tokenizer uses the one of its base. */
static void prefer_base(const struct evq_native_run *run, struct place *place)
{
    struct place base = {0};
    const char *folder = NULL;

    if (has_tokenizer(place) ||
        !evq_checkpoint_adapter_base(run->checkpoint, &base.root_fd, &folder)) {
        return;
    }
    base.path = strdup(folder);
    if (base.path != NULL && has_tokenizer(&base)) {
        free(place->path);
        *place = base;
    } else {
        free(base.path);
    }
}

static enum evq_status find_place(const struct evq_native_run *run, const char *directory,
                                  struct place *place, struct evq_error *err)
{
    const struct evq_eval_request *request = run->request;
    const char *named = evq_pair_get(run->config->data, run->config->data_count, "tokenizer", "");

    place->root_fd = AT_FDCWD;
    if (named[0] != '\0') {
        if (named[0] == '/' || directory[0] == '\0') {
            place->path = strdup(named);
        } else if (asprintf(&place->path, "%s/%s", directory, named) < 0) {
            place->path = NULL; // asprintf() leaves it undefined.
        }
    } else if (request->prepared != NULL && request->prepared[0] != '\0') {
        place->path = strdup(request->prepared);
    } else {
        place->root_fd = request->root_fd;
        place->path = folder_of(request->root_fd, request->path);
    }
    if (named[0] == '\0' && place->path != NULL) {
        prefer_base(run, place);
    }
    return place->path != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "tokenizer");
}

static void hash_file(XXH3_state_t *state, int folder_fd, const char *name)
{
    struct evq_buffer file;
    struct evq_error fault;

    evq_buffer_init(&file, EVQ_TOKENIZER_FILE_BYTES_MAX);
    // A file that cannot be read is reported when the tokenizer is opened.
    if (evq_file_read(folder_fd, name, 0, EVQ_TOKENIZER_FILE_BYTES_MAX, &file, &fault) == EVQ_OK) {
        (void)XXH3_128bits_update(state, name, strlen(name) + 1); // This fails only for NULL.
        (void)XXH3_128bits_update(state, &file.bytes, sizeof(file.bytes));
        (void)XXH3_128bits_update(state, file.data, file.bytes);
    }
    evq_buffer_free(&file);
}

/* Hashes names and content of all files that may describe a tokenizer. */
static enum evq_status hash_files(const struct place *place, XXH128_hash_t *ret_hash,
                                  struct evq_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "config.json"};
    XXH3_state_t *state = XXH3_createState();
    char *folder = folder_of(place->root_fd, place->path);
    int fd = -1;

    if (state == NULL || folder == NULL) {
        (void)XXH3_freeState(state);
        free(folder);
        return evq_error_set(err, EVQ_E_NOMEM, "tokenizer");
    }
    (void)XXH3_128bits_reset(state); // This fails only for a NULL state.
    if (strcmp(folder, place->path) != 0) {
        hash_file(state, place->root_fd, place->path);
    }
    fd = openat(place->root_fd, folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && fd >= 0; i++) {
        hash_file(state, fd, names[i]);
    }
    *ret_hash = XXH3_128bits_digest(state);
    evq_file_close(&fd);
    (void)XXH3_freeState(state);
    free(folder);
    return EVQ_OK;
}

/* Opens the tokenizer that find_place() found, and caches it. */
static enum evq_status open_kept(struct evq_native_run *run, const struct place *place,
                                 XXH128_hash_t content, struct kept **ret_kept,
                                 struct evq_error *err)
{
    struct kept *kept = calloc(1, sizeof(*kept));

    if (kept == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "tokenizer");
    }
    enum evq_status status = evq_tokenizer_open(place->root_fd, place->path, &kept->tokenizer, err);
    if (status != EVQ_OK) {
        free(kept);
        return status == EVQ_E_NOT_FOUND || status == EVQ_E_GONE
                   ? evq_error_prefix(err, "text needs a tokenizer, beside the weights or as "
                                           "`data: {tokenizer: PATH}`: tokenizer")
                   : status;
    }
    kept->content = content;
    evq_native_cache_keep(&run->native->tokenizers, kept, KEPT_BYTES);
    *ret_kept = kept;
    return EVQ_OK;
}

enum evq_status evq_native_tokenizer(struct evq_native_run *run, const char *directory,
                                     const struct evq_tokenizer **ret_tokenizer,
                                     struct evq_error *err)
{
    const char *named = evq_pair_get(run->config->data, run->config->data_count, "tokenizer", "");
    struct place place = {0};
    struct kept *kept = NULL;
    XXH128_hash_t content;

    *ret_tokenizer = NULL;
    if (named[0] == '\0' && !evq_corpus_needs_tokenizer(run->config)) {
        return EVQ_OK;
    }
    enum evq_status status = find_place(run, directory, &place, err);
    if (status == EVQ_OK) {
        status = hash_files(&place, &content, err);
    }
    if (status == EVQ_OK) {
        kept = evq_native_cache_find(&run->native->tokenizers, same_content, &content);
        status = kept == NULL ? open_kept(run, &place, content, &kept, err) : EVQ_OK;
    }
    if (status == EVQ_OK) {
        *ret_tokenizer = kept->tokenizer;
    }
    free(place.path);
    return status;
}
