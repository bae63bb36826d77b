#include "producer/gateway/lmms/lmms_paths.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"

#define SHARDS_REGULAR "pytorch_model_fsdp_0"
#define SHARDS_EMA     "pytorch_ema_model_fsdp_0"

/* Whether path is the directory or beneath it, by whole components. *ret_rest: the rest of path. */
static bool beneath(const char *path, const char *directory, const char **ret_rest)
{
    const size_t bytes = strcmp(directory, "/") == 0 ? 0 : strlen(directory);

    if (strncmp(path, directory, bytes) != 0 || (path[bytes] != '/' && path[bytes] != '\0')) {
        return false;
    }
    *ret_rest = path[bytes] == '/' ? path + bytes + 1 : ".";
    *ret_rest = (*ret_rest)[0] != '\0' ? *ret_rest : ".";
    return true;
}

/* Finds the longest root that contains path. real: compares with the roots' real paths. */
static const struct evq_root *root_of(const struct evq_config *config, const char *path, bool real,
                                      const char **ret_rest)
{
    const struct evq_root *found = NULL;
    size_t longest = 0;

    for (size_t i = 0; i < config->root_count; i++) {
        char resolved[PATH_MAX];
        const char *directory = config->roots[i].path;
        const char *rest = NULL;
        if (real && realpath(directory, resolved) != NULL) {
            directory = resolved;
        }
        if (beneath(path, directory, &rest) && (found == NULL || strlen(directory) > longest)) {
            found = &config->roots[i];
            longest = strlen(directory);
            *ret_rest = rest;
        }
    }
    return found;
}

/* Removes doubled and trailing slashes. False: it is not absolute, too long, or has "." or "..". */
static bool path_clean(const char *path, char out[PATH_MAX])
{
    size_t used = 0;

    if (path[0] != '/') {
        return false;
    }
    while (*path != '\0') {
        path += strspn(path, "/");
        const size_t bytes = strcspn(path, "/");
        if (bytes == 0) {
            break;
        }
        if ((bytes == 1 && path[0] == '.') || (bytes == 2 && path[0] == '.' && path[1] == '.') ||
            used + bytes + 2 > PATH_MAX) {
            return false;
        }
        out[used++] = '/';
        memcpy(out + used, path, bytes);
        used += bytes;
        path += bytes;
    }
    out[used] = '\0';
    return used > 0;
}

static bool is_directory(const char *directory, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    const int bytes = snprintf(path, sizeof path, "%s/%s", directory, name);

    return bytes > 0 && bytes < PATH_MAX && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool has_weights(const char *directory)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json"};
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const int bytes = snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        if (bytes > 0 && bytes < PATH_MAX && access(path, F_OK) == 0) {
            return true;
        }
    }
    return false;
}

static int64_t number_at_end(const char *name)
{
    size_t begin = strlen(name);

    while (begin > 0 && isdigit((unsigned char)name[begin - 1])) {
        begin--;
    }
    errno = 0;
    const long long number = name[begin] != '\0' ? strtoll(name + begin, NULL, 10) : 0;
    return errno == 0 && number >= 0 && number < EVQ_JOB_STEP_MAX ? number : 0;
}

/* Replaces a directory of several checkpoints by the one with the highest step, as LMMs-Engine's
 * merger does. */
static void newest_choose(char path[PATH_MAX])
{
    char best[NAME_MAX + 1] = "";
    int64_t step = -1;
    const struct dirent *entry;

    DIR *stream = opendir(path);
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        const char *number = entry->d_name + 11;
        if (strncmp(entry->d_name, "checkpoint-", 11) == 0 && number[0] != '\0' &&
            number[strspn(number, "0123456789")] == '\0' && number_at_end(number) > step &&
            is_directory(path, entry->d_name)) {
            step = number_at_end(number);
            (void)snprintf(best, sizeof best, "%s", entry->d_name);
        }
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    const size_t bytes = strlen(path);
    if (step >= 0 && bytes + strlen(best) + 2 <= PATH_MAX) {
        (void)snprintf(path + bytes, PATH_MAX - bytes, "/%s", best);
    }
}

/* Sets root and path from place->absolute. */
static enum evq_status root_find(const struct evq_config *config, struct evq_lmms_paths *place,
                                 struct evq_error *err)
{
    char resolved[PATH_MAX];
    const char *rest = NULL;

    const struct evq_root *root = root_of(config, place->absolute, false, &rest);
    if (root == NULL && realpath(place->absolute, resolved) != NULL) {
        root = root_of(config, resolved, true, &rest);
    }
    if (root == NULL) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "no root contains '%s': add a directory above it to the section roots "
                             "of evalq.yaml, such as `roots: {checkpoints: %s}`",
                             place->absolute, place->absolute);
    }
    (void)snprintf(place->root, sizeof place->root, "%s", root->name);
    (void)snprintf(place->path, sizeof place->path, "%s", rest);
    return EVQ_OK;
}

/* Takes the fingerprint of the checkpoint. "": it cannot be read from here. */
static void fingerprint_find(const struct evq_config *config, struct evq_lmms_paths *place)
{
    const struct evq_root *root = evq_config_root_find(config, place->root);
    const int fd = root != NULL ? open(root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    char fingerprint[33];

    place->fingerprint[0] = '\0';
    if (fd < 0) {
        return;
    }
    if (evq_checkpoint_fingerprint(fd, place->path, fingerprint, NULL, NULL) == EVQ_OK) {
        (void)snprintf(place->fingerprint, sizeof place->fingerprint, "%s", fingerprint);
    }
    (void)close(fd); // Opened for reading: a failed close loses nothing.
}

/* Finds out what the checkpoint contains, if it can be read from here. A worker checks again. */
static void look(const struct evq_config *config, bool wanted, struct evq_lmms_paths *place)
{
    const bool regular = is_directory(place->absolute, SHARDS_REGULAR);
    const bool ema = is_directory(place->absolute, SHARDS_EMA);

    place->both = regular && ema;
    place->merge = regular || ema ? !has_weights(place->absolute) || wanted
                                  : wanted && !has_weights(place->absolute);
    fingerprint_find(config, place);
}

/* Makes the name of the run: the name of the checkpoint's directory and a hash of directory and
 * settings. So equal requests of one training belong to one run. */
static void run_name(struct evq_lmms_paths *place, const char *settings)
{
    char folder[PATH_MAX];
    char name[EVQ_JOB_RUN_BYTES_MAX - 9 + 1];

    (void)snprintf(folder, sizeof folder, "%s", place->absolute);
    char *slash = strrchr(folder, '/');
    const char *base = slash != NULL ? slash + 1 : folder;
    place->step = number_at_end(base);
    if (slash != NULL && slash != folder) {
        *slash = '\0';
        slash = strrchr(folder, '/');
        base = slash != NULL ? slash + 1 : folder;
    }
    uint64_t hash = XXH3_64bits(folder, strlen(folder) + 1);
    hash = XXH3_64bits_withSeed(settings, strlen(settings), hash);
    evq_job_map_name(base[0] != '\0' ? base : "run", sizeof name - 1, name);
    (void)snprintf(place->run, sizeof place->run, "%s-%08x", name, (unsigned)(hash & 0xffffffffU));
}

/* Prepares a request for weights of the hub: the job's checkpoint is a file with the request and a
 * random number, so that two requests are never equal. The hub's weights may change between them.
 */
static enum evq_status hub_write(const struct evq_config *config, const char *results,
                                 const struct evq_lmms_request *request, const char *settings,
                                 struct evq_lmms_paths *place, struct evq_error *err)
{
    char directory[PATH_MAX];
    char name[EVQ_JOB_RUN_BYTES_MAX - 9 + 1];
    const uint64_t hash = XXH3_64bits(settings, strlen(settings));
    const unsigned long long nonce = evq_clock_random();
    struct evq_buffer text;

    place->hub = true;
    evq_job_map_name(request->model_dir, sizeof name - 1, name);
    (void)snprintf(place->run, sizeof place->run, "%s-%08x", name, (unsigned)(hash & 0xffffffffU));
    if (snprintf(directory, sizeof directory, "%s/requests", results) >= PATH_MAX - 100) {
        return evq_error_set(err, EVQ_E_LIMIT, "the directory of results '%s' is too long",
                             results);
    }
    (void)snprintf(place->absolute, sizeof place->absolute, "%.*s/%s-%016llx.json", PATH_MAX - 100,
                   directory, place->run, nonce);
    const enum evq_status status = root_find(config, place, err);
    if (status != EVQ_OK) {
        return evq_error_set(
            err, EVQ_E_NOT_FOUND,
            "model_args name no checkpoint, so the gateway writes the request to a file in '%s', "
            "but no root contains that directory: add it to the section roots of evalq.yaml",
            directory);
    }
    if ((mkdir(results, 0777) != 0 && errno != EEXIST) ||
        (mkdir(directory, 0777) != 0 && errno != EEXIST)) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", directory, strerror(errno));
    }
    const int fd =
        open(place->absolute, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", place->absolute, strerror(errno));
    }
    evq_buffer_init(&text, 0);
    evq_buffer_printf(&text, "%s\n%016llx\n", settings, nonce);
    enum evq_status written = text.failed
                                  ? evq_error_set(err, EVQ_E_NOMEM, "'%s'", place->absolute)
                                  : evq_file_write(fd, text.data, text.bytes, place->absolute, err);
    evq_buffer_free(&text);
    if (close(fd) != 0 && written == EVQ_OK) {
        written = evq_error_set(err, EVQ_E_IO, "write '%s': %s", place->absolute, strerror(errno));
    }
    if (written == EVQ_OK) {
        fingerprint_find(config, place);
    }
    return written;
}

enum evq_status evq_lmms_paths_find(const struct evq_config *config, const char *results,
                                    const struct evq_lmms_request *request, const char *settings,
                                    struct evq_lmms_paths *ret_place, struct evq_error *err)
{
    struct evq_lmms_paths place = {.step = 0};

    if (request->path[0] == '\0' || request->path[0] != '/') {
        const enum evq_status status = hub_write(config, results, request, settings, &place, err);
        if (status == EVQ_OK) {
            *ret_place = place;
        }
        return status;
    }
    if (!path_clean(request->path, place.absolute)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the checkpoint '%s' is not a plain absolute path (without . and ..)",
                             request->path);
    }
    if (request->merge && !is_directory(place.absolute, SHARDS_REGULAR) &&
        !is_directory(place.absolute, SHARDS_EMA) && !has_weights(place.absolute)) {
        newest_choose(place.absolute);
    }
    const enum evq_status status = root_find(config, &place, err);
    if (status == EVQ_OK) {
        look(config, request->merge, &place);
        run_name(&place, settings);
        *ret_place = place;
    }
    return status;
}

enum evq_status evq_lmms_paths_merge(const struct evq_config *config, const char *path,
                                     const char *variant, struct evq_lmms_paths *ret_place,
                                     struct evq_error *err)
{
    const char *folder = strcmp(variant, "ema") == 0 ? SHARDS_EMA : SHARDS_REGULAR;
    struct evq_lmms_paths place = {.step = 0};

    if (!path_clean(path, place.absolute)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "checkpoint_path '%s' is not a plain absolute path (without . and ..)",
                             path);
    }
    enum evq_status status = root_find(config, &place, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!is_directory(place.absolute, ".")) {
        return evq_error_set(err, EVQ_E_GONE, "Checkpoint not found: %s", place.absolute);
    }
    if (!is_directory(place.absolute, folder)) {
        newest_choose(place.absolute);
    }
    if (!is_directory(place.absolute, folder)) {
        return evq_error_set(err, EVQ_E_INVALID, "Checkpoint type '%s' not found at %s/%s", variant,
                             place.absolute, folder);
    }
    status = root_find(config, &place, err);
    if (status == EVQ_OK) {
        look(config, true, &place);
        run_name(&place, "merge");
        *ret_place = place;
    }
    return status;
}

/* Whether the path is in the checkpoint itself, or in a folder that is named like a checkpoint. */
static bool in_checkpoint(const struct evq_lmms_paths *place, const char *path)
{
    const char *rest = NULL;

    return (place->absolute[0] != '\0' && beneath(path, place->absolute, &rest)) ||
           strstr(path, "/checkpoint-") != NULL;
}

enum evq_status evq_lmms_paths_output(const struct evq_config *config, const char *results,
                                      const struct evq_lmms_paths *place, const char *wanted,
                                      const char *folder, char out[PATH_MAX], struct evq_error *err)
{
    char clean[PATH_MAX];
    const char *rest = NULL;
    int bytes = 0;

    if (path_clean(wanted, clean) && !in_checkpoint(place, clean) &&
        (root_of(config, clean, false, &rest) != NULL || beneath(clean, results, &rest))) {
        bytes = snprintf(out, PATH_MAX, "%s", clean);
    } else {
        const char *slash = strrchr(place->absolute, '/');
        bytes = place->hub ? snprintf(out, PATH_MAX, "%s/%s", results, place->run)
                           : snprintf(out, PATH_MAX, "%s/%s/%s%s%s", results, place->run,
                                      slash != NULL ? slash + 1 : "checkpoint",
                                      folder[0] != '\0' ? "/" : "", folder);
    }
    if (bytes < 0 || bytes > PATH_MAX - 2 * EVQ_LMMS_NAME_BYTES) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path of the results is too long");
    }
    return EVQ_OK;
}
